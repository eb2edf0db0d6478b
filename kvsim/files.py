"""Files that a person names: what stands there in words, and writing one whole or not at all."""

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from kvsim.errors import KvsimError

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISLNK, "a symbolic link that leads to itself"),
)


def readable(path: Path) -> Path:
    """The path itself; raises KvsimError for anything but a regular file, told by what it is.

    A pipe or a device would be read for ever.
    """
    try:
        kind = _kind(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        raise KvsimError(f"{_short(path)}: {_reason(error)}") from None
    if kind:
        raise KvsimError(f"{_short(path)}: is {kind}; name a regular file")
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Put a file there in one step; what was there stays until then, a symbolic link keeps its place.

    Raises KvsimError, and leaves nothing, where something else than a regular file stands, or where it
    cannot be written.
    """
    place = checked_place(path)
    unfinished = place.parent / f".{place.name[:100]}.{secrets.token_hex(4)}.tmp"
    try:
        unfinished.write_bytes(content)
        with suppress(FileNotFoundError):
            unfinished.chmod(stat.S_IMODE(place.stat().st_mode))
        os.replace(unfinished, place)
    except OSError as error:
        raise KvsimError(f"cannot write {_short(path)}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            unfinished.unlink()


def checked_place(path: Path) -> Path:
    """Where a file of that name lies or would lie, links followed; raises KvsimError if it may not go there.

    Pipes, sockets and devices stay what they are: a rename would take their place.
    """
    try:
        place = Path(os.path.realpath(path))
        kind = _kind(os.lstat(place).st_mode)
    except FileNotFoundError:
        return place
    except (OSError, ValueError) as error:
        raise KvsimError(f"cannot write {_short(path)}: {_reason(error)}") from None
    if kind:
        raise KvsimError(f"cannot write {_short(path)}: it is {kind}; name a file")
    if not os.access(place, os.W_OK):
        raise KvsimError(f"cannot write {_short(path)}: it may not be written to")
    return place


def same_file(one: Path, other: Path) -> bool:
    """Whether two names lead to one file that is there."""
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def foreign_separator(columns: Iterable[object]) -> str:
    """What seems to separate the columns of a CSV that came out as one; empty if nothing does."""
    names = [str(column) for column in columns]
    marks = {";": "semicolons", "\t": "tabs", "|": "bars"}
    return next((word for mark, word in marks.items() if len(names) == 1 and mark in names[0]), "")


def _kind(mode: int) -> str:
    """What stands there in words; empty for a regular file."""
    if stat.S_ISREG(mode):
        return ""
    return next((name for test, name in _KINDS if test(mode)), "no regular file")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return getattr(error, "strerror", None) or str(error)


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 200 else f"{text[:200]}..."
