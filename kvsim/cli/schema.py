"""``kvsim schema``: what a scenario file may hold, for editors and for people."""

import json
from pathlib import Path

from kvsim.errors import KvsimError
from kvsim.files import write_whole
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
    if not path.exists() or path.is_file():
        write_whole(path, text.encode())
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise KvsimError(f"cannot write {path}: {error.strerror or error}") from None
