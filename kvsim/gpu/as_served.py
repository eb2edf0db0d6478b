"""A model as a command line serves it: --quantization, --dtype, --hf-overrides and the like."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.capacity_flags import check_lora_rank
from kvsim.gpu.model import DTYPE_BYTES, ModelSpec
from kvsim.gpu.model_length import ROPE_PARAMETERS_SINCE, with_overrides
from kvsim.gpu.quantization import served_as
from kvsim.gpu.releases import Release

_LAST_WITH_ROPE_SCALING = 10
_OLDEST_READ = 6


def flags_of_release(flags: dict[str, Any], of: Release) -> dict[str, Any]:
    """The flags, with --rope-scaling among the overrides. Raises KvsimError for what that release lacks."""
    if flags.get("enable_lora"):
        check_lora_rank(flags.get("max_lora_rank", 16), of.minor)
    scaling = flags.pop("rope_scaling", None)
    if scaling is None:
        return flags
    if of.minor > _LAST_WITH_ROPE_SCALING:
        now = "rope_parameters" if of.minor >= ROPE_PARAMETERS_SINCE else "rope_scaling"
        raise KvsimError(
            f"rope_scaling: no flag of vLLM {of.name}, it went after 0.{_LAST_WITH_ROPE_SCALING}; give "
            f"--hf-overrides with {now} in it"
        )
    return {**flags, "hf_overrides": {**flags.get("hf_overrides", {}), "rope_scaling": scaling}}


def release_notes(model: ModelSpec, of: Release) -> tuple[str, ...]:
    """What the release is too old for, a sentence each."""
    notes = []
    if of.minor < _OLDEST_READ:
        rules = f"planned by the rules of 0.{_OLDEST_READ}, the oldest that was read"
        notes.append(f"vllm_version: 0.{of.minor} is {rules}")
    name = model.name.rpartition("/")[2].lower()
    known = [family for family in _first_releases() if re.search(rf"(^|-){re.escape(family)}", name)]
    first = _first_releases()[max(known, key=len)] if known else 0
    if of.minor < first:
        notes.append(
            f"model: vLLM {of.name} does not know {model.name}; its architecture came with 0.{first}"
        )
    return tuple(notes)


@cache
def _first_releases() -> dict[str, int]:
    path = Path(__file__).parent / "data" / "first_releases.json"
    found: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))["families"]
    return found


def override_notes(flags: Mapping[str, Any], of: Release) -> tuple[str, ...]:
    """Overrides that the release does not look at, a sentence each."""
    overrides = flags.get("hf_overrides") or {}
    if of.minor >= ROPE_PARAMETERS_SINCE or "rope_parameters" not in overrides:
        return ()
    since = f"has no effect before 0.{ROPE_PARAMETERS_SINCE}"
    return (f"hf_overrides: rope_parameters {since}; give rope_scaling",)


def as_served(model: ModelSpec, of: Release, flags: Mapping[str, Any]) -> ModelSpec:
    """The model with --quantization, --dtype, --hf-overrides and the like applied."""
    version, method = "0.33" if of.minor >= 21 else "0.16", flags.get("quantization")
    if method is None and flags.get("load_format") == "bitsandbytes" and model.quantization is None:
        method, version = "bitsandbytes", "0.16"
    model = served_as(model, version, method, flags.get("dtype") or "auto")
    model = _overridden(model, flags.get("hf_overrides") or {}, of)
    state = flags.get("mamba_ssm_cache_dtype", "auto")
    if state != "auto" and model.linear is not None:
        if state not in DTYPE_BYTES:
            raise KvsimError(f"mamba_ssm_cache_dtype: {state!r} is not known; one of auto, {_dtypes()}")
        model = replace(model, linear=replace(model.linear, state_bytes=DTYPE_BYTES[state]))
    return model


def _overridden(model: ModelSpec, overrides: Mapping[str, Any], of: Release) -> ModelSpec:
    """With the lengths and rotary scalings of --hf-overrides, wherever they stand in it."""
    nested = overrides.get("text_config")
    given = {**overrides, **(nested if isinstance(nested, Mapping) else {})}
    if of.minor < ROPE_PARAMETERS_SINCE:
        given.pop("rope_parameters", None)
    try:
        lengths = with_overrides(model.length_facts, given)
    except KvsimError as error:
        raise KvsimError(f"hf_overrides: {str(error).removeprefix('model: ')}") from None
    return replace(model, lengths=lengths, max_position_embeddings=lengths.shortest)


def _dtypes() -> str:
    return ", ".join(DTYPE_BYTES)
