"""The file of a vLLM start-up log: encodings, prefixes, colours, several start-ups in one file."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kvsim.errors import KvsimError
from kvsim.files import readable
from kvsim.gpu.log_facts import LogFacts, facts_of

_MOST_BYTES = 64 << 20
_RESULTS = ("available_gib", "num_gpu_blocks", "kv_tokens", "weights_gib", "refusal")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\\u001b\[[0-9;]*m")
# Every line that is read holds one of these; a server's log has millions that do not.
_KEYWORDS = (
    *("GiB", " GB", "LLM engine", "server version", "args: ", "█", "serving model", "vllm serve", "--model"),
    *(
        "GPU blocks: ",
        "cuda blocks: ",
        "rocm blocks: ",
        "num_gpu_blocks",
        "GPU KV cache size",
        "block size to",
    ),
    *("Maximum concurrency", "max_seq_len", "max_num_", "max seq len", "memory in use is", "auto-fit"),
    *("No available memory", "out of memory"),
)
_MOST_LINES = 2000  # of one start-up
_MOST_HITS = 100_000  # lines with one keyword, over all start-ups
_LONGEST_LINE = 20_000
_SERVER = re.compile(r"vLLM (?:API )?server version")
_ENGINE = re.compile(r"Initializing an? (?:V[01] )?LLM engine")


def read_log(path: Path) -> LogFacts:
    """Raises KvsimError if the file cannot be read or is no start-up log."""
    readable(path)
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise KvsimError(
                f"{path}: {size >> 20} MiB is too long for a start-up log; cut it to its start, "
                f"such as with head -c {_MOST_BYTES >> 20}M"
            )
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise KvsimError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    facts = read_text(_decoded(content))
    if facts is None:
        raise KvsimError(f"{path}: no line of a vLLM start-up log in it, such as 'Available KV cache memory'")
    return facts


def read_text(text: str) -> LogFacts | None:
    """Facts of the last start-up that printed a result; None if none did."""
    starts = [facts_of(part) for part in start_ups(text)]
    good = [
        facts
        for facts in starts
        if facts.doubted or any(getattr(facts, each) is not None for each in _RESULTS)
    ]
    return replace(good[-1], starts=len(starts)) if good else None


def _decoded(content: bytes) -> str:
    """UTF-8, or the UTF-16 that PowerShell writes; other bytes become question marks."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    head = content[:4096]
    if head.count(0) > len(head) // 4:
        return content.decode("utf-16-be" if head[:1] == b"\0" else "utf-16-le", errors="replace")
    return content.decode("utf-8-sig", errors="replace")


def start_ups(text: str) -> Iterator[str]:
    """The lines of each start-up: it begins where a server or, without one, an engine says its version."""
    lines: list[str] = []
    server = engine = False
    for line in _telling_lines(text.replace("\r\n", "\n").replace("\r", "\n")):
        new_server, new_engine = bool(_SERVER.search(line)), bool(_ENGINE.search(line))
        if (new_server and (server or engine)) or (new_engine and engine):
            yield "\n".join(lines[:_MOST_LINES])
            lines, server, engine = [], False, False
        server, engine = server or new_server, engine or new_engine
        lines.append(line)
    yield "\n".join(lines[:_MOST_LINES])


def _telling_lines(text: str) -> Iterator[str]:
    """The lines with a keyword, in order, without colours."""
    found: dict[int, int] = {}  # where a line begins and ends
    for word in _KEYWORDS:
        place, hits = text.find(word), 0
        while place >= 0 and hits < _MOST_HITS:
            hits += 1
            end = text.find("\n", place)
            end = len(text) if end < 0 else end
            found[text.rfind("\n", 0, place) + 1] = end
            place = text.find(word, end)
    for start in sorted(found):
        yield _COLOURS.sub("", text[start : min(found[start], start + _LONGEST_LINE)])
