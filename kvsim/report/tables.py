"""Tables without frames, the same on a terminal and in a pipe."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

_WIDTH_OF_A_PIPE = 160


def console() -> Console:
    """Standard output; a file or pipe gets lines long enough for every table."""
    plain = Console(highlight=False, markup=False, emoji=False)
    if plain.is_terminal:
        return plain
    return Console(highlight=False, markup=False, emoji=False, width=_WIDTH_OF_A_PIPE)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, header: bool = True) -> Table:
    """A name that begins with > is a column of figures, set to the right, and is not wrapped."""
    made = Table(box=None, pad_edge=False, show_header=header)
    for name in columns:
        figures = name.startswith(">")
        made.add_column(name.lstrip(">"), justify="right" if figures else "left", no_wrap=figures)
    for row in rows:
        made.add_row(*row)
    return made
