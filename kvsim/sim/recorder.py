"""Steps and events of the engines, taken on their way where the run wants them recorded."""

from dataclasses import replace

from kvsim.cache.state import LOG_FIRST_TOKEN
from kvsim.engine.config import EngineConfig
from kvsim.engine.core import EngineCore
from kvsim.results import EventLog, StepLog

_STEP_ROWS = 8192
_SPARE_EVENTS = 1 << 18  # for lookups of a long waiting queue; memory is only taken when it is written


class Recorder:
    """Hands on what engines have noted down."""

    def __init__(self, steps: StepLog | None = None, events: EventLog | None = None) -> None:
        self._steps, self._events = steps, events

    @property
    def reads_logs(self) -> bool:
        """Whether it takes the logs of the engines; else nobody does."""
        return self._events is not None

    def record(self, instance: int, core: EngineCore, at_end: bool = False) -> None:
        """Take an engine's notes; of steps under way only at the end of the run."""
        if self._steps is not None:
            self._steps.write(instance, core.take_steps(in_flight=at_end))
        if self._events is not None:
            log = core.take_log()
            self._events.write(instance, log[log["kind"] != LOG_FIRST_TOKEN])

    def close(self) -> None:
        for log in (self._steps, self._events):
            if log is not None:
                log.close()


def with_notes(config: EngineConfig, steps: bool, events: bool) -> EngineConfig:
    """The configuration of an engine that notes down what is to be recorded, and what routers must know."""
    return replace(
        config,
        step_capacity=_STEP_ROWS if steps else 0,
        log_capacity=2 * events_of_a_step(config, _SPARE_EVENTS if events else 4096),
        kv_events=False,
    )


def events_of_a_step(config: EngineConfig, spare: int = _SPARE_EVENTS) -> int:
    """Room for what one step can do to blocks: store, evict and remove each, for every group."""
    smallest = min(config.kv_cache_config().group_block_sizes)
    blocks = config.max_num_batched_tokens // smallest + 2 * config.max_num_seqs
    return 4 * len(config.kv_groups) * blocks + spare
