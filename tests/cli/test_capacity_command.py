"""`kvsim capacity`, `kvsim models`, `kvsim gpus` as a person runs them."""

import json
import os

import pytest

from kvsim.cli.main import main


def kvsim(capsys, *args):
    with pytest.raises(SystemExit) as end:
        main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    return end.value.code, out, err


def test_lines_bridge_bar_and_range(capsys):
    code, out, _ = kvsim(capsys, "capacity", "Qwen3-8B", "--gpu", "H100", "--max-model-len", "32k")
    assert code == 0
    assert "Available KV cache memory: " in out
    assert "Maximum concurrency for 32,000 tokens per request: " in out
    for part in ("the card", "x utilization", "- weights", "- activation peak", "= KV cache", "one block"):
        assert part in out
    assert "[WWWW" in out
    assert "Honest range: " in out


def test_a_whole_command_line(capsys):
    line = "capacity --gpu H100 -- vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --port 8000"
    code, out, _ = kvsim(capsys, *line.split())
    assert code == 0
    assert "on H100 SXM x 2" in out
    assert "Ignored, no bearing on capacity: --port 8000" in out


def test_json(capsys):
    code, out, _ = kvsim(capsys, "capacity", "Qwen3-8B", "--gpu", "H100", "--json")
    assert code == 0
    assert json.loads(out)["kv_cache_size_tokens"] > 100_000


def test_a_refusal_is_an_answer(capsys):
    code, out, _ = kvsim(capsys, "capacity", "Llama-3.1-8B", "--gpu", "4090", "--max-model-len", "131072")
    assert code == 0
    assert "vLLM refuses to start: To serve at least one request" in out
    assert "Largest max_model_len that fits: " in out
    assert "--tensor-parallel-size 2" in out


def test_sweep_and_plot(capsys, tmp_path):
    picture = tmp_path / "sweep.png"
    sweep = ["--sweep", "gpu_memory_utilization=0.5:0.9:0.2", "--sweep", "block_size=8,16"]
    code, out, _ = kvsim(capsys, "capacity", "Qwen3-8B", "--gpu", "H100", *sweep, "--plot", picture)
    assert code == 0
    assert len(out.splitlines()) >= 7
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_last_line_of_an_evaluation_is_its_total(capsys, tmp_path):
    path = tmp_path / "logs.csv"
    path.write_text(
        "id,engine,version,model,gpu,gpu_memory_utilization,available_kv_gib,kv_tokens,status\n"
        "a,v1,0.19,Qwen/Qwen3-8B,RTX 4090,0.9,4.5,32768,ok\n"
    )
    code, out, _ = kvsim(capsys, "capacity", "--evaluate", path, "--rows")
    assert code == 0
    assert out.splitlines()[-1].startswith("total: arithmetic 1 of 1 exact; 1 rows predicted; single GPU")


