"""Long lists of numbers and names on few columns; nothing is rounded, what is left out is counted."""

from collections.abc import Iterator, Sequence

MOST_PARTS = 12
MOST_NAMES = 6
_SHORTEST_RUN = 3


def runs(values: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first, step, length) of what goes up by one, down by one or stays the same; else alone."""
    i = 0
    while i < len(values):
        step, length = _run_from(values, i)
        if length < _SHORTEST_RUN:
            step, length = 0, 1
        yield values[i], step, length
        i += length


def _run_from(values: Sequence[int], i: int) -> tuple[int, int]:
    if i + 1 == len(values) or abs(values[i + 1] - values[i]) > 1:
        return 0, 1
    step = values[i + 1] - values[i]
    end = i + 1
    while end < len(values) and values[end] - values[end - 1] == step:
        end += 1
    return step, end - i


def numbers(values: Sequence[int], most: int = MOST_PARTS) -> str:
    """Such as ``1..62, 64`` or ``9, -1 x3``; beyond `most` parts the middle goes and all are counted."""
    parts = [_text(*run) for run in runs(values)]
    if len(parts) > most:
        shown = [*parts[: most - 4], "...", *parts[-2:]]
        return f"{', '.join(shown)} ({len(values):,} in all)"
    return ", ".join(parts) or "-"


def _text(first: int, step: int, length: int) -> str:
    if length == 1:
        return str(first)
    return f"{first}..{first + step * (length - 1)}" if step else f"{first} x{length}"


def names(values: Sequence[str], most: int = MOST_NAMES) -> str:
    """Names in a row; the last ones are only counted beyond `most`."""
    more = len(values) - most
    return ", ".join(values[:most]) + (f" and {more:,} more" if more > 0 else "") or "-"


def hashes(values: Sequence[str]) -> str:
    """First digits of the hashes of a run of blocks."""
    ends = dict.fromkeys((values[0], values[-1]))
    return "..".join(value[:8] for value in ends)
