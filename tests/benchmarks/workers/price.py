"""The compiled step time of a dense model: microseconds of CPU time a call.

python price.py '{"requests": N, "first": NEW TOKENS OF THE FIRST, "context": TOKENS, "calls": N}'
"""

import json
import sys
import time
from types import SimpleNamespace

import numpy as np

from kvsim.compiled import compiled
from kvsim.gpu import catalog
from kvsim.gpu.cost import StepCost, step_time


@compiled
def many(parameters, scheduled, computed, calls):  # type: ignore[no-untyped-def]
    """Sum of so many steps whose first context grows."""
    total = 0.0
    for i in range(calls):
        computed[0] = i
        total += step_time(parameters, scheduled, computed, len(scheduled), 0)
    return total


def main() -> None:
    load = SimpleNamespace(**json.loads(sys.argv[1]))
    cost = StepCost(catalog.model("Llama-3.1-8B"), catalog.gpu("H100 SXM"))
    scheduled = np.ones(load.requests, np.int32)
    scheduled[0] = load.first
    computed = np.full(load.requests, load.context, np.int32)
    many(cost.parameters, scheduled, computed, 1)
    begin = time.process_time()
    many(cost.parameters, scheduled, computed, load.calls)
    print(json.dumps({"us": (time.process_time() - begin) / load.calls * 1e6}))


if __name__ == "__main__":
    main()
