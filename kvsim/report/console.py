"""The summary on a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from kvsim.results import glance


def print_summary(metrics: Mapping[str, Any], console: Console) -> None:
    """The lines of `glance.text`, coloured where the console can."""
    bold = {glance.title(metrics)}
    dim = set(glance.notes(metrics))
    for line in glance.text(metrics).splitlines():
        style = "bold" if line in bold else "dim" if line in dim else ""
        console.print(Text(line, style=style), soft_wrap=True)
