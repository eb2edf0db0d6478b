"""Standard output and error: closed, full, or with a reader that went away."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO, cast


class OutputError(Exception):
    """Standard output takes no more; the message says why, and is empty if its reader went away."""


@contextmanager
def guarded_output() -> Iterator[None]:
    """Within, printing raises `OutputError` where it fails, and never for a closed stream or odd letters."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        with redirect_stdout(cast(TextIO, _Output(sys.stdout))):
            yield
            sys.stdout.flush()
    except OutputError:
        with suppress(OSError, ValueError):  # what is left would fail again when Python exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


class _Output:
    """Standard output whose failures can be told from those of files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _output_error():
            return self._stream.write(text)

    def flush(self) -> None:
        with _output_error():
            self._stream.flush()


@contextmanager
def _output_error() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise OutputError("") from None
    except OSError as error:
        raise OutputError(f"cannot write to standard output: {error.strerror or error}") from None
