"""The summary on a terminal."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from kvsim.results import glance


def print_summary(metrics: Mapping[str, Any]) -> None:
    """The lines of `glance.text`, coloured where the reader can see that."""
    if not sys.stdout.isatty() and "FORCE_COLOR" not in os.environ:
        print(glance.text(metrics))  # the library that colours takes a while to load
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    bold = {glance.title(metrics)}
    dim = set(glance.notes(metrics))
    for line in glance.text(metrics).splitlines():
        style = "bold" if line in bold else "dim" if line in dim else ""
        console.print(Text(line, style=style), soft_wrap=True)