@pytest.mark.parametrize("what", ["models", "gpus"])
def test_the_catalog_names_its_sources(capsys, what):
    code, out, _ = kvsim(capsys, what, "--json")
    assert code == 0
    assert all(row["source"] for row in json.loads(out))
    code, out, _ = kvsim(capsys, what)
    assert "Source" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "MODEL is missing"),
        (["Qwen3-8B"], "gpu: missing"),
        (["Qwen3-8B", "--gpu", "H100", "--max-model-len", "x"], "--max-model-len: 'x'"),
        (["Qwen3-8B", "--gpu", "H100", "--plot", "x.png"], "--plot: wants a --sweep"),
        (["no/config.json", "--gpu", "H100"], "is not a regular file"),
        (["--evaluate", "no.csv"], "no.csv: no such file"),
        (["--log", "."], ".: is a folder; name a regular file"),
        (["--log", "x", "--sweep", "block_size=16,32"], "--sweep: has no effect beside --log"),
        (["--log", "x", "--plot", "x.png"], "--plot: has no effect beside --log"),
        (["--log", "x", "--profile", "y"], "--profile: has no effect beside --log"),
        (["--evaluate", "x", "Qwen3-8B"], "MODEL: has no effect beside --evaluate"),
        (["--evaluate", "x", "--log", "y"], "--log: has no effect beside --evaluate"),
        (["--evaluate", "x", "--gpu", "L4"], "--gpu: has no effect beside --evaluate"),
        (["Qwen3-8B", "--gpu", "L4", "--rows"], "--rows: wants an --evaluate"),
        (["Qwen3-8B", "--gpu", "L4", "--save-profile", "x"], "--save-profile: wants a --log"),
    ],
)
def test_bad_input_is_one_line(capsys, args, says):
    code, out, err = kvsim(capsys, "capacity", *args)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    ["", "[", "[]", "{}", '{"hidden_size": "x"}', '{"num_hidden_layers": 1e9}', "\x00", '{"a":' * 2000],
)
def test_broken_configs_are_one_line(capsys, tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    code, _, err = kvsim(capsys, "capacity", path, "--gpu", "H100")
    assert code == 2
    assert len(err.splitlines()) == 1


LOG = """\
INFO core.py] Initializing a V1 LLM engine (v0.19.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', \
max_seq_len=32768, tensor_parallel_size=1
INFO gpu_model_runner.py] Model loading took 14.99 GiB memory and 3.1 seconds
INFO gpu_worker.py] Available KV cache memory: 5.05 GiB
INFO kv_cache_utils.py] GPU KV cache size: 41,408 tokens
"""


def test_a_log_beside_the_prediction(capsys, tmp_path):
    log, profile = tmp_path / "start.log", tmp_path / "profile.json"
    log.write_text(LOG)
    code, out, _ = kvsim(capsys, "capacity", "--log", log, "--gpu", "RTX 4090", "--save-profile", profile)
    assert code == 0
    assert "as the log prints it" in out
    assert "weights" in out.partition("Beside the prediction")[2]
    assert json.loads(profile.read_text())["parts_gib"]["weights"] == 14.99
    code, out, _ = kvsim(capsys, "capacity", "Llama-3.1-8B", "--gpu", "4090", "--profile", profile, "--json")
    assert json.loads(out)["prediction"]["weights"] == round(14.99 * (1 << 30))
    code, out, err = kvsim(capsys, "capacity", "--log", tmp_path / "no.log")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_a_profile_brings_a_plan_to_its_log(capsys, tmp_path):
    log, profile = tmp_path / "start.log", tmp_path / "profile.json"
    log.write_text(LOG)
    code, out, _ = kvsim(capsys, "capacity", "--log", log, "--gpu", "RTX 4090", "--save-profile", profile)
    assert (code, out.splitlines()[-1]) == (0, f"Observed parts kept in {profile}")
    same = ["Llama-3.1-8B", "--gpu", "4090", "--vllm-version", "0.19", "--max-model-len", "32768"]
    code, out, err = kvsim(capsys, "capacity", *same, "--profile", profile)
    assert (code, err) == (0, "")
    assert "GPU KV cache size: 41,408 tokens" in out
    assert "observed, from the profile" in out
    assert "estimate" not in out
    code, out, _ = kvsim(capsys, "capacity", "--log", log, "--json")
    assert "no_prediction" in json.loads(out)


def test_a_profile_never_takes_the_place_of_what_it_is_made_from(capsys, tmp_path):
    log, pipe, link = tmp_path / "start.log", tmp_path / "pipe", tmp_path / "link"
    log.write_text(LOG)
    os.mkfifo(pipe)
    link.symlink_to(log)
    for place, says in (
        (log, "is the file of --log"),
        (link, "is the file of --log"),
        (pipe, "a named pipe"),
    ):
        code, out, err = kvsim(capsys, "capacity", "--log", log, "--gpu", "4090", "--save-profile", place)
        assert (code, out) == (2, "")
        assert says in err
    assert log.read_text() == LOG
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "start.log"]


