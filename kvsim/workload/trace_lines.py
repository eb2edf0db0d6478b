"""Lines of a trace file, plain or gzip, one at a time."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kvsim.errors import KvsimError

_GZIP_MAGIC = b"\x1f\x8b"


def _long_digits(digits: str) -> int | str:
    """A number; one of absurdly many digits stays text, for the check of its field to refuse."""
    return int(digits) if len(digits) <= 100 else digits


def parse(line: bytes) -> Any:
    """The JSON of a line; raises ValueError saying what is wrong."""
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError("not a row: nested too deeply") from None
    except ValueError:  # Python's own limit on digits
        return json.loads(line, parse_int=_long_digits)


def read_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """(line number, line) of each line that is not blank; gzip is known by its first bytes."""
    line_number = 0
    try:
        with _open(path) as file:
            for line_number, line in enumerate(file, 1):
                if line.strip():
                    yield line_number, line
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        where = f" line {line_number + 1}" if line_number else ""
        raise KvsimError(f"{path}{where}: cannot be read: {reason}") from None


def _open(path: str | Path) -> IO[bytes]:
    with open(path, "rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
    return gzip.open(path, "rb") if packed else open(path, "rb")  # type: ignore[return-value]


def fingerprint(path: str | Path) -> tuple[str, int]:
    """SHA-256 (hex) of a trace's lines and how many there are; gzip or not makes no difference."""
    digest, count = hashlib.sha256(), 0
    for _, line in read_lines(path):
        digest.update(line.strip() + b"\n")
        count += 1
    return digest.hexdigest(), count
