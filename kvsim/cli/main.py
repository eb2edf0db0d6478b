"""The ``kvsim`` program: parse, call, print.

Results go to stdout, talk and errors to stderr. Exit codes: 0 done, 1 `verify` found a
difference, 2 bad input (one line says what, nothing is written), 130 interrupted.
Everything heavy is imported by the command that needs it, so that ``--help`` is quick.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from kvsim.errors import KvsimError

BAD_INPUT, INTERRUPTED, TERMINATED = 2, 130, 143

app = typer.Typer(name="kvsim", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        import kvsim

        typer.echo(f"kvsim {kvsim.__version__}")
        raise typer.Exit


@app.callback()
def kvsim_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Simulate vLLM's KV cache and scheduler: hit rates, capacity, preemption, latency."""


@app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Scenario, a YAML file.", show_default=False)],
    trace: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Replay this trace: JSON lines, plain or gzip.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Replace one value; may be repeated."),
    ] = None,
    results_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where the results folder goes.")] = Path(
        "results"
    ),
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the path of the results.")] = False,
) -> None:
    """Run one scenario and write its results folder."""
    from kvsim.cli.run import run_command

    run_command(file, trace, overrides or [], results_dir, quiet)


@app.command()
def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="DIR_OR_FILE...", help="Recorded vLLM traces.", show_default=False),
    ],
) -> None:
    """Replay recorded vLLM traces through kvsim's core and compare every recorded field."""
    from kvsim.cli.verify import verify_command

    raise typer.Exit(verify_command(paths))


def main(args: list[str] | None = None) -> NoReturn:
    """Entry point of the program; always ends in SystemExit."""
    signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = _run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _run(args: list[str] | None) -> int:
    """Run the command; every foreseen failure becomes one line and an exit code."""
    try:
        code: Any = typer.main.get_command(app).main(args, prog_name="kvsim", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except KvsimError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}")
    except Exception as error:
        if hasattr(error, "format_message"):  # how typer and click report a wrong command line
            message = error.format_message().rstrip(".")
            return _complain(f"{message} (see kvsim --help)") if message else BAD_INPUT
        raise


def _complain(message: str) -> int:
    print("kvsim:", " ".join(message.split()), file=sys.stderr)
    return BAD_INPUT


def _terminate(*_: object) -> NoReturn:
    sys.exit(TERMINATED)


if __name__ == "__main__":
    main()
