"""Profiles: only what a log printed is called observed, and only where it holds for the server at hand."""

import json

import pytest

import kvsim
from kvsim.errors import KvsimError
from kvsim.gpu.log_facts import facts_of
from kvsim.gpu.profile_file import read_profile, save_profile
from kvsim.gpu.profiles import plan_with_profile, profile_of

GIB = 1 << 30
LOG = """\
INFO core.py] Initializing a V1 LLM engine (v0.19.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', \
max_seq_len=32768, tensor_parallel_size=1
INFO gpu_model_runner.py] Model loading took 14.99 GiB memory and 3.1 seconds
INFO gpu_worker.py] Available KV cache memory: 5.05 GiB
INFO kv_cache_utils.py] GPU KV cache size: 41,408 tokens
"""
SAME = {"gpu": "RTX 4090", "vllm_version": "0.19", "max_model_len": 32_768}


@pytest.fixture
def content():
    seen = facts_of(LOG)
    plan = kvsim.plan_capacity("Llama-3.1-8B", **SAME)
    return profile_of(seen, plan, flags=SAME)


def planned(tmp_path, content, model="Llama-3.1-8B", **changes):
    save_profile(content, tmp_path / "profile.json")
    return plan_with_profile(read_profile(tmp_path / "profile.json"), model, **SAME | changes)


def test_a_profile_holds_what_was_printed_and_says_what_was_not(tmp_path, content):
    assert content["parts_gib"] == {"weights": 14.99}
    assert set(content["filled_gib"]) == {"activation", "cuda_graphs", "non_torch"}
    plan = planned(tmp_path, content)
    assert plan.available == pytest.approx(5.05 * GIB, abs=1000)
    assert not plan.estimated  # the sum is the log's
    assert plan.observed == ("weights",)
    assert plan.sources["weights"] == "observed, from the profile"
    assert plan.sources["activation"] == "predicted, the profile's log does not print it"
    assert plan.sources["non_torch"].startswith("what is left of the log's sum")


@pytest.mark.parametrize(
    ("changes", "anew", "says"),
    [
        ({"max_num_seqs": 1024}, {"activation"}, "max_num_seqs 256, this server has 1024"),
        ({"max_num_batched_tokens": 8192}, {"activation"}, "max_num_batched_tokens 2048"),
        ({"tensor_parallel_size": 2}, {"weights", "activation", "non_torch"}, "tensor_parallel_size 1"),
        (
            {"vllm_version": "0.16"},
            {"activation", "non_torch"},
            "vllm_version 0.19.0, this server has 0.16.0",
        ),
        ({"gpu": "L4"}, {"activation", "non_torch"}, "gpu RTX 4090, this server has L4"),
        ({"quantization": "fp8"}, {"weights"}, "quantization not given, this server has fp8"),
    ],
)
def test_a_part_that_depends_on_a_changed_setting_is_predicted_anew(tmp_path, content, changes, anew, says):
    plan = planned(tmp_path, content, **changes)
    predicted = kvsim.plan_capacity("Llama-3.1-8B", **SAME | changes).prediction
    assert {"weights", "activation", "non_torch"} - set(plan.sources) == anew
    assert all(getattr(plan.prediction, part) == getattr(predicted, part) for part in anew)
    assert plan.estimated
    assert any(says in note for note in plan.notes)
    kept, again = next(note for note in plan.notes if "predicted anew" in note).split("used as kept")
    assert all(part.replace("_", "-") in again for part in anew)
    assert all(part.replace("_", "-") in kept for part in {"weights", "non_torch"} - anew)


def test_patches_cards_alike_and_utilization_change_nothing(tmp_path, content):
    for changes in ({"vllm_version": "0.19.1"}, {"gpu": None, "gpu_memory_gib": 23.6}):
        assert not [note for note in planned(tmp_path, content, **changes).notes if "profile" in note]
    assert not planned(tmp_path, content, gpu_memory_utilization=0.8).estimated


def test_another_model_is_refused(tmp_path, content):
    with pytest.raises(
        KvsimError, match=r"observed with .*Llama-3.1-8B.*, which says nothing about .*Qwen3-8B"
    ):
        planned(tmp_path, content, "Qwen3-8B")
    moved = content | {"server": content["server"] | {"model": "no-such-folder"}}
    plan = planned(tmp_path, moved)
    assert any("taken to be the same" in note for note in plan.notes)


def test_eager_servers_pay_for_no_graphs(tmp_path):
    seen = facts_of(
        "(v0.30.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', tensor_parallel_size=1\n"
        "Model loading took 15.0 GiB memory\nEstimated CUDA graph memory: 0.23 GiB total\n"
        "Available KV cache memory: 56.21 GiB\n"
    )
    facts = {"gpu": "A100-80GB SXM", "vllm_version": "0.30"}
    content = profile_of(seen, kvsim.plan_capacity("Llama-3.1-8B", **facts), flags=facts)
    assert planned(tmp_path, content, **facts).prediction.cuda_graphs == round(0.23 * GIB)
    plan = planned(tmp_path, content, **facts, enforce_eager=True)
    assert plan.prediction.cuda_graphs == 0
    assert any("enforce_eager" in note for note in plan.notes)


def test_parts_that_exceed_the_sum_are_cut_and_said(tmp_path):
    seen = facts_of(LOG.replace("14.99", "17.99"))
    content = profile_of(seen, kvsim.plan_capacity("Llama-3.1-8B", **SAME), flags=SAME)
    assert content["parts_gib"]["weights"] == 17.99
    plan = planned(tmp_path, content)
    assert plan.available == pytest.approx(5.05 * GIB, abs=1000)
    assert "GiB that the log's sum does not hold" in " ".join(plan.sources.values())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kvsim_profile": 2}, "kvsim_profile is 2, wanted 1"),
        ({"kvsim_profile": None}, "kvsim_profile is null, wanted 1"),
        ({"kvsim_profile": True}, "kvsim_profile is true, wanted 1"),
        ({"parts_gib": {"weights": -5}}, "parts_gib: weights is -5, wanted GiB from 0"),
        ({"parts_gib": {"weights": "5"}}, 'parts_gib: weights is "5", wanted GiB from 0'),
        ({"parts_gib": {"weigths": 5}}, "parts_gib: 'weigths' is not a part; one of weights, activation"),
        ({"parts_gib": {}}, "parts_gib: empty"),
        ({"filled_gib": [1]}, "filled_gib: [1], wanted an object"),
        ({"rest_gib": "x"}, 'rest_gib: "x", wanted GiB'),
        (
            {"observed_with": {"max_num_seqs": "many"}},
            'observed_with: max_num_seqs is "many", wanted a whole',
        ),
        ({"observed_with": {"version": 19}}, "observed_with: version is 19, wanted text"),
        ({"observed_with": {"enforce_eager": 1}}, "observed_with: enforce_eager is 1, wanted true or false"),
        ({"observed_with": {"weights_gib": []}}, "observed_with: weights_gib is [], wanted a number"),
        ({"server": {"tensor_parallel_size": 1.5}}, "server: tensor_parallel_size is 1.5, wanted a whole"),
        ({"server": "x"}, 'server: "x", wanted an object'),
    ],
)
def test_a_wrong_value_is_told_by_its_name(tmp_path, content, change, says):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content | change))
    with pytest.raises(KvsimError) as refusal:
        read_profile(path)
    assert str(refusal.value).startswith(f"{path}: {says}")


def test_a_byte_order_mark_is_read_over(tmp_path, content):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content), encoding="utf-8-sig")
    assert read_profile(path).parts == {"weights": round(14.99 * GIB)}
