"""Whatever the policy: engines in stretches or step by step, the router sees and chooses the same."""

import pytest
from test_stretches import COST, InBlocks, in_order, simulate

from kvsim.cluster.policies import POLICIES
from kvsim.cluster.policies.user import UserPolicy
from kvsim.engine.config import EngineConfig
from kvsim.scenario import Scenario
from kvsim.workload import SharedPrefixWorkload

CLASSES = list(dict.fromkeys(POLICIES.values()))
CONFIG = EngineConfig(
    num_gpu_blocks=90, max_model_len=256, block_size=16, max_num_seqs=8, max_num_batched_tokens=128
)
LENGTHS = {
    "num_prefixes": 5,
    "prefix_len": 64,
    "suffix_len": {"distribution": "uniform", "min": 1, "max": 90},
    "output_len": {"distribution": "uniform", "min": 1, "max": 30},
    "num_tenants": 2,
}
OPEN = SharedPrefixWorkload(rate=60.0, num_requests=80, **LENGTHS)
CLOSED = SharedPrefixWorkload(rate=float("inf"), num_requests=60, max_concurrency=7, **LENGTHS)
CHAT = Scenario(
    name="chat",
    model="Qwen3-0.6B",
    gpu="L4",
    workload={
        "type": "chat",
        "rate": 4.0,
        "num_sessions": 12,
        "num_turns": 3,
        "system_prompt_len": 20,
        "question_len": 10,
        "output_len": 9,
        "think_time": 0.1,
    },
).build_workload()


class Nosy:
    """Looks at metrics of the moment, draws, and hears of ends."""

    def __init__(self):
        self.ends = 0

    def choose(self, request, view):
        busy = view.targets["num_running"] + view.targets["num_waiting"] + view.targets["in_flight"]
        least = (busy == busy.min()).nonzero()[0]
        return least[(self.ends + view.draw(len(least))) % len(least)]

    def ended(self, request_id, target, now):
        self.ends += 1


POLICIES_AT_WORK = [*(policy() for policy in CLASSES), UserPolicy(name="mine.py:Nosy", make=Nosy)]


@pytest.mark.parametrize("workload", [OPEN, CLOSED, CHAT], ids=["open", "closed", "chat"])
@pytest.mark.parametrize("policy", POLICIES_AT_WORK, ids=lambda policy: policy.names[0])
def test_stretches_and_single_steps_give_the_same(policy, workload):
    arguments = CONFIG, InBlocks(workload, 7), COST, None, 3
    (requests, steps, events), stats, end, _ = simulate(*arguments, step_by_step=False, policy=policy)
    (requests_, steps_, events_), stats_, end_, _ = simulate(*arguments, step_by_step=True, policy=policy)
    assert requests.equals(requests_)
    assert (stats, end) == (stats_, end_)
    assert in_order(steps).equals(in_order(steps_))
    assert in_order(events).equals(in_order(events_))
    assert requests.num_rows == len(set(requests["request_id"].to_pylist()))
