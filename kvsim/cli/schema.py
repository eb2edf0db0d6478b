"""``kvsim schema``: what a scenario file may hold, for editors and for people."""

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path

from kvsim.errors import KvsimError
from kvsim.report.scenario_page import scenario_page
from kvsim.scenario.json_schema import json_schema


def schema_command(output: Path | None, *, markdown: bool) -> None:
    """Print the JSON Schema or the reference page, or write it; raises `KvsimError` if it cannot."""
    text = scenario_page() if markdown else json.dumps(json_schema(), indent=2) + "\n"
    if output is None:
        print(text, end="")
    else:
        _write(output, text)


def _write(path: Path, text: str) -> None:
    """Whole or not at all; into a device or a pipe as it comes."""
    target = Path(os.path.realpath(path))
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")
            return
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise KvsimError(f"cannot write {path}: {error.strerror or error}") from None
