"""--quantization and --dtype change what the weights and the cache weigh, or are refused."""

import numpy as np
import pytest

from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.cost import StepCost, StepShape
from kvsim.gpu.memory import KVCacheOptions, plan_for_model
from kvsim.gpu.quantization import served_as
from kvsim.gpu.startup import estimate_available
from kvsim.gpu.weights import loaded_bytes
from kvsim.rules import rules_for

MODEL, GPU = catalog.model("Qwen3-8B"), catalog.gpu("RTX 4090")


def weight_bytes(method, version="0.33"):
    return served_as(MODEL, version, method).weight_dtype_bytes


@pytest.mark.parametrize(
    ("method", "size"),
    [
        (None, 2),
        ("fp8", 1.0),
        ("FP8", 1.0),
        ("fp8_per_tensor", 1.0),
        ("int8_per_channel_weight_only", 1.0),
        ("modelopt", 1.0),
        ("mxfp8", 1.03125),
        ("modelopt_fp4", 0.5625),
        ("mxfp4", 0.53125),
        ("awq", 0.51953125),
        ("awq_marlin", 0.51953125),
        ("gptq", 0.51953125),
        ("gptq_marlin", 0.51953125),
    ],
)
def test_bytes_of_a_weight(method, size):
    assert weight_bytes(method) == size


def test_releases_know_different_methods():
    assert weight_bytes("bitsandbytes", "0.16") == 0.5625
    with pytest.raises(
        KvsimError, match=r"^quantization: 'bitsandbytes' is not a method of vLLM 0.33; one of"
    ):
        weight_bytes("bitsandbytes")
    with pytest.raises(KvsimError, match=r"not a method of vLLM 0\.16"):
        weight_bytes("mxfp8", "0.16")


def test_every_method_of_the_release_is_answered():
    with pytest.raises(KvsimError) as told:
        weight_bytes("banana")
    for method in str(told.value).partition("one of ")[2].split(", "):
        try:
            assert weight_bytes(method) < 2
        except KvsimError as error:
            assert "how many bits" in str(error)  # noqa: PT017


def test_a_quantised_model_takes_a_method_that_can_hold_it():
    fp8, int4 = catalog.model("Qwen3-8B-FP8"), catalog.model("Qwen3-8B-AWQ")
    assert served_as(fp8, "0.33", "compressed-tensors") == fp8
    assert served_as(fp8, "0.33", "fp8") == fp8
    assert served_as(int4, "0.33", "gptq_marlin") == int4
    with pytest.raises(KvsimError, match="awq contradicts Qwen3-8B-FP8, whose weights are fp8; leave it out"):
        served_as(fp8, "0.33", "awq")


def test_the_estimate_and_the_step_follow_the_weights():
    def available(model):
        return estimate_available(model, GPU, rules_for("0.33")).available_bytes

    fp8 = served_as(MODEL, "0.33", "fp8")
    assert available(fp8) - available(MODEL) == loaded_bytes(MODEL) - loaded_bytes(fp8) > 6 << 30
    one = StepShape(np.array([1], np.int32), np.array([100], np.int32))
    wide, narrow = (StepCost(model, GPU).seconds(one) for model in (MODEL, fp8))
    assert 1.3 * narrow < wide < 2 * narrow


def test_float32_doubles_weights_and_cache():
    wide = served_as(MODEL, "0.33", dtype="float32")
    assert loaded_bytes(wide) == 2 * loaded_bytes(MODEL)
    options = KVCacheOptions(max_model_len=1024)
    blocks = [plan_for_model(model, 1 << 30, options).bytes_per_block[0] for model in (MODEL, wide)]
    assert blocks[1] == 2 * blocks[0]
    shape = StepShape(np.full(64, 100, np.int32), np.full(64, 2000, np.int32))
    narrow, twice = (StepCost(model, GPU).seconds(shape) for model in (MODEL, wide))
    assert 1.6 * narrow < twice < 2.2 * narrow


def test_other_dtypes():
    assert served_as(MODEL, "0.33", dtype="auto") == MODEL
    assert loaded_bytes(served_as(MODEL, "0.33", dtype="half")) == loaded_bytes(MODEL)
    with pytest.raises(KvsimError, match=r"^dtype: 'int3' is not known; one of auto, bfloat16"):
        served_as(MODEL, "0.33", dtype="int3")
