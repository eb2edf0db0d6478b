"""What a routing policy is: a frozen description in the scenario's words, and a chooser that runs.

A description is a dataclass whose fields are the parameters by their original names; it says what it wants to
be told. `start` gives the chooser of one run. A compiled chooser is a function of `kvsim.addresses.CHOICE`
type with arrays of its own; one in Python is asked for each request.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from kvsim.cluster.prompt_hashes import PromptHashing
from kvsim.tokens import Segments


class RoutedRequest(Protocol):
    """What a router may read of a request (`kvsim.workload.Request` has it all); never its output."""

    @property
    def request_id(self) -> str: ...
    @property
    def arrival_time(self) -> float: ...
    @property
    def prompt(self) -> Segments: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def features(self) -> Sequence[Any]: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def lora(self) -> Any: ...
    @property
    def session(self) -> str | None: ...


@dataclass(frozen=True)
class View:
    """What is known of the targets at an instant.

    now: seconds. names: of the targets. targets: TARGET_DTYPE (n,), not to be changed: snapshot, own
    counters, facts; `overlap` holds the request's leading blocks that each target has by the KV events, where
    the policy reads them. draw(n): a random whole number below n, from the scenario's seed.
    """

    now: float
    names: Sequence[str]
    targets: NDArray[np.void]
    draw: Any


class Chooser(ABC):
    """A policy at work in Python."""

    wants_ends = False  # whether `ended` is to be called

    @abstractmethod
    def choose(self, request: RoutedRequest, view: View) -> int:
        """Number of the target that gets the request."""

    def ended(self, request_id: str, target: int, now: float) -> None:
        """A request has ended; most policies need not know (own counters stand in the view)."""
        raise NotImplementedError


@dataclass(frozen=True)
class CompiledChooser:
    """A policy at work in compiled code.

    function: a `kvsim.compiled.compiled_entry` of CHOICE type. arrays: its own, which follow those of
    `RouterState` among the router's words; `grow` makes larger ones when it said NO_ROOM.
    """

    function: Any
    arrays: list[NDArray[Any]]

    def grow(self) -> None:
        """Put larger arrays in place of the full ones in `arrays`; nothing to do if none can be full."""


@dataclass(frozen=True, kw_only=True)
class Policy(ABC):
    """A policy and its parameters. Sub-classes are listed in `kvsim.cluster.policies`."""

    names: ClassVar[tuple[str, ...]]  # ours, then what the originals call it
    blind: ClassVar[bool] = False  # looks at nothing that engines do, so requests are dealt out beforehand

    @property
    def reads_events(self) -> bool:
        """Whether it wants the index that KV events keep."""
        return False

    @property
    def tracks_blocks(self) -> bool:
        """Whether it wants `active_blocks` of the targets."""
        return False

    @property
    def num_clients(self) -> int:
        """Front ends that the router stands for, if each knows only of requests of its own."""
        return 1

    @property
    def scrapes_every(self) -> float | None:
        """Seconds between snapshots of the metrics; 0: a new one at each choice; None: it takes none."""
        return None

    def own_hashing(self, block_size: int) -> PromptHashing | None:
        """How it cuts prompts itself; None: it sees the engines' blocks (of `block_size` tokens)."""
        return None

    @abstractmethod
    def start(self, router: Any) -> Chooser | CompiledChooser:
        """The chooser of a run; `router` is the `kvsim.cluster.router.Router` that asks."""
