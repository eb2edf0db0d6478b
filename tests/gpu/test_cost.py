"""The roofline obeys its laws: positive, finite, never less for more work."""

import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import config as numba_config

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.cost import COST_DTYPE, StepCost, StepShape, _step_time, step_time
from kvsim.gpu.model import ModelSpec

COSTS = {
    "dense": StepCost(catalog.model("Qwen3-VL-2B"), catalog.gpu("RTX 4090")),
    "moe": StepCost(catalog.model("Qwen3-30B-A3B"), catalog.gpu("H100"), tensor_parallel_size=2),
    "mla": StepCost(catalog.model("DeepSeek-R1"), catalog.gpu("H200"), tensor_parallel_size=8),
    "window": StepCost(catalog.model("gemma-3-4b"), catalog.gpu("L4"), kv_cache_dtype="fp8"),
    "mxfp4": StepCost(catalog.model("gpt-oss-20b"), catalog.gpu("A100 80GB")),
}

requests = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 200_000)), min_size=1, max_size=12)
costs = st.sampled_from(list(COSTS.values()))


def seconds(cost, batch, images=0):
    scheduled, computed = np.array(batch, np.int32).T
    return cost.seconds(StepShape(scheduled, computed, images))


def decode(batch, context):
    return [(1, context)] * batch


@settings(deadline=None)
@given(costs, requests, st.integers(0, 20_000))
def test_positive_and_finite(cost, batch, images):
    assert 0 < seconds(cost, batch, images) < math.inf


@settings(deadline=None)
@given(costs, requests, st.data())
def test_monotone_in_tokens_context_requests_and_images(cost, batch, data):
    base = seconds(cost, batch)
    i = data.draw(st.integers(0, len(batch) - 1))
    more = data.draw(st.integers(1, 5000))
    new, context = batch[i]
    assert seconds(cost, [*batch[:i], (new + more, context), *batch[i + 1 :]]) >= base
    assert seconds(cost, [*batch[:i], (new, context + more), *batch[i + 1 :]]) >= base
    assert seconds(cost, [*batch, (1, more)]) >= base
    assert seconds(cost, batch, more) >= base


def test_an_empty_step_still_takes_time():
    empty = np.zeros(0, np.int32)
    assert COSTS["dense"].seconds(StepShape(empty, empty)) > 0


def test_only_the_first_requests_are_read():
    cost = COSTS["dense"]
    scheduled, computed = np.array([1, 9999], np.int32), np.array([100, 9999], np.int32)
    one = _step_time(cost.parameters, scheduled, computed, 1, 0)
    assert one == seconds(cost, [(1, 100)])


def test_splitting_a_prefill_into_chunks_is_never_faster():
    cost = COSTS["dense"]
    whole = seconds(cost, [(4096, 0)])
    assert sum(seconds(cost, [(1024, start)]) for start in range(0, 4096, 1024)) >= whole


def test_large_contexts_do_not_overflow():
    assert math.isfinite(seconds(COSTS["dense"], [(2_000_000_000, 2_000_000_000)]))


def test_window_layers_see_no_more_than_their_window():
    cost = COSTS["window"]
    model = cost.model
    growth = seconds(cost, decode(32, 64_000)) - seconds(cost, decode(32, 32_000))
    full_layers = model.layer_types.count("full")
    head_bytes = 2 * model.num_key_value_heads * model.head_dim  # fp8
    assert growth == pytest.approx(
        32 * 32_000 * full_layers * head_bytes / (0.8 * cost.gpu.bandwidth), rel=1e-6
    )


def test_one_token_reaches_only_its_experts():
    cost = COSTS["moe"]
    p = cost.parameters[0]
    read = p["expert_read"] * cost.model.num_experts_per_tok / cost.model.num_experts
    extra = seconds(cost, decode(1, 0)) - (p["fixed"] + p["per_request"] + p["per_token_link"])
    assert extra == pytest.approx(p["linear_read"] + read + p["head_read"], rel=0.01)


def test_magnitudes_of_a_known_pair():
    """Llama-3.1-8B on an RTX 4090: published matrix kernels alone add up to 16 ms for one decode step."""
    cost = StepCost(catalog.model("Llama-3.1-8B"), catalog.gpu("RTX 4090"))
    assert 0.014 < seconds(cost, decode(1, 1000)) < 0.022
    assert 0.2 < seconds(cost, [(2048, 0)]) < 0.4


def test_more_ranks_are_faster_on_large_models():
    model, gpu = catalog.model("Llama-3.1-70B"), catalog.gpu("H100")
    times = [seconds(StepCost(model, gpu, ranks), decode(32, 2000)) for ranks in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)


def test_parameters_are_one_record():
    parameters = COSTS["moe"].parameters
    assert parameters.shape == (1,)
    assert parameters.dtype == COST_DTYPE


def test_a_bare_attention_shape_is_not_enough():
    bare = ModelSpec.from_config({"num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 64}, "bare")
    with pytest.raises(KvsimError, match="hidden_size of bare is needed"):
        StepCost(bare, catalog.gpu("L4"))


@pytest.mark.skipif(numba_config.DISABLE_JIT, reason="speed of compiled code")
def test_a_call_is_fast():
    """128 decodes in at most half a microsecond, called from compiled code."""
    from kvsim.compiled import compiled

    @compiled
    def many(parameters, scheduled, computed, count):
        total = 0.0
        for i in range(count):
            computed[0] = i
            total += step_time(parameters, scheduled, computed, 128, 0)
        return total

    parameters = COSTS["dense"].parameters
    scheduled, computed = np.ones(128, np.int32), np.full(128, 2000, np.int32)
    many(parameters, scheduled, computed, 1)
    best = math.inf
    for _ in range(5):
        begun = time.perf_counter()
        many(parameters, scheduled, computed, 20_000)
        best = min(best, time.perf_counter() - begun)
    assert best / 20_000 < 1e-6  # measured well below 0.5 us; the margin is for busy machines


def test_same_result_without_the_compiler():
    code = (
        "import numpy as np; from kvsim.gpu import catalog; from kvsim.gpu.cost import StepCost, StepShape;"
        "c = StepCost(catalog.model('Qwen3-VL-2B'), catalog.gpu('RTX 4090'));"
        "a = np.array([1, 700], np.int32); b = np.array([5000, 90], np.int32);"
        "print(repr(c.seconds(StepShape(a, b, 300))))"
    )
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    here = seconds(COSTS["dense"], [(1, 5000), (700, 90)], 300)
    assert float(run.stdout) == pytest.approx(here, rel=1e-12)


def test_python_cannot_reach_the_part_for_compiled_code():
    """`step_time` is compiled without an entry from Python; `StepCost.seconds` is the way in."""
    assert numba_config.DISABLE_JIT or step_time.targetoptions["no_cpython_wrapper"]
