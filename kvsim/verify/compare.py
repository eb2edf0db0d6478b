"""Find recorded traces and their scenarios, replay them, name the first difference of each."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kvsim.cache.hashing import none_hash as derive_none_hash
from kvsim.engine.config import EngineConfig
from kvsim.errors import KvsimError
from kvsim.rules import rules_for
from kvsim.verify.replay import Replay
from kvsim.verify.scenario import Scenario, engine_config

Record = dict[str, Any]


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()
_DIAGNOSTIC = "ops"  # order of pool calls; what they lead to is compared
_SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True)
class Verdict:
    """One trace: `difference` is None if every compared field agrees."""

    path: Path
    num_steps: int
    difference: str | None = None

    @property
    def identical(self) -> bool:
        return self.difference is None


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """Trace files under the given files and folders; raises KvsimError where there are none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.name.endswith(_SUFFIXES))
            if not inside:
                raise KvsimError(f"{path}: no trace (*.jsonl.gz) in this folder")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise KvsimError(f"{path}: no such file or folder")
    return found


def read_trace(path: Path) -> list[Record]:
    """All lines of a trace, header first, end last; raises KvsimError if it is not one."""
    number, lines = 0, []
    try:
        opener = gzip.open if path.name.endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8") as file:
            for line in file:
                number += 1
                lines.append(json.loads(line))
    except json.JSONDecodeError as error:
        raise KvsimError(f"{path} line {number}: not JSON: {error.msg}") from None
    except RecursionError:
        raise KvsimError(f"{path} line {number}: not a trace: nested too deeply") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise KvsimError(f"{path}: not a readable trace: {error}") from None
    kinds = [line.get("type") if isinstance(line, dict) else None for line in lines]
    if kinds[:1] != ["header"] or kinds[-1:] != ["end"] or set(kinds[1:-1]) - {"step"}:
        raise KvsimError(f"{path}: not a conformance trace (a header line, steps, an end line)")
    return lines


def scenario_path(trace: Path, name: str) -> Path:
    """golden*/NAME.jsonl.gz -> scenarios/NAME.json beside the golden folder."""
    here = trace.absolute().parent
    for folder in (here.parent / "scenarios", here / "scenarios", here):
        if (folder / f"{name}.json").is_file():
            return folder / f"{name}.json"
    looked = here.parent / "scenarios"
    raise KvsimError(f"{trace}: its scenario {name}.json is not there (looked in {looked})")


def _parts(ours: Any, theirs: Any, field: str) -> Iterator[tuple[str, Any, Any]] | None:
    """Named pairs of the parts of two records of one kind; None if they are compared whole."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [*theirs, *(key for key in ours if key not in theirs)]
        return (
            (f"{field}.{key}".lstrip("."), ours.get(key, _ABSENT), theirs.get(key, _ABSENT))
            for key in keys
            if key != _DIAGNOSTIC
        )
    if isinstance(ours, list) and isinstance(theirs, list):
        pairs = zip_longest(ours, theirs, fillvalue=_ABSENT)
        return ((f"{field}[{i}]", a, b) for i, (a, b) in enumerate(pairs))
    return None


def first_difference(ours: Any, theirs: Any, field: str = "") -> str | None:
    """Path and values of the first place where two records differ, or None."""
    parts = _parts(ours, theirs, field)
    if parts is None:
        return None if ours == theirs else f"{field}: ours {ours!r}, theirs {theirs!r}"
    differences = (first_difference(a, b, name) for name, a, b in parts if a != b)
    return next((difference for difference in differences if difference), None)


def _header(config: EngineConfig) -> Record:
    """What a trace's header says about the engine, as kvsim derives it."""
    kv, rules = config.kv_cache_config(), config.rules
    return {
        "scheduler_block_size": kv.scheduler_block_size
        if rules.aligned_hybrid_caching
        else kv.hash_block_size,
        "hash_block_size": kv.hash_block_size,
        "group_block_sizes": list(kv.group_block_sizes),
        "watermark_blocks": int(config.watermark * config.num_gpu_blocks) if rules.watermark else 0,
        "num_lookahead_tokens": config.num_lookahead_tokens,
        "num_hash_lookahead_tokens": config.num_hash_lookahead_tokens,
        "use_eagle_block_drop": config.use_eagle_block_drop,
        "max_in_flight_tokens": kv.max_in_flight_tokens if rules.window_cap_counts_in_flight else None,
        "queue_depth": config.queue_depth,
        "scheduler": "AsyncScheduler" if config.async_scheduling else "Scheduler",
        "hash_algo": config.prefix_caching_hash_algo,
    }


def _prepare(path: Path, header: Record) -> tuple[Scenario, EngineConfig, bytes]:
    """What a trace's header leads to; raises KvsimError, naming the trace, where it leads nowhere."""
    name = header.get("scenario")
    if not isinstance(name, str) or not isinstance(header.get("config"), dict):
        raise KvsimError(f"{path}: the header must name a scenario and hold its config")
    try:
        rules_for(str(header.get("vllm")))
    except KvsimError as error:
        raise KvsimError(f"{path}: header: {error}") from None
    found = scenario_path(path, name)
    try:
        scenario = Scenario(found)
    except KvsimError as error:
        raise KvsimError(f"{found}: {error}") from None
    except KeyError as error:
        raise KvsimError(f"{found}: {error} is missing") from None
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise KvsimError(f"{found}: not a scenario: {error}") from None
    try:
        config = engine_config(header["config"], str(header["vllm"]))
        return scenario, config, bytes.fromhex(header["none_hash"])
    except KvsimError as error:
        raise KvsimError(f"{path}: header: {error}") from None
    except KeyError as error:
        raise KvsimError(f"{path}: the header lacks {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise KvsimError(f"{path}: header: {error}") from None


def verify_trace(path: Path) -> Verdict:
    """Replay one trace's scenario and compare every field of every step and of the end."""
    header, *recorded = read_trace(path)
    scenario, config, none_hash = _prepare(path, header)
    ours = _header(config)
    if header.get("pythonhashseed") is not None:  # else vLLM may have drawn the root at random
        seed = {"PYTHONHASHSEED": str(header["pythonhashseed"])}
        ours["none_hash"] = derive_none_hash(config.prefix_caching_hash_algo, config.rules, seed).hex()
    if not config.enable_prefix_caching:
        ours.pop("hash_block_size")  # without caching nothing is hashed
    difference = first_difference(ours, {key: header.get(key) for key in ours})
    if difference:
        return Verdict(path, len(recorded) - 1, f"header, {difference}")
    try:
        difference = _compare_steps(recorded, Replay(scenario, config, none_hash))
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise KvsimError(f"{path}: its scenario {scenario.name} cannot be replayed: {what}") from None
    return Verdict(path, len(recorded) - 1, difference)


def _compare_steps(recorded: Sequence[Record], replay: Iterable[Record]) -> str | None:
    for theirs, mine in zip_longest(recorded, replay):
        if mine is None or theirs is None:
            return f"ours has {'fewer' if mine is None else 'more'} lines"
        where = f"step {theirs.get('t')}" if theirs["type"] == "step" else "end"
        difference = first_difference(mine, theirs)
        if difference:
            return f"{where}, {difference}"
    return None


def verify_paths(paths: Sequence[Path | str]) -> Iterator[Verdict]:
    """Verdicts of all traces under the paths, in order; raises KvsimError for unreadable input."""
    for path in find_traces([Path(p) for p in paths]):
        yield verify_trace(path)
