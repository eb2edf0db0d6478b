"""The file of a profile: written in one step, and read with every value checked.

JSON: `parts_gib` holds what the log printed and nothing else, `filled_gib` what the prediction said of the
parts that it does not print, `rest_gib` what is left of the log's sum after both; `server` is what was
observed, `observed_with` everything that the log says.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.files import write_whole
from kvsim.gpu.config_json import read_json
from kvsim.gpu.log_facts import LogFacts
from kvsim.gpu.prediction import GIB
from kvsim.gpu.profiles import FORM, PARTS, Profile

_SERVER = dict.fromkeys(("model", "gpu", "vllm_version", "engine", "quantization", "dtype"), "str")
_SERVER |= {"gpu_memory_gib": "float", "enforce_eager": "bool"}
_SERVER |= {f"max_num_{what}": "int" for what in ("seqs", "batched_tokens")}
_SERVER |= {f"{what}_parallel_size": "int" for what in ("tensor", "pipeline")}


def save_profile(content: Mapping[str, Any], path: Path) -> None:
    """Write what `profile_of` made; a file that is there stays until the new one is complete."""
    try:
        write_whole(path, (json.dumps(content, indent=1) + "\n").encode())
    except KvsimError as error:
        raise KvsimError(f"--save-profile: {error}") from error


def read_profile(path: Path) -> Profile:
    """Raises KvsimError for a file that `save_profile` did not write."""
    try:
        content = read_json(path)
    except KvsimError as error:
        raise KvsimError(str(error).replace("a model's config.json", "a profile")) from error
    if not isinstance(content, Mapping) or "parts_gib" not in content:
        raise KvsimError(f"{path}: not a profile that kvsim capacity --log ... --save-profile wrote")
    form = content.get("kvsim_profile")
    if isinstance(form, bool) or form != FORM:
        raise KvsimError(f"{path}: kvsim_profile is {_shown(form)}, wanted {FORM}; keep the profile anew")
    parts, filled = (_sizes(content.get(key, {}), f"{path}: {key}") for key in ("parts_gib", "filled_gib"))
    if not parts:
        raise KvsimError(f"{path}: parts_gib: empty, wanted GiB of at least one of {', '.join(PARTS)}")
    rest = content.get("rest_gib", 0)
    if not _is_number(rest) or not abs(rest) < 1e6:
        raise KvsimError(f"{path}: rest_gib: {_shown(rest)}, wanted GiB")
    server = _section(content, "server", path)
    _check_kinds(server, _SERVER, f"{path}: server")
    seen = _section(content, "observed_with", path)
    kinds = {each.name: str(each.type).removesuffix(" | None") for each in fields(LogFacts)}
    _check_kinds(seen, kinds, f"{path}: observed_with")
    return Profile(parts, filled, round(rest * GIB), dict(server), dict(seen))


def _sizes(parts: Any, where: str) -> dict[str, int]:
    """Bytes by part; raises KvsimError."""
    if not isinstance(parts, Mapping):
        raise KvsimError(f"{where}: {_shown(parts)}, wanted an object with GiB by part")
    for name, gib in parts.items():
        if name not in PARTS:
            raise KvsimError(f"{where}: {name[:40]!r} is not a part; one of {', '.join(PARTS)}")
        least = -1e6 if name == "non_torch" else 0  # memory that others gave back meanwhile
        if not _is_number(gib) or not least <= gib < 1e6:
            raise KvsimError(f"{where}: {name} is {_shown(gib)}, wanted GiB from 0")
    return {name: round(gib * GIB) for name, gib in parts.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _section(content: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    found = content.get(key, {})
    if not isinstance(found, Mapping):
        raise KvsimError(f"{path}: {key}: {_shown(found)}, wanted an object with keys")
    return found


_WANTED = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}


def _check_kinds(values: Mapping[str, Any], kinds: Mapping[str, str], where: str) -> None:
    """Raises KvsimError for a value of another kind than its name wants; unknown names are let be."""
    for name, value in values.items():
        kind = kinds.get(name, "")
        good = {
            "str": isinstance(value, str),
            "bool": isinstance(value, bool),
            "int": isinstance(value, int) and not isinstance(value, bool),
            "float": _is_number(value),
        }
        if not good.get(kind, True):
            raise KvsimError(f"{where}: {name} is {_shown(value)}, wanted {_WANTED[kind]}")


def _shown(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."