def test_a_profile_in_a_sweep_holds_where_it_was_observed(capsys, tmp_path):
    log, profile = tmp_path / "start.log", tmp_path / "profile.json"
    log.write_text(LOG)
    kvsim(capsys, "capacity", "--log", log, "--gpu", "RTX 4090", "--save-profile", profile)
    card = ["--gpu", "RTX 4090", "--vllm-version", "0.19", "--max-model-len", "8192", "--profile", profile]
    rows = ["--sweep", "model=Llama-3.1-8B,Qwen3-4B", "--json"]
    code, out, _ = kvsim(capsys, "capacity", "Llama-3.1-8B", *card, *rows)
    assert code == 0
    same, other = json.loads(out)
    assert same["observed"] == ["weights"]
    assert "says nothing about Qwen/Qwen3-4B" in other["error"]


def test_a_server_of_several_gpus_says_whose_sizes_are_shown(capsys):
    whose = "Sizes and blocks are those of one GPU; tokens and requests those of the server"
    for ranks in ("1", "4"):
        code, out, _ = kvsim(capsys, "capacity", "Qwen3-32B", "--gpu", "H100 SXM", "-tp", ranks)
        assert code == 0
        assert (whose in out) == (ranks == "4")


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["models", "qwen3-8b"], {"deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "Qwen/Qwen3-8B"}),
        (["models", "Llama", "405B"], {"meta-llama/Llama-3.1-405B"}),
        (["models", "DeepSeek-V2.5"], {"deepseek-ai/DeepSeek-V2"}),
        (["gpus", "h100"], {"H100 SXM", "H100 PCIe", "H100 NVL"}),
        (["gpus", "geforce rtx 4090"], {"RTX 4090"}),
    ],
)
def test_the_catalog_is_searched(capsys, words, rows):
    code, out, _ = kvsim(capsys, *words, "--json")
    assert code == 0
    assert {row["name"] for row in json.loads(out)} == rows


def test_nothing_in_the_catalog_is_one_line(capsys):
    code, out, err = kvsim(capsys, "gpus", "4080x")
    assert (code, out) == (2, "")
    assert err == "kvsim: gpu: '4080x' is not in the catalog; nearest: RTX 4080, RTX 5080, RTX 4090\n"


def test_a_log_says_what_it_lacks_and_what_is_not_believed(capsys, tmp_path):
    log = tmp_path / "start.log"
    log.write_text(LOG.replace("14.99", "-14.99"))
    code, out, _ = kvsim(capsys, "capacity", "--log", log, "--gpu", "4090")
    assert code == 0
    assert "Not believed, no server has this: weights -14.99" in out
    assert (
        "cannot be added up: the log does not print the card's memory and utilization, weights, non-" in out
    )
    cells = [line.split() for line in out.partition("Beside the prediction")[2].splitlines()[2:]]
    assert all(len(line) > 3 for line in cells if line)  # a cause on every line
    code, out, _ = kvsim(capsys, "capacity", "--log", log, "--gpu", "4090", "--json")
    facts = json.loads(out)
    assert "weights" in facts["missing_parts"]
    assert facts["differences"][-1]["part"] == "KV cache"
    assert facts["tokens"]["printed"] == 41_408
    assert all(row["cause"] for row in (*facts["differences"], facts["tokens"]))


@pytest.mark.parametrize("flags", [["--num-gpu-blocks-override", "4000"], ["--kv-cache-memory-bytes", "10G"]])
def test_nothing_is_called_an_estimate_where_nothing_is_estimated(capsys, flags):
    code, out, _ = kvsim(capsys, "capacity", "Qwen3-8B", "--gpu", "H100", *flags)
    assert code == 0
    assert "estimate" not in out
    assert "Honest range" not in out


