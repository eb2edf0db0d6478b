"""Which kvsim computed a point: results of another one must not stand beside it."""

import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
# What a run's figures follow from; a change of what only shows them makes no point stale.
_COMPUTING = ("*.py", "cache", "cluster", "engine", "gpu", "results", "scenario", "sim", "workload")
_ENDINGS = {".py", ".json"}


@cache
def kvsim_version() -> str:
    """The release and 12 hex digits over all sources and data that a run's figures follow from."""
    import kvsim

    digest = hashlib.sha256()
    for pattern in _COMPUTING:
        found = _PACKAGE.glob(pattern) if "*" in pattern else (_PACKAGE / pattern).rglob("*")
        for path in sorted(path for path in found if path.suffix in _ENDINGS):
            digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return f"{kvsim.__version__}+{digest.hexdigest()[:12]}"
