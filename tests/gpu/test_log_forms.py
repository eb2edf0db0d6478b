"""`kvsim capacity --log` on the forms of every release: what is read, that it adds up, and profiles of it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_forms import GIB, PREFIXES, Server, log, refusal

import kvsim
from kvsim.errors import KvsimError
from kvsim.gpu.log_comparison import activation_gib, adds_up, differences, non_torch_gib
from kvsim.gpu.log_facts import LogFacts, facts_of
from kvsim.gpu.log_reader import read_log, read_text
from kvsim.gpu.profile_file import read_profile, save_profile
from kvsim.gpu.profiles import plan_with_profile, profile_of

V0 = [Server(version, "V0") for version in ("0.6.6", "0.7.3", "0.8.5.post1", "0.9.2", "0.10.2")]
V1 = [
    Server(version)
    for version in (
        *("0.7.3", "0.8.5.post1", "0.9.2", "0.10.2", "0.11.2", "0.12.0", "0.13.0", "0.14.1", "0.15.1"),
        *("0.16.0", "0.17.1", "0.18.0", "0.19.1", "0.20.2", "0.21.0", "0.22.1", "0.24.0", "0.25.1"),
        *("0.26.0", "0.27.1", "0.28.0", "0.30.0", "0.33.0"),
    )
]


def name(server: Server) -> str:
    return f"{server.version} {server.engine}"


@pytest.mark.parametrize("server", V0 + V1, ids=name)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_release_is_read(server, prefix):
    seen = read_text(log(server, prefix))
    assert (seen.version, seen.engine, seen.starts) == (server.version, server.engine, 1)
    assert seen.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert seen.weights_gib == pytest.approx(server.weights / GIB, abs=0.006)
    assert seen.max_concurrency == pytest.approx(server.concurrency, abs=0.006)
    assert (seen.max_num_batched_tokens, seen.max_num_seqs, seen.enforce_eager) == (8192, 256, False)
    assert seen.num_gpu_blocks == (server.blocks if server.engine == "V0" or server.minor <= 7 else None)
    assert seen.kv_tokens == (None if server.engine == "V0" or server.minor <= 7 else server.tokens)
    if server.engine == "V0" or server.minor >= 9:
        assert seen.available_gib == pytest.approx(server.available / GIB, abs=0.006)


@pytest.mark.parametrize("server", V0 + [s for s in V1 if s.minor >= 10], ids=name)
def test_the_parts_add_up(server):
    seen = read_text(log(server))
    left, rounding = adds_up(seen)
    assert abs(left) <= rounding
    assert activation_gib(seen) == pytest.approx(server.activation / GIB, abs=0.011)
    assert non_torch_gib(seen) == pytest.approx(server.non_torch / GIB, abs=0.011)


def test_a_part_that_is_missing_is_told():
    other = Server("0.33.0")
    seen = read_text(log(other).replace("Available KV cache memory: ", "Available KV cache memory: 1"))
    assert adds_up(seen)[0] < -50


@pytest.mark.parametrize("server", V0 + [s for s in V1 if s.minor >= 9], ids=name)
def test_a_profile_brings_the_prediction_to_the_log(tmp_path, server):
    seen = read_text(log(server))
    facts = {"gpu_memory_gib": 79.25, "vllm_version": server.version, "engine": server.engine} | seen.flags()
    facts["gpu_memory_utilization"] = 0.9

    def tokens_at(available):
        return kvsim.plan_capacity(
            "Llama-3.1-8B", available_kv_cache_bytes=available, **facts
        ).kv_cache_size_tokens

    path = tmp_path / "profile.json"
    save_profile(profile_of(seen, kvsim.plan_capacity("Llama-3.1-8B", **facts), tokens_at, facts), path)
    profile = read_profile(path)
    plan = plan_with_profile(profile, "Llama-3.1-8B", **facts)
    near = 1e-9 if seen.kv_tokens is not None or seen.available_bytes is not None else 1e-3
    assert plan.kv_cache_size_tokens == pytest.approx(server.tokens, rel=near)
    assert not plan.estimated
    assert plan.tokens_low == plan.tokens_high == plan.kv_cache_size_tokens
    assert plan.notes == ()
    wider = plan_with_profile(profile, "Llama-3.1-8B", **facts | {"max_num_batched_tokens": 32_768})
    assert "observed with max_num_batched_tokens 8192" in wider.notes[0]


@pytest.mark.parametrize("minor", [6, 7, 9, 16, 22, 33])
def test_refusals_of_every_generation(minor):
    server = Server(f"0.{minor}.0", "V0" if minor <= 6 else "V1")
    trace = 'Traceback (most recent call last):\n  File "core.py", line 1, in run\n    raise ValueError(\n'
    seen = read_text(log(server).partition("Available")[0] + trace + refusal(minor) + "\n")
    assert seen.refusal.startswith(
        "The model's max seq len" if minor <= 6 else "To serve at least one request"
    )
    assert seen.longest == (None if minor == 7 else 23_632)
    assert seen.needed_gib == (None if minor <= 6 else 16.0)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "ValueError: Free memory on device cuda:0 (69.2/79.19 GiB) on startup is less than desired GPU "
        "memory utilization (0.92, 72.85 GiB). Decrease GPU memory utilization",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a token.",
    ],
)
def test_other_refusals(text):
    assert read_text(f"(EngineCore_DP0 pid=1) ERROR [core.py:1] {text}\n").refusal


def test_the_poorest_of_several_ranks_counts():
    rich, poor = Server("0.11.2"), Server("0.11.2", non_torch=GIB)
    text = "".join(
        f"(Worker_TP{rank} pid={100 + rank}) {line}\n"
        for rank, server in enumerate((rich, poor, rich))
        for line in log(server, "plain").splitlines()[3:]
    )
    seen = read_text(log(rich, "plain").splitlines()[2] + "\n" + text)
    assert seen.ranks == 3
    assert seen.available_gib == pytest.approx(poor.available / GIB, abs=0.006)
    assert seen.non_torch_gib == 1.0
    assert seen.kv_tokens == poor.tokens
    assert abs(adds_up(seen)[0]) <= adds_up(seen)[1]


def test_the_last_of_several_start_ups_is_read():
    first, second = Server("0.10.2", utilization=0.5), Server("0.20.2")
    seen = read_text(log(first) + log(second) + "INFO vLLM API server version 0.20.2\n")
    assert (seen.version, seen.starts, seen.kv_tokens) == ("0.20.2", 3, second.tokens)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_line_ends_and_encodings(tmp_path, end, encoding):
    path = tmp_path / "start.log"
    path.write_bytes(log(Server("0.33.0"), "colour", end).encode(encoding))
    assert read_log(path).kv_tokens == Server("0.33.0").tokens


def test_bytes_that_are_no_text_do_not_matter(tmp_path):
    path = tmp_path / "start.log"
    path.write_bytes(b"\xe9\xff \x00 caf\xe9\n" + log(Server("0.9.2")).encode() + bytes(range(256)))
    assert read_log(path).version == "0.9.2"


@pytest.mark.parametrize("what", ["huge", "folder", "empty"])
def test_files_that_are_no_log(tmp_path, what):
    path = tmp_path / "start.log"
    if what == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 32 if what == "huge" else 0)
    with pytest.raises(KvsimError, match=r"start\.log") as problem:
        read_log(path)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "line", ["Engine 000: GPU KV cache usage: 0.1%\n", "x GiB\n", "GiB KV cache is needed "]
)
def test_a_long_log_is_read_at_once(tmp_path, line):
    path = tmp_path / "server.log"
    path.write_text(log(Server("0.33.0")) + line * ((60 << 20) // len(line)))
    started = time.process_time()
    assert read_log(path).kv_tokens == Server("0.33.0").tokens
    assert time.process_time() - started < 2


def test_causes_follow_the_direction_and_what_the_log_tells():
    server = Server("0.33.0", weights=round(17 * GIB), non_torch=2 * GIB)
    seen = read_text(log(server))
    plan = kvsim.plan_capacity("Llama-3.1-8B", "A100 80GB", **seen.flags() | {"gpu_memory_utilization": 0.9})
    found = {row.part: row.cause for row in differences(seen, plan.prediction)}
    assert "padded experts" in found["weights"]
    assert "another process" in found["non-torch"]
    bare = LogFacts(activation_gib=5.0)
    assert "max_num_seqs not in the log" in differences(bare, plan.prediction)[0].cause


TEXT = log(Server("0.33.0"), "colour") + refusal(33)


@given(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)), st.text(max_size=30))
def test_a_damaged_log_never_breaks_the_reader(start, end, noise):
    text = TEXT[:start] + noise + TEXT[end:]
    read_text(text)
    adds_up(facts_of(text))