def test_a_docker_command_with_a_config_file(capsys, tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text("tensor-parallel-size: 2\nmax-model-len: 16k\nport: 1\n")
    line = (
        f"docker run -e VLLM_USE_V1=0 vllm/vllm-openai:v0.9.1 --model Qwen/Qwen3-8B --config {path} --prot 2"
    )
    code, out, _ = kvsim(capsys, "capacity", "--gpu", "A100 80GB", "--", line)
    assert code == 0
    assert "on A100-80GB SXM x 2, vLLM 0.9.1, engine V0: max_model_len 16,000" in out
    assert "# cuda blocks: " in out
    assert "Note: unknown to vLLM 0.6 to 0.33: --prot 2 (nearest: --port)" in out
    assert "Ignored, no bearing on capacity: --port=1" in out


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_a_terminal_of_any_width(monkeypatch, width, colour):
    from io import StringIO

    from rich.console import Console

    from kvsim.gpu.capacity import plan_capacity
    from kvsim.report.capacity import print_capacity

    system = "truecolor" if colour else None
    out = Console(file=StringIO(), width=width, force_terminal=colour, color_system=system, highlight=False)
    print_capacity(plan_capacity("Llama-3.1-8B", "RTX 4090", max_model_len=131_072), out)
    text = out.file.getvalue()
    assert ("\x1b[" in text) == colour
    assert "--gpu-memory-utilization 0.98" in text
    assert "…" not in text


def test_sweeps_name_flags_as_the_command_line_does(capsys):
    sweep = ["--sweep", "tp=1,2,3", "--sweep", "max-model-len=4k,8K"]
    code, out, _ = kvsim(capsys, "capacity", "Qwen3-8B", "--gpu", "H100", *sweep)
    assert code == 0
    assert "tensor_parallel_size" in out
    assert "4000" in out
    assert "8192" in out
    assert out.splitlines()[-1] == "2 of 6 settings are not allowed"
    code, out, _ = kvsim(capsys, "capacity", "Qwen3-8B", "--sweep", "gpu=L4,H100", "--json")
    assert [row["gpu"] for row in json.loads(out)] == ["L4", "H100 SXM"]
    versions = ["--sweep", "vllm_version=0.16,0.20"]
    code, out, _ = kvsim(capsys, "capacity", "Qwen3-8B", "--gpu", "H100", *versions, "--json")
    assert [row["vllm_version"] for row in json.loads(out)] == ["0.16.0", "0.20.0"]


@pytest.mark.parametrize(
    ("sweep", "says"),
    [
        (["tpp=1,2"], "--sweep: tpp bears on nothing that is planned"),
        (["max_modle_len=1,2"], "nearest: max_model_len"),
        (["tp=1,2", "tensor_parallel_size=4"], "--sweep: tensor_parallel_size is tensor_parallel_size again"),
        (["block_size=16", "block_size=32"], "is set twice"),
        (["block_size=1:100000:1"], "100,000 values are more than 2,000; take a wider step"),
        (["max_model_len=4k,x"], "--sweep max_model_len: 'x' is not a whole number"),
    ],
)
def test_bad_sweeps_are_one_line(capsys, sweep, says):
    options = [word for each in sweep for word in ("--sweep", each)]
    code, out, err = kvsim(capsys, "capacity", "Qwen3-8B", "--gpu", "H100", *options)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_permission_before_the_command(capsys):
    line = ["vllm", "serve", "Qwen3-8B", "--max-model-len", "131072"]
    code, out, _ = kvsim(capsys, "capacity", "--gpu", "H100", "--", *line)
    assert code == 0
    assert "vLLM refuses to start: User-specified max_model_len (131072) is greater than" in out
    assert "Largest max_model_len that fits: 40,960" in out
    allowed = ["VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", *line]
    code, out, _ = kvsim(capsys, "capacity", "--gpu", "H100", "--", *allowed)
    assert "for 131,072 tokens per request" in out
    scaling = '{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}'
    old = ["--vllm-version", "0.9.2", "--", *line, "--rope-scaling", scaling]
    code, out, _ = kvsim(capsys, "capacity", "--gpu", "H100", *old)
    assert "for 131,072 tokens per request" in out
