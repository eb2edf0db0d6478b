"""Step times obey their laws: positive, finite, never less for more work; and say what they rest on."""

import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import config as numba_config

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.cost import COST_DTYPE, StepCost, StepShape, linear, step_time
from kvsim.gpu.cost.curves import TOKENS
from kvsim.gpu.cost.step import price
from kvsim.gpu.gpus import gpu_names
from kvsim.gpu.model import ModelSpec

COSTS = {
    "dense": StepCost(catalog.model("Qwen3-VL-2B"), catalog.gpu("RTX 4090")),
    "moe": StepCost(catalog.model("Qwen3-30B-A3B"), catalog.gpu("H100 SXM"), tensor_parallel_size=2),
    "mla": StepCost(catalog.model("DeepSeek-R1"), catalog.gpu("H200"), tensor_parallel_size=8),
    "window": StepCost(catalog.model("gemma-3-4b"), catalog.gpu("L4"), kv_cache_dtype="fp8"),
    "mxfp4": StepCost(catalog.model("gpt-oss-20b"), catalog.gpu("A100-80GB SXM")),
    "fp8": StepCost(catalog.model("Llama-3.1-70B-FP8"), catalog.gpu("B200"), tensor_parallel_size=4),
    "l40s": StepCost(catalog.model("Llama-3.1-8B"), catalog.gpu("L40S")),
    "eager": StepCost(
        catalog.model("Llama-3.1-8B"),
        catalog.gpu("RTX PRO 6000"),
        pipeline_parallel_size=2,
        cuda_graph_tokens=0,
        async_scheduling=False,
    ),
}

requests = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 200_000)), min_size=1, max_size=12)
mostly_decodes = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, 1, 2, 500]), st.integers(0, 20_000)), min_size=1, max_size=300
)
batches = st.one_of(requests, mostly_decodes)
costs = st.sampled_from(list(COSTS.values()))


def seconds(cost, batch, images=0):
    scheduled, computed = np.array(batch, np.int32).T
    return cost.seconds(StepShape(scheduled, computed, images))


def decode(batch, context):
    return [(1, context)] * batch


@settings(deadline=None)
@given(costs, batches, st.integers(0, 20_000))
def test_positive_and_finite(cost, batch, images):
    assert 0 < seconds(cost, batch, images) < math.inf


@settings(deadline=None, max_examples=400)
@given(costs, batches, st.data())
def test_more_tokens_or_longer_contexts_never_take_less(cost, batch, data):
    base = seconds(cost, batch) * (1 - 1e-12)
    i = data.draw(st.integers(0, len(batch) - 1))
    more = data.draw(st.one_of(st.integers(1, 10), st.integers(1, 5000)))
    new, context = batch[i]
    assert seconds(cost, [*batch[:i], (new + more, context), *batch[i + 1 :]]) >= base
    assert seconds(cost, [*batch[:i], (new, context + more), *batch[i + 1 :]]) >= base
    assert seconds(cost, batch, more) >= base


@settings(deadline=None)
@given(costs, st.integers(1, 600), st.integers(1, 100_000), st.integers(1, 100))
def test_more_of_the_same_requests_never_take_less(cost, count, context, more):
    assert seconds(cost, decode(count + more, context)) >= seconds(cost, decode(count, context))


def test_an_empty_step_still_takes_time():
    empty = np.zeros(0, np.int32)
    assert COSTS["dense"].seconds(StepShape(empty, empty)) > 0


def test_only_the_first_requests_are_read():
    cost = COSTS["dense"]
    scheduled, computed = np.array([1, 9999], np.int32), np.array([100, 9999], np.int32)
    one = price(cost.parameters, scheduled, computed, 1, 0)
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
    read = 32 * 32_000 * full_layers * head_bytes / cost.gpu.bandwidth
    assert read <= growth <= 1.5 * read


def test_one_token_reaches_only_its_experts():
    cost = COSTS["moe"]
    model = cost.model
    experts = model.num_moe_layers * model.expert_parameters * 2 / cost.tensor_parallel_size
    read = (model.num_experts - 2 * model.num_experts_per_tok) * experts / cost.gpu.bandwidth
    assert seconds(cost, decode(300, 10)) - seconds(cost, decode(1, 10)) > read


def test_experts_that_data_parallel_ranks_share():
    """As many GPUs in one split of all experts, fed with the tokens of all ranks."""
    model, ranks = catalog.model("Qwen3-30B-A3B"), 4
    cost = StepCost(model, catalog.gpu("H100 SXM"))
    experts = partial(linear.expert_curve, model, kind=cost._linear, values=cost._known.get("moe"))
    shared = experts(ranks=1, device=cost.device, replicas=ranks)
    whole = experts(ranks=ranks, device=cost.device)
    known = ranks * TOKENS <= TOKENS[-1]
    np.testing.assert_allclose(shared[known], np.interp(ranks * TOKENS[known], TOKENS, whole), rtol=0.02)
    assert (shared < experts(ranks=1, device=cost.device) + 1e-9).all()
    assert "4 ranks, their exchange not counted" in replace(cost, data_parallel_size=ranks).description


