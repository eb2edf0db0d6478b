"""Least-squares fits: closed forms in log space, and smooth residual tables."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import least_squares
from scipy.sparse.linalg import cg

from kvsim.gpu.cost.residual import MOST, ResidualTable

Parameters = dict[str, float]
Spec = Mapping[str, tuple[float, float, float, str]]

MOST_ROWS = 8000  # of a closed form with a handful of numbers
_SHARP = 0.03  # residuals above this count linearly, not squared


def fit_form(
    spec: Spec,
    predict: Callable[[Parameters], NDArray[np.float64]],
    measured: NDArray[np.float64],
    start: Parameters | None = None,
    fixed: Parameters | None = None,
) -> Parameters:
    """Numbers of a form that fit `measured` (rows,), same unit as `predict`; errors in log, soft-L1.

    start: other starting values. fixed: numbers that are given and not fitted.
    """
    fixed = fixed or {}
    names = [name for name in spec if name not in fixed]
    low = np.log([spec[name][1] for name in names])
    high = np.log([spec[name][2] for name in names])
    begin = np.log([(start or {}).get(name, spec[name][0]) for name in names])
    goal = np.log(measured)

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        values = dict(zip(names, np.exp(x), strict=True)) | fixed
        return np.log(np.maximum(predict(values), 1e-3)) - goal

    inside = np.clip(begin, low + 1e-6, high - 1e-6)
    found = least_squares(errors, inside, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=300)
    return {
        **dict(zip(names, (float(f"{v:.5g}") for v in np.exp(found.x)), strict=True)),
        **fixed,
    }


def fit_table(
    axes: dict[str, tuple[float, ...]],
    where: Mapping[str, Any],
    residuals: NDArray[np.float64],
    stiffness: Mapping[str, float],
    pull: float = 0.01,
) -> ResidualTable:
    """Node values that fit residuals (rows,) measured at `where` (axis name -> (rows,)).

    Robust least squares: absolute errors beyond 3 %, plus stiffness times the squared difference of
    neighbouring nodes along each axis, plus `pull` towards 0. Nodes without rows follow their neighbours
    and fade to 0 with the distance, so coverage decides how far a table reaches.
    """
    shape = tuple(len(nodes) for nodes in axes.values())
    size = int(np.prod(shape))
    table = ResidualTable(axes, np.zeros(shape))
    index, weight = table.corners(**where)
    rows = np.repeat(np.arange(len(residuals)), index.shape[1])
    matrix = sparse.csr_matrix((weight.ravel(), (rows, index.ravel())), shape=(len(residuals), size))
    smooth = pull * sparse.identity(size, format="csr")
    for axis, name in enumerate(axes):
        smooth = smooth + stiffness[name] * _differences(shape, axis)
    values = np.zeros(size)
    robust = np.ones(len(residuals))
    for _ in range(6):
        system: Any = matrix.T @ sparse.diags(robust) @ matrix + smooth
        diagonal = sparse.diags(1.0 / system.diagonal())
        goal: Any = matrix.T @ (robust * residuals)
        values, _ = cg(system, goal, x0=values, rtol=1e-5, maxiter=400, M=diagonal)
        robust = 1.0 / np.maximum(np.abs(matrix @ values - residuals) / _SHARP, 1.0)
    return ResidualTable(axes, np.clip(values, -MOST, MOST).reshape(shape))


def _differences(shape: tuple[int, ...], axis: int) -> Any:
    """Matrix of the sum of squared differences of neighbouring nodes along one axis."""
    along = shape[axis]
    ones = np.ones(along - 1)
    step: Any = sparse.diags_array([-ones, ones], offsets=[0, 1], shape=(along - 1, along))
    before, after = int(np.prod(shape[:axis])), int(np.prod(shape[axis + 1 :]))
    whole: Any = sparse.kron(sparse.kron(sparse.identity(before), step), sparse.identity(after), format="csr")
    return whole.T @ whole
