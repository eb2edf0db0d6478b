"""What a worker does: one point, whole, to text. Imported by every worker, wherever it runs."""

import json
import math
import os
import signal
import threading
import time
from typing import Any

from kvsim.errors import KvsimError
from kvsim.scenario import Scenario
from kvsim.sweep.version import kvsim_version

TERMINAL_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)]
_SECONDS_BETWEEN_LOOKS = 0.5
_FEW_REQUESTS = 100


def run_point(scenario: Scenario) -> str:
    """JSON of {"summary": ...} or {"error": ...}.

    Text, so that a point is the same bytes whether it was just computed, sent here or read from a file.
    Whatever goes wrong belongs to this point alone.
    """
    from kvsim.sim.run import run_scenario

    outcome: dict[str, Any]
    try:
        outcome = {"summary": run_scenario(scenario).metrics}
    except KvsimError as error:
        outcome = {"error": str(error)}
    except MemoryError:
        outcome = {"error": "out of memory"}
    except Exception as error:
        outcome = {"error": f"{type(error).__name__}: {error}"}
    return json.dumps(outcome, allow_nan=False)


def seconds_of(scenario: Scenario) -> float:
    """About how long a point takes here: a few of its requests, timed; infinite if their number is unknown.

    Whatever is compiled must be at hand.
    """
    from kvsim.scenario.workload import shortened

    total = _num_requests(scenario)
    if not math.isfinite(total):
        return math.inf
    few = min(_FEW_REQUESTS, max(int(total), 1))
    short = shortened(scenario.workload, few)
    begin = time.perf_counter()
    run_point(scenario.model_copy(update={"workload": short}))
    return (time.perf_counter() - begin) * total / few


def _num_requests(scenario: Scenario) -> float:
    """Requests, sessions or arrivals, as the workload counts them."""
    from kvsim.scenario.workload import count_key

    counted = getattr(scenario.build_workload(), count_key(scenario.workload))
    rate = getattr(scenario.workload, "rate", math.inf)
    in_time = math.inf if scenario.horizon is None else rate * scenario.horizon
    return min(math.inf if counted is None else counted, in_time)


def rehearse(scenario: Scenario) -> tuple[str, str]:
    """Run a single request of a scenario; kvsim's version here and the outcome.

    So everything is compiled once, before workers start that would each compile it.
    """
    from kvsim.scenario.workload import shortened

    short = shortened(scenario.workload, 1)
    return kvsim_version(), run_point(scenario.model_copy(update={"workload": short}))


def end_with(parent: int) -> None:
    """Let this worker end when the sweep is gone, even if that was killed, and not by Ctrl-C before it."""
    for number in TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
