"""Memory predicted part by part: founding table, founding conclusion, classes of models, releases."""

import pytest

import kvsim
from kvsim.errors import KvsimError
from kvsim.gpu import catalog
from kvsim.gpu.activations import activation_peaks, image_tokens
from kvsim.gpu.memory_setup import MemorySetup
from kvsim.gpu.prediction import weight_bytes
from kvsim.gpu.releases import batch_limits, release

GIB = 1 << 30
MIB = 1 << 20
FOUNDING = {
    "gpu_memory_gib": 23.99,
    "vllm_version": "0.16",
    "gpu_memory_utilization": 0.9,
    "limit_mm_per_prompt": {"image": 1},
    "mm_processor_kwargs": {"max_pixels": 1_003_520},
}


def founding(max_model_len, max_num_seqs, max_num_batched_tokens, **more):
    return kvsim.plan_capacity(
        "Qwen3-VL-2B",
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        **(FOUNDING | more),
    )


def test_founding_table_by_prediction():
    rows = [founding(4096, 5, 2048), founding(8192, 5, 2048), founding(4096, 10, 2048)]
    assert len({row.kv_cache_size_tokens for row in rows}) == 1
    assert rows[0].kv_cache_size_tokens == pytest.approx(157_952, rel=0.02)
    lower = rows[0].available - founding(4096, 5, 4096).available
    assert lower / MIB == pytest.approx(290, rel=0.15)


@pytest.mark.parametrize(("available", "tokens"), [(18_115_198_976, 157_952), (9_706 * 1_835_008, 155_296)])
def test_founding_table_from_the_exact_bytes(available, tokens):
    plan = founding(4096, 5, 2048, available_kv_cache_bytes=available)
    assert (plan.kv_cache_size_tokens, plan.prediction) == (tokens, None)
    assert plan.tokens_low == plan.tokens_high == tokens


def test_founding_conclusion():
    """Model size and utilization dominate, batched tokens are minor."""
    base = founding(4096, 5, 2048).kv_cache_size_tokens
    batched = founding(4096, 5, 4096).kv_cache_size_tokens
    utilization = founding(4096, 5, 2048, gpu_memory_utilization=0.5).kv_cache_size_tokens
    larger = kvsim.plan_capacity("Qwen3-VL-8B-Instruct", max_model_len=4096, max_num_seqs=5, **FOUNDING)
    assert 0.97 < batched / base < 1
    assert utilization / base < 0.6
    assert larger.kv_cache_size_tokens / base < 0.3


def setup(**changes):
    facts = {
        "total_bytes": 24 * GIB,
        "gpu_name": "RTX 4090",
        "gpu_memory_utilization": 0.9,
        "max_model_len": 8192,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
    }
    return MemorySetup(**(facts | changes))


@pytest.mark.parametrize(
    ("model", "tp", "gib"),
    [
        ("Llama-3.1-8B", 1, 14.99),  # "Model loading took" of published logs
        ("Qwen2.5-1.5B-Instruct", 1, 2.888),
        ("Qwen3-30B-A3B", 1, 56.88),
        ("Qwen3-8B-AWQ", 1, 5.71),
        ("Qwen3-VL-2B", 1, 4.24),
        ("openai/gpt-oss-120b", 1, 64.38),
        ("DeepSeek-R1", 8, 79.74),
        ("phi-4-GPTQ", 1, 8.51),
    ],
)
def test_weights_are_those_that_logs_print(model, tp, gib):
    predicted = weight_bytes(catalog.model(model), setup(tensor_parallel_size=tp, gpu_name="H100 SXM")) / GIB
    assert predicted == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(("batched", "gib"), [(29_000, 2.99), (20_000, 2.07)])
def test_activation_of_a_dense_model(batched, gib):
    peaks = activation_peaks(
        catalog.model("Llama-3.1-8B"), release("0.6.4"), setup(max_num_batched_tokens=batched)
    )
    assert peaks["language model"] / GIB == pytest.approx(gib, abs=0.015)


def test_activation_grows_by_the_measured_bytes_a_token():
    model = catalog.model("Qwen2.5-1.5B-Instruct")
    peaks = [
        activation_peaks(model, release("0.27"), setup(max_num_batched_tokens=n))["language model"]
        for n in (4096, 8192)
    ]
    assert (peaks[1] - peaks[0]) / 4096 == 62_976


def test_an_image_limit_lowers_the_encoder_and_none_switches_it_off():
    model = catalog.model("Qwen3-VL-2B")
    assert image_tokens(model, setup()) == 16_384
    assert image_tokens(model, setup(image_pixels=1_003_520)) == 980
    peaks = [
        activation_peaks(model, release("0.16"), setup(**one))
        for one in ({}, {"image_pixels": 1_003_520}, {"images_per_prompt": 0})
    ]
    assert peaks[0]["vision encoder"] > 4 * peaks[1]["vision encoder"]
    assert "vision encoder" not in peaks[2]


