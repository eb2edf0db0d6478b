"""The decorators for compiled code, and where its machine code is kept.

Numba caches compiled functions on disk, but decides whether an entry is stale from the
file that *defines* the function alone: an edit to a callee in another module goes
unnoticed. The cache folder is therefore named by a digest of every source file that can
hold compiled code, so any edit starts a fresh folder.
"""

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import config
from numba.np import linalg as numba_linalg

COMPILING = "compiling once for this machine (about a minute); later runs start at once"

_PACKAGE = Path(__file__).parent
numba_config: Any = config  # its type hints do not know the settings either


def _no_blas() -> None:
    raise ImportError("compiled code here multiplies no matrices")


# Numba would load SciPy's linear algebra at each start, which takes longer than a small run.
numba_linalg.ensure_blas = _no_blas
ENGINE_SOURCES = ("*.py", "cache/*.py", "engine/*.py", "gpu/*.py", "gpu/cost/*.py")
ALL_SOURCES = (*ENGINE_SOURCES, "cluster/*.py", "cluster/*/*.py")  # the engine does not call the latter


def sources_digest(package: Path = _PACKAGE, patterns: Sequence[str] = ENGINE_SOURCES) -> str:
    """16 hex digits over the names and contents of all sources that hold compiled code."""
    digest = hashlib.sha256(numba.__version__.encode())
    for pattern in patterns:
        for path in sorted(package.glob(pattern)):
            digest.update(f"{path.relative_to(package)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_home() -> Path:
    if "KVSIM_CACHE_DIR" in os.environ:
        return Path(os.environ["KVSIM_CACHE_DIR"])
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "kvsim"


def _writable_folder(name: str) -> Path:
    """The cache folder, or one below the temporary folder where home is read-only."""
    fallback = Path(tempfile.gettempdir()) / f"kvsim-cache-{os.getuid() if hasattr(os, 'getuid') else 0}"
    for home in (_cache_home(), fallback):
        folder = home / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="kvsim-cache-"))


CACHE_FOLDER = _writable_folder(sources_digest())
# An edit to a router should not compile the engine anew.
_CLUSTER_FOLDER = _writable_folder(sources_digest(patterns=ALL_SOURCES))


def is_warm(entry: str = "serve.serve") -> bool:
    """Whether the machine code of an entry (module.function) of the present sources is on disk.

    By default the loop of a run, which is compiled last.
    """
    pattern, folders = f"{entry}-*.nbc", (CACHE_FOLDER, _CLUSTER_FOLDER)
    return numba_config.DISABLE_JIT or any(any(folder.rglob(pattern)) for folder in folders)


def _njit(function: Callable[..., Any], **options: Any) -> Any:
    njit: Any = numba.njit  # its type hints do not know all options
    before = numba_config.CACHE_DIR
    above = function.__module__.startswith("kvsim.cluster.")
    numba_config.CACHE_DIR = str(_CLUSTER_FOLDER if above else CACHE_FOLDER)  # read once, while decorating
    try:
        # Compiled code allocates nothing, so arrays need no reference counts (_nrt).
        options = {"no_cfunc_wrapper": True, **options}
        return njit(cache=True, error_model="numpy", nogil=True, _nrt=False, **options)(function)
    finally:
        numba_config.CACHE_DIR = before


def compiled(function: Callable[..., Any]) -> Any:
    """Compile with numba, to be called from Python; the machine code is cached in `CACHE_FOLDER`.

    With ``NUMBA_DISABLE_JIT=1`` the same function runs as Python, slowly, for debugging.
    """
    if not numba_config.DISABLE_JIT:
        return _njit(function)

    @functools.wraps(function)
    def interpreted(*args: Any) -> Any:
        with np.errstate(over="ignore"):  # unsigned overflow is meant
            return function(*args)

    return interpreted


def compiled_entry(function: Callable[..., Any]) -> Any:
    """Like `compiled`, for a function of plain numbers that compiled code calls by its address, too.

    See `kvsim.addresses.function_address`. Its callers are compiled without it, so it is compiled but once.
    """
    return _njit(function, no_cfunc_wrapper=False) if not numba_config.DISABLE_JIT else compiled(function)


def compiled_part(function: Callable[..., Any]) -> Any:
    """Like `compiled`, for functions that only compiled code calls.

    Without the entry from Python, which unpacks a dozen arrays, they compile in half the time;
    so Python must not call them (the process would crash, not raise).
    """
    return _njit(function, no_cpython_wrapper=True)


def compiled_inline(function: Callable[..., Any]) -> Any:
    """Like `compiled_part`, for what runs for each request of each step: always merged into its caller.

    A call hands over a hundred words of array descriptors, far more than such a function computes.
    """
    return _njit(function, no_cpython_wrapper=True, forceinline=True)


def compiled_once(function: Callable[..., Any]) -> Any:
    """For a large function that one other calls: becomes part of it before types are inferred.

    Numba optimises all that a function calls anew for each caller up the chain, so every level that is
    left out saves seconds of compiling.
    """
    return _njit(function, no_cpython_wrapper=True, inline="always")
