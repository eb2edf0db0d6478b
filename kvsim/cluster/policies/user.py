"""A user's own policy: any object with `choose(request, view)`, watched so that it fails in one line."""

import operator
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvsim.cluster.policy import Chooser, Policy, RoutedRequest, View
from kvsim.errors import KvsimError

EVERY_CHOICE = 0.0  # s: metrics as they are at each choice


@dataclass(frozen=True, kw_only=True)
class UserPolicy(Policy):
    """A policy from a user's file.

    name: as the scenario has it, `file.py:ClassName`. make: a new object of the class with its arguments, one
    for each router of each run. The class may have attributes `reads_events` (whether `overlap` of the view
    is kept, by KV events; False) and `metrics_interval` (seconds between snapshots of the engines' metrics,
    0, the default, for their state at each choice, None for none), and a method
    `ended(request_id, target, now)`.
    """

    name: str
    make: Callable[[], Any] = field(compare=False)
    wants_events: bool = False
    metrics_interval: float | None = EVERY_CHOICE

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """What its scenario calls it."""
        return (self.name,)

    @property
    def reads_events(self) -> bool:
        return self.wants_events

    @property
    def scrapes_every(self) -> float | None:
        return self.metrics_interval

    def start(self, router: Any) -> Chooser:
        with _Blamed(self.name, "while it was made"):
            return UserChooser(self.name, self.make())


class UserChooser(Chooser):
    """The user's object at work. Raises KvsimError for what it raises and for a choice that is none."""

    def __init__(self, name: str, policy: Any) -> None:
        self.name, self.policy = name, policy
        self.wants_ends = hasattr(policy, "ended")

    def choose(self, request: RoutedRequest, view: View) -> int:
        with _Blamed(self.name, f"on request {request.request_id}"):
            chosen = self.policy.choose(request, view)
        try:
            target = -1 if isinstance(chosen, bool) else operator.index(chosen)
        except TypeError:
            target = -1
        if not 0 <= target < len(view.names):
            raise KvsimError(
                f"policy {self.name}: choose returned {_brief(chosen)} on request {request.request_id}; "
                f"it must return the number of a target, 0 to {len(view.names) - 1}"
            )
        return target

    def ended(self, request_id: str, target: int, now: float) -> None:
        with _Blamed(self.name, f"at the end of request {request_id}"):
            self.policy.ended(request_id, target, now)


class _Blamed:
    """What the user's code raises becomes one line: the line in his file, the error, and when it was."""

    def __init__(self, name: str, when: str) -> None:
        self._name, self._when = name, when

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            text = one_line(str(error))
            what = f"{type(error).__name__}: {text}" if text else type(error).__name__
            raise KvsimError(
                f"policy {self._name}{_line(error, self._name)}: {what}, {self._when}"
            ) from error


def _line(error: BaseException, name: str) -> str:
    """Where in the user's file it happened, the innermost such line."""
    file = name.rpartition(":")[0].replace("\\", "/").rpartition("/")[2]
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.replace("\\", "/").rpartition("/")[2] == file
    ]
    return f", line {lines[-1]}" if lines else ""


def one_line(text: str, length: int = 200) -> str:
    """A text without line breaks, cut where it is longer."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _brief(value: Any) -> str:
    try:
        return one_line(repr(value))
    except Exception:  # a repr of the user's that fails
        return f"an object of {type(value).__name__}"
