"""Entry point of the ``kvsim`` program: whatever happens becomes one line and an exit code.

Results go to stdout, talk and errors to stderr. Exit codes: 0 done, 1 `verify` found a
difference or the output could not be written, 2 bad input (one line says what, nothing is
written), 128 + the number of the signal that interrupted. The commands, in `kvsim.cli.app`, are
imported only once signals are looked after.
"""

import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

from kvsim.cli import collector
from kvsim.cli.interrupts import interrupts
from kvsim.cli.output import OutputError, guarded_output
from kvsim.errors import KvsimError

# Arrow's own allocators keep what they were once given: a long run would hold a tenth more.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

OUTPUT_FAILED, BAD_INPUT = 1, 2


def main(args: list[str] | None = None) -> NoReturn:
    """Run the program; always ends in SystemExit, or at once by a signal."""
    collector.pause()
    with interrupts:
        try:
            with guarded_output():
                code = _run(args)
        except OutputError as error:
            code = _complain(str(error), OUTPUT_FAILED)
        finally:
            collector.resume()
    sys.exit(code)


def _run(args: list[str] | None) -> int:
    """Run the command; every foreseen failure becomes one line and an exit code."""
    try:
        from kvsim.cli.app import run_app

        code: Any = run_app(args)
        return code if isinstance(code, int) else 0
    except KvsimError as error:
        return _complain(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}")
    except OutputError:
        raise
    except Exception as error:
        if hasattr(error, "format_message"):  # how typer and click report a wrong command line
            message = error.format_message().rstrip(".")
            command = getattr(getattr(error, "ctx", None), "command_path", "kvsim")
            return _complain(f"{message} (see {command} --help)" if message else "")
        raise


def _complain(message: str, code: int = BAD_INPUT) -> int:
    if message:
        with suppress(OSError):  # nowhere to complain to
            print("kvsim:", " ".join(message.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
