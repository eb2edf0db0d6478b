"""How long the laws are searched for a counterexample.

By default the same short search at every run. HYPOTHESIS_PROFILE=explore searches longer,
differently each time, and shrinks what it finds, which may take minutes.
"""

import os

from hypothesis import HealthCheck, Phase, settings

_COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
}


def search(examples: int, steps: int = 40) -> settings:
    if os.environ.get("HYPOTHESIS_PROFILE") == "explore":
        return settings(max_examples=5 * examples, stateful_step_count=2 * steps, **_COMMON)
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        **_COMMON,
    )
