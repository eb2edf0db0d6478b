"""What a key is swept over: KEY=A,B,C, a range with a step, or a range to draw from.

KEY=16,32,64        these values, in YAML; [..] and {..} are single values
KEY=0.5:0.95:0.05   from, to (included where a step reaches it), step; the step may be negative
KEY=8:128:*2        from, to, factor
KEY=1:64:log7       so many values from the one to the other, evenly spaced in their logarithms
KEY=1:64            whatever lies between, for samples only; whole numbers if both ends are
KEY=1:64:log        the same, evenly in their logarithms
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kvsim.errors import KvsimError
from kvsim.scenario.loader import key_path
from kvsim.scenario.yaml_file import parse_value
from kvsim.workload.checks import shown

FORMS = "KEY=A,B,C or KEY=FROM:TO:STEP"
_NUMBER = r"\s*[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(?::(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Bounds:
    """A range to draw from."""

    low: float
    high: float
    whole: bool
    log: bool

    def at(self, share: float) -> int | float:
        """The value at a share, 0 to 1 (excluded), of the way from low to high."""
        low, high = self.low, self.high + 1 if self.whole else self.high
        value = low * (high / low) ** share if self.log else low + (high - low) * share
        if self.whole:
            return min(int(value), int(self.high))
        return float(f"{value:.6g}")  # six digits tell points apart and can be typed again


@dataclass(frozen=True)
class Axis:
    """A key and its values, or bounds to draw values from; `option` is what was typed."""

    key: str
    option: str
    values: tuple[Any, ...] = ()
    bounds: Bounds | None = None

    def at(self, share: float) -> Any:
        """The value at a share, 0 to 1 (excluded), of the way along."""
        if self.bounds is not None:
            return self.bounds.at(share)
        return self.values[int(share * len(self.values))]


def read_axis(text: str, option: str = "--set", *, most: int) -> Axis:
    """KEY=VALUES, see the module; raises KvsimError naming option and text. At most `most` values."""
    key, equals, values = text.partition("=")
    typed = f"{option} {text if len(text) <= 80 else text[:77] + '...'}"
    where = key_path(key.strip().lstrip("-"))
    if not (equals and all(where)):
        raise KvsimError(f"{typed}: write {FORMS}")
    return axis_of(".".join(where), values, typed, most=most)


def axis_of(key: str, values: Any, option: str, *, most: int) -> Axis:
    """Values of a key as typed behind the = or as they stand in a `sweep:` block."""
    if not isinstance(values, str):
        listed = values if isinstance(values, list) else [values]
        return _distinct(Axis(key, option, tuple(listed)))
    if not values.strip():
        raise KvsimError(f"{option}: no values; write {FORMS}")
    ends = _RANGE.fullmatch(values)
    if ends is not None:
        return _range(key, option, Decimal(ends[1].strip()), Decimal(ends[2].strip()), ends[3], most)
    if ":" in values and any(map(_is_float, values.split(":")[:2])):
        raise KvsimError(f"{option}: {values} is no range; write FROM:TO:STEP with three numbers")
    return _distinct(Axis(key, option, tuple(parse_value(f"[{values}]", option))))


def read_axes(texts: Sequence[str], option: str = "--set", *, most: int) -> list[Axis]:
    """One axis for each text; raises KvsimError, also where a key comes twice."""
    axes: dict[str, Axis] = {}
    for text in texts:
        axis = read_axis(text, option, most=most)
        if axis.key in axes:
            raise KvsimError(f"{axis.option}: {axis.key} is set twice; give all its values at once")
        axes[axis.key] = axis
    return list(axes.values())


def flag_axes(texts: Sequence[str], *, most: int) -> Mapping[str, Sequence[Any]]:
    """Flag -> values of `kvsim capacity --sweep`; raises KvsimError. At most `most` combinations."""
    axes = read_axes(texts, "--sweep", most=most)
    for axis in axes:
        require_values(axis)
    count = math.prod(len(axis.values) for axis in axes)
    if count > most:
        raise KvsimError(f"--sweep: {count:,} combinations are more than {most:,}; give fewer values")
    return {axis.key: axis.values for axis in axes}


def require_values(axis: Axis) -> None:
    """Raises KvsimError for a range without a step."""
    if axis.bounds is not None:
        raise KvsimError(f"{axis.option}: a range needs a step, FROM:TO:STEP (only samples do without)")


def _range(key: str, option: str, first: Decimal, last: Decimal, step: str | None, most: int) -> Axis:
    step = step.strip() if step is not None else None
    if step is None or step == "log":
        return Axis(key, option, bounds=_bounds(option, first, last, log=step == "log"))
    if step.startswith("*"):
        values = _by_factor(option, first, last, step[1:], most)
    elif step.startswith("log"):
        values = _logarithmic(option, first, last, step[3:], most)
    else:
        values = _by_step(option, first, last, step, most)
    return _distinct(Axis(key, option, tuple(values)))


def _bounds(option: str, first: Decimal, last: Decimal, *, log: bool) -> Bounds:
    if last <= first:
        raise KvsimError(f"{option}: empty range, {last} is not above {first}")
    if log and first <= 0:
        raise KvsimError(f"{option}: a logarithmic range begins above 0, not at {first}")
    whole = _is_whole(first) and _is_whole(last)
    return Bounds(float(first), float(last), whole, log)


def _by_step(option: str, first: Decimal, last: Decimal, step: str, most: int) -> list[Any]:
    by = _decimal(option, step, "a step")
    if by == 0:
        raise KvsimError(f"{option}: a step of 0 leads nowhere")
    if (last - first) * by < 0:
        raise KvsimError(f"{option}: empty range, a step of {by} does not lead from {first} to {last}")
    count = int((last - first) / by) + 1
    _check_count(option, count, most)
    return [_plain(first + i * by) for i in range(count)]


def _by_factor(option: str, first: Decimal, last: Decimal, factor: str, most: int) -> list[Any]:
    by = _decimal(option, factor, "a factor")
    if by <= 0 or by == 1 or first <= 0 or last <= 0:
        raise KvsimError(f"{option}: a factor, and what it multiplies, is above 0, and it is not 1")
    if (last > first and by < 1) or (last < first and by > 1):
        raise KvsimError(f"{option}: empty range, a factor of {by} does not lead from {first} to {last}")
    steps = math.floor(math.log(last / first) / math.log(by) + 1e-9)
    _check_count(option, steps + 1, most)
    return [_plain(first * by**i) for i in range(steps + 1)]


def _logarithmic(option: str, first: Decimal, last: Decimal, count: str, most: int) -> list[Any]:
    if not (count.isdecimal() and int(count) >= 2):
        raise KvsimError(f"{option}: write FROM:TO:logN with N values, 2 or more")
    if first <= 0 or last <= 0 or first == last:
        raise KvsimError(f"{option}: a logarithmic range has two different ends above 0")
    _check_count(option, int(count), most)
    whole = _is_whole(first) and _is_whole(last)
    ratio, steps = float(last / first), int(count) - 1
    values = [float(first) * ratio ** (i / steps) for i in range(steps + 1)]
    if whole:
        return list(dict.fromkeys(round(value) for value in values))
    return [_plain(first), *(float(f"{value:.6g}") for value in values[1:-1]), _plain(last)]


def _check_count(option: str, count: int, most: int) -> None:
    if count > most:
        ways = (
            ", draw some with --sample latin:N, or raise --max-points" if option.startswith("--set") else ""
        )
        raise KvsimError(f"{option}: {counted(count)} values are more than {most:,}; take a wider step{ways}")


def counted(count: int) -> str:
    """With thousands separated; beyond all counting in powers of ten."""
    return f"{count:,}" if count < 10**15 else f"about 10^{len(str(count)) - 1}"


def _decimal(option: str, text: str, what: str) -> Decimal:
    if not re.fullmatch(_NUMBER, text):
        raise KvsimError(f"{option}: {text or 'nothing'} is not {what}, which is a number")
    return Decimal(text.strip())


def _is_whole(number: Decimal) -> bool:
    """Written without a point: 1 and not 1.0."""
    exponent = number.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= 0 and number.adjusted() < 18


def _plain(number: Decimal) -> int | float:
    return int(number) if _is_whole(number) else float(number)


def _distinct(axis: Axis) -> Axis:
    if not axis.values:
        raise KvsimError(f"{axis.option}: no values; write {FORMS}")
    for i, value in enumerate(axis.values):
        if any(_same(value, other) for other in axis.values[:i] if i < 1000):
            raise KvsimError(f"{axis.option}: {shown(value)} is given twice; give it once")
    return axis


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)