def test_batches_are_padded_to_captured_graphs():
    cost, eager = COSTS["l40s"], COSTS["eager"]
    tokens = cost.parameters["tokens"][0]
    gap = seconds(cost, decode(136, 16)) - seconds(cost, decode(130, 16))
    assert gap < 0.5 * (tokens[143] - tokens[129]) + 2e-3  # 130 and 136 both run as 136
    assert eager.parameters["graph_tokens"][0] == 0


def test_magnitudes_of_known_pairs():
    """Llama-3.1-8B: published matrix kernels alone add up to 16 ms for one decode step on an RTX 4090."""
    model = catalog.model("Llama-3.1-8B")
    ranges = {
        "RTX 4090": (0.015, 0.022, 0.15, 0.25),
        "H100 SXM": (0.005, 0.008, 0.035, 0.06),
        "A100-80GB SXM": (0.009, 0.014, 0.10, 0.17),
        "B200": (0.0025, 0.0045, 0.015, 0.03),
    }
    for gpu, (low, high, prefill_low, prefill_high) in ranges.items():
        cost = StepCost(model, catalog.gpu(gpu))
        assert low < seconds(cost, decode(1, 1000)) < high, gpu
        assert prefill_low < seconds(cost, [(2048, 0)]) < prefill_high, gpu


def test_a_decode_beside_a_prefill_costs_more_than_alone():
    """FlashAttention-2 drops split KV as soon as one sequence has several tokens."""
    cost = COSTS["eager"]
    long = [(1, 16_000)]
    alone = seconds(cost, long) - seconds(cost, [(1, 1)])
    beside = seconds(cost, [(16, 0), *long]) - seconds(cost, [(16, 0), (1, 1)])
    assert beside > 3 * alone


def test_more_ranks_are_faster_on_large_models():
    model, gpu = catalog.model("Llama-3.1-70B"), catalog.gpu("H100 SXM")
    times = [seconds(StepCost(model, gpu, ranks), decode(32, 2000)) for ranks in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)


def test_every_gpu_of_the_catalog_has_step_times():
    model = catalog.model("Qwen3-0.6B")
    for gpu in map(catalog.gpu, gpu_names()):
        assert 0 < seconds(StepCost(model, gpu), decode(8, 500)) < 1, gpu.name


def test_the_description_names_what_is_borrowed_and_what_is_assumed():
    assert COSTS["l40s"].description.startswith("Step times: calibrated on measured kernels of L40S")
    window = COSTS["window"].description
    assert window.startswith("Step times: no measured kernels of L4, by specification; borrowed from L40S: ")
    assert "mxfp4 linear layers by physics, not measured" in COSTS["mxfp4"].description
    assert "latent attention by physics, not measured" in COSTS["mla"].description
    assert COSTS["l40s"].description.endswith("casys-kaist/LLMServingSim 5daddb2)")


def test_beyond_the_measured_range_is_said():
    cost = COSTS["l40s"]
    assert cost.beyond(context=8000, requests=64, tokens=8192) == []
    (far,) = cost.beyond(context=500_000, requests=64, tokens=8192)
    assert far == (
        "Step times: a context of 500,000 tokens is beyond the measured 131,071 (attention decode); "
        "there they go on by the closed form"
    )
    assert len(cost.beyond(context=500_000, requests=9999, tokens=99_999)) == 3


def test_parameters_are_one_record():
    parameters = COSTS["moe"].parameters
    assert parameters.shape == (1,)
    assert parameters.dtype == COST_DTYPE


def test_a_bare_attention_shape_is_not_enough():
    bare = ModelSpec.from_config({"num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 64}, "bare")
    with pytest.raises(KvsimError, match="hidden_size of bare is needed"):
        StepCost(bare, catalog.gpu("L4"))


def test_impossible_settings_are_one_clear_line():
    model, gpu = catalog.model("Llama-3.1-8B"), catalog.gpu("H100 SXM")
    with pytest.raises(KvsimError, match="tensor_parallel_size: 64 ranks do not divide the 32"):
        StepCost(model, gpu, tensor_parallel_size=64)
    with pytest.raises(KvsimError, match="kv_cache_dtype: 'int3'"):
        StepCost(model, gpu, kv_cache_dtype="int3")


@pytest.mark.skipif(numba_config.DISABLE_JIT, reason="speed of compiled code")
@pytest.mark.parametrize("first", [1, 512], ids=["decode", "mixed"])
def test_a_call_is_fast(first):
    """128 requests in a fraction of a microsecond, called from compiled code (tests/benchmarks: 0.3 us)."""
    from kvsim.compiled import compiled

    @compiled
    def many(parameters, scheduled, computed, count):
        total = 0.0
        for i in range(count):
            computed[0] = i
            total += step_time(parameters, scheduled, computed, 128, 0)
        return total

    parameters = COSTS["l40s"].parameters
    scheduled, computed = np.ones(128, np.int32), np.full(128, 2000, np.int32)
    scheduled[0] = first
    many(parameters, scheduled, computed, 1)
    best = math.inf
    for _ in range(5):
        begun = time.perf_counter()
        many(parameters, scheduled, computed, 20_000)
        best = min(best, time.perf_counter() - begun)
    assert best / 20_000 < 1.2e-6  # the margin is for busy machines


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
