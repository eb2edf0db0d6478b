"""The words of a vLLM command line without what stands before and after vLLM's own arguments.

``vllm serve``, ``vllm bench throughput``, ``python -m vllm.entrypoints...`` or ``docker run ...
vllm/vllm-openai:TAG``, behind environment settings, ``sudo``, ``uv run``, ``numactl`` and the like; pipes and
redirections are cut off.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.errors import KvsimError

_COMMANDS = ("serve", "bench", "chat", "complete", "run-batch", "collect-env", "launch")
_CLIENTS = ("chat", "complete", "collect-env")
_OTHER_PROGRAMS = (
    "ollama",
    "llama-server",
    "lmdeploy",
    "trtllm-serve",
    "text-generation-launcher",
    "tabbyapi",
)
_OFFLINE_BENCHES = ("throughput", "latency")
_ENDS = re.compile(r"\||\|\||&|&&|;|2>&1|[12&]?>{1,2}.*|<.*")
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_IMAGE = re.compile(
    r"(?:[\w.\-]+(?::\d+)?/)*vllm[\w.\-]*(?:/[\w.\-]*vllm[\w.\-]*)?(?::([\w.\-+]+))?(?:@sha256:\w+)?"
)
_TAG_VERSION = re.compile(r"v?(0\.\d{1,3}(?:\.\d{1,3})?(?:\.?post\d+|rc\d+)?)")


@dataclass(frozen=True)
class CommandLine:
    """words: vLLM's own arguments. values: what program and environment say, by the names of
    `kvsim.plan_capacity`. version: of a docker image's tag. remarks: a sentence each."""

    words: tuple[str, ...]
    values: dict[str, Any] = field(default_factory=dict)
    version: str | None = None
    remarks: tuple[str, ...] = ()


def read_words(words: Sequence[str]) -> CommandLine:
    """Raises KvsimError for quotes that do not end, and for a program that is no vLLM server."""
    rest = _split(words)
    end = next((i for i, word in enumerate(rest) if _ENDS.fullmatch(word)), len(rest))
    rest = rest[:end]
    start, values, version = _program(rest)
    values |= _environment(rest[:start])
    remarks = (*_of_image(rest[:start], version), *_of_bench(rest[:start]))
    return CommandLine(tuple(rest[start:]), values, version, remarks)


def _of_image(before: list[str], version: str | None) -> tuple[str, ...]:
    image = next((word for word in before if "/" in word and _IMAGE.fullmatch(word)), None)
    if image is None or version is not None:
        return ()
    _, colon, tag = image.rpartition("/")[2].partition(":")
    missing = f"the tag {tag if colon else 'latest'} names no release"
    return (f"{image}: {missing}, the newest is meant unless --vllm-version says another",)


def _of_bench(before: list[str]) -> tuple[str, ...]:
    if before[-2:] != ["bench", "serve"]:
        return ()
    return ("vllm bench serve asks a server that runs; planned as if these were the flags of vllm serve",)


def _split(words: Sequence[str]) -> list[str]:
    """Words, with a string that holds several of them cut up as a shell would."""
    text = words[0] if len(words) == 1 else ""
    if re.search(r"\s", text.strip()):
        text = re.sub(r"\\\r?\n", " ", text).replace("\r", " ").replace("\n", " ")
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise KvsimError(f"the command line cannot be read: {str(error).lower()}") from None
    plain = [word.strip("\r\n") for word in words]
    plain = [word for word in plain if word and word != "\\"]
    return plain[1:] if plain[:1] == ["--"] else plain


def _program(words: list[str]) -> tuple[int, dict[str, Any], str | None]:
    """Where vLLM's arguments begin, what the program says, and the version of an image's tag."""
    container = next((i for i, word in enumerate(words) if word in ("docker", "podman", "nerdctl")), None)
    version = None
    begin = 0
    if container is not None and "run" in words[container:]:
        begin, version = _image(words, container)
    for i in range(begin, len(words)):
        if words[i].rpartition("/")[2] == "vllm" and words[i + 1 : i + 2] and words[i + 1] in _COMMANDS:
            _check_server(words[i + 1])
            bench = words[i + 1] == "bench"
            offline = bench and words[i + 2 : i + 3] and words[i + 2] in _OFFLINE_BENCHES
            return i + 2 + bench, {"offline": True} if offline else {}, version
        if words[i] == "-m" and words[i + 1 : i + 2] and "python" in words[i - 1]:
            if not words[i + 1].startswith("vllm"):
                raise KvsimError(f"{words[i + 1][:60]}: not vLLM; kvsim plans vLLM servers")
            return i + 2, {}, version
        if words[i] in _OTHER_PROGRAMS:
            raise KvsimError(f"{words[i]}: not vLLM; kvsim plans vLLM servers")
    if begin:
        return begin, {}, version
    settings = 0
    while settings < len(words) and _SETTING.match(words[settings]):
        settings += 1
    return settings, {}, version


def _check_server(command: str) -> None:
    """Raises KvsimError for a command that asks a server rather than being one."""
    if command in _CLIENTS:
        raise KvsimError(f"vllm {command}: starts no server; give vllm serve")


def _image(words: list[str], container: int) -> tuple[int, str | None]:
    """The place behind the image's name, and the version that its tag states."""
    for i in range(container + 2, len(words)):
        found = _IMAGE.fullmatch(words[i])
        if (
            found
            and ("/" in words[i] or found[1])
            and not words[i - 1].startswith(("-v", "--name", "--volume"))
        ):
            stated = _TAG_VERSION.match(found[1] or "")
            return i + 1, stated[1] if stated else None
    return 0, None


def _environment(words: Sequence[str]) -> dict[str, Any]:
    """VLLM_USE_V1 chooses the engine of releases that have two; another setting allows any length."""
    found: dict[str, Any] = {}
    for word in words:
        name, _, value = word.removeprefix("--env=").removeprefix("-e=").partition("=")
        if name == "VLLM_USE_V1" and value in ("0", "1"):
            found["engine"] = f"V{value}"
        elif name == "VLLM_ALLOW_LONG_MAX_MODEL_LEN" and value.lower() in ("1", "true"):
            found["allow_long_max_model_len"] = True
    return found
