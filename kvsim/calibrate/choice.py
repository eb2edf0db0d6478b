"""Which rows a fit takes where an operation was timed with several kernels, or with L2 hot and cold."""

from collections.abc import Sequence

import pandas as pd

from kvsim.calibrate.tables import left_out
from kvsim.errors import KvsimError

FEWEST_ROWS = 8  # for a form's handful of numbers

# Nearest to what vLLM launches first. Published tables were timed through vLLM.
_VLLM = ("vllm_flash_attn_fa3", "vllm", "CutlassFP8ScaledMMLinearKernel", "torch.nn.functional.linear")
_PUBLISHED = "published"
_OTHERS = ("flash_attn_fa3", "flash_attn_2", _PUBLISHED)
_ATTENTION = "flash"  # in the name of every attention kernel that `kvsim calibrate measure` times
NOT_VLLM = "not vLLM's kernel"


def one_kernel(frame: pd.DataFrame, words: Sequence[str] = ()) -> pd.DataFrame:
    """Rows of one kernel: named by a word or else nearest to vLLM's, among those with enough rows to fit.

    Tables that do not name packages (published ones) hold a kernel for each shape and dtype; they count as
    one. words: of which a kernel's name must hold one, for operations that were timed with such a kernel.
    """
    if not frame.measured.any():
        return frame
    families = _families(frame)
    counts = families[~left_out(frame.digest.to_numpy())].value_counts()
    enough = [name for name in families.unique() if counts.get(name, 0) >= FEWEST_ROWS]
    named = [name for name in enough if _is_named(frame.kernel[families == name], words)]
    choices = named or enough or list(families.unique())
    return frame[families == min(choices, key=lambda name: (_rank(name), name))]


def as_run(frame: pd.DataFrame) -> pd.DataFrame:
    """Cold rows, which a run meets, where there are enough of them; else all."""
    cold = frame[frame.cold]
    enough = (~left_out(cold.digest.to_numpy())).sum() >= FEWEST_ROWS
    return cold if enough else frame


def check_words(rows: dict[str, pd.DataFrame], words: Sequence[str]) -> None:
    """Raises KvsimError for a word that no kernel's name holds."""
    names = sorted({str(name) for frame in rows.values() for name in frame.kernel.unique() if name})
    for word in words:
        if not any(word.lower() in name.lower() for name in names):
            raise KvsimError(
                f"--kernel {word}: no kernel of that name in the tables; they have {', '.join(names)}"
            )


def note(rows: pd.DataFrame) -> str:
    """Says of an attention kernel that it is not the one vLLM runs."""
    measured = rows.kernel[rows.measured].unique()
    foreign = any(_ATTENTION in name and not name.startswith("vllm") for name in measured)
    return NOT_VLLM if foreign else ""


def _families(frame: pd.DataFrame) -> pd.Series:
    """Kernels of one library count as one: torch has one for mixed batches, one for others."""
    names = frame.kernel.where(~frame.kernel.str.startswith("torch_"), "torch")
    return names.where(frame.measured, _PUBLISHED)


def _is_named(kernels: pd.Series, words: Sequence[str]) -> bool:
    return any(word.lower() in str(name).lower() for name in kernels.unique() for word in words)


def _rank(family: str) -> int:
    order = (*_VLLM, *_OTHERS)
    return next((i for i, known in enumerate(order) if family.startswith(known)), len(order))