def test_tensor_parallel_keeps_what_every_rank_holds():
    model = catalog.model("DeepSeek-R1")
    eighth = weight_bytes(model, setup()) / 8
    assert weight_bytes(model, setup(tensor_parallel_size=8)) > eighth


def test_cuda_graphs_are_counted_from_0_20_on_and_never_with_eager():
    def graphs(**flags):
        plan = kvsim.plan_capacity("Qwen3-8B", "RTX 5090", max_model_len=8192, **flags)
        return plan.prediction.cuda_graphs

    assert graphs(vllm_version="0.19") == 0
    assert graphs(vllm_version="0.20") > 0
    assert graphs(vllm_version="0.33") > 0
    assert graphs(vllm_version="0.33", enforce_eager=True) == 0


def test_defaults_follow_the_release():
    old, new = (kvsim.plan_capacity("Qwen3-8B", "B200", vllm_version=v) for v in ("0.16", "0.33"))
    assert (old.gpu_memory_utilization, new.gpu_memory_utilization) == (0.9, 0.92)
    assert (old.max_num_batched_tokens, new.max_num_batched_tokens) == (8192, 16384)


@pytest.mark.parametrize("text", ["0.34", "1.0", "", " ", "x" * 500, "0.16.0.0.0", "-1"])
def test_versions_that_are_not(text):
    if not text.strip():
        assert not release(text).stated
        return
    with pytest.raises(KvsimError, match="vllm_version"):
        release(text)


@pytest.mark.parametrize(
    ("version", "model", "v2"),
    [
        ("0.21", "Qwen3-8B", False),
        ("0.22", "Qwen3-8B", True),
        ("0.22", "Qwen3-8B-AWQ", False),
        ("0.22", "Llama-3.1-8B", False),
        ("0.23", "Llama-3.1-8B", True),
        ("0.24", "Qwen3-8B-AWQ", True),
        ("0.24", "Qwen2.5-1.5B-Instruct", False),
        ("0.25", "Qwen2.5-1.5B-Instruct", True),
        ("0.25", "Qwen3-30B-A3B", False),
        ("0.28", "Qwen/Qwen3.5-27B", False),
        ("0.29", "Qwen3-30B-A3B", True),
        ("0.33", "Qwen/Qwen3.5-27B", True),
    ],
)
def test_which_models_run_model_runner_v2(version, model, v2):
    assert release(version).runs_v2(catalog.model(model)) == v2


def sampler(version, model="Llama-3.1-8B", **changes):
    """Bytes per row and vocabulary entry at the sampler's peak."""
    settled, spec = setup(max_num_batched_tokens=256, **changes), catalog.model(model)
    rows = min(settled.max_num_seqs, settled.max_num_batched_tokens)
    peak = activation_peaks(spec, release(version), settled)["sampler"]
    return (peak - 2 * spec.hidden_size * 256) / (rows * spec.vocab_size)


def test_the_sampler_sorted_until_0_16_and_v2_hardly_allocates():
    assert [sampler(v) for v in ("0.7", "0.16", "0.21", "0.23", "0.26", "0.28")] == [36, 34, 14, 6, 6, 2]
    assert sampler("0.19") == 14 + 4 * 128 / 256  # and the kernel's table
    assert sampler("0.19", max_num_seqs=4) == 34  # a few rows are sorted as before


def test_v0_profiled_one_request_for_each_picture():
    model = catalog.model("Qwen/Qwen2.5-VL-7B-Instruct")
    tokens = {"max_num_batched_tokens": 8192}
    peaks = activation_peaks(model, release("0.6.6"), setup(**tokens))
    assert "vision encoder" not in peaks  # the largest picture does not fit into 8,192 tokens
    assert peaks["sampler"] < 0.1 * GIB < peaks["language model"]


def limits(version, gib, name, **given):
    model = catalog.model(given.pop("model", "Qwen3-8B"))
    length = given.pop("max_model_len", 32768)
    return batch_limits(release(version), gib << 30, name, model, max_model_len=length, **given)


def test_batch_limits_of_each_release():
    assert limits("0.27", 180, "B200") == (8192, 1024)
    assert limits("0.28", 180, "B200") == (16384, 1024)
    assert limits("0.8", 80, "A100-80GB") == (8192, 1024)
    assert limits("0.9", 80, "A100-80GB") == (2048, 256)
    assert limits("0.16", 24, "RTX 4090", max_num_seqs=2, max_model_len=512) == (1024, 2)
    assert limits("0.16", 24, "RTX 4090", max_num_batched_tokens=64) == (64, 64)
    assert limits("0.6", 24, "RTX 4090", max_model_len=4096) == (4096, 256)
    vision = "Qwen/Qwen2.5-VL-7B-Instruct"
    assert limits("0.6", 24, "RTX 4090", max_model_len=4096, model=vision) == (5120, 256)
