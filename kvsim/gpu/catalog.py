"""Models and GPUs by name: shape facts and data-sheet figures, each with its source.

Names are forgiving: case, dashes, underscores, dots and blanks do not matter, the organisation may
be left out, and so may words like "Instruct" when that leaves one row (or rows that differ in nothing
the KV cache sees). A format named at the end ("-FP8", "-AWQ", "(w4a16)", "-BF16") turns the row into a
model of that format. A path to a
``config.json`` (or its folder) is a model too.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu import model_names as names
from kvsim.gpu.gpus import GpuSpec, gpu, gpu_names, gpu_remark
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.model_config import model_from_file

__all__ = [
    "GpuSpec",
    "config_file",
    "gpu",
    "gpu_names",
    "gpu_remark",
    "in_format",
    "is_file",
    "model",
    "model_names",
]

_DATA = Path(__file__).parent / "data"


def model(name: str | Path) -> ModelSpec:
    """The model of that name or config.json; raises KvsimError with the nearest spellings if none is."""
    text = str(name)
    path = name if isinstance(name, Path) else config_file(text)
    if path is not None:
        return model_from_file(path)
    if text.startswith(("./", "../", "/", "~/")):
        raise KvsimError(f"model: {text!r} does not exist, or is a folder without a config.json")
    found = _row_of(text)
    if found is not None:
        return _model_spec(found)
    plain, kind = names.split_format(text)
    found = _find_model(plain)
    if found is None:
        raise _unknown_model(text, plain)
    return in_format(_model_spec(found), text, kind) if kind else _model_spec(found)


def in_format(spec: ModelSpec, name: str, kind: str | None) -> ModelSpec:
    """The shape with weights of a named format; what a row says of another format does not hold then."""
    quantization = None if kind == "16" else kind
    if quantization == spec.quantization:
        return replace(spec, name=name)
    return replace(
        spec,
        name=name,
        quantization=quantization,
        quant_group_size=0,
        unquantized=(),
        expert_quantization=None,
        kv_cache_fp8=False,
    )


def config_file(name: str, folder: Path = Path()) -> Path | None:
    """The config.json that a model's name leads to, in `folder` or else the working directory; None if none.

    Raises KvsimError if the name ends in .json and there is no such file.
    """
    places = list(dict.fromkeys((folder / name, Path(name))))
    for place in places:
        for path in (place, place / "config.json"):
            if path.suffix == ".json" and is_file(path):
                return path
    if name.endswith(".json"):
        tried = " and ".join(map(str, places))
        raise KvsimError(f"model: {name!r} is not a regular file (tried {tried})")
    return None


def is_file(path: Path) -> bool:
    """Whether that is a regular file."""
    try:
        return path.is_file()
    except OSError:  # a name too long for a file
        return False


def model_names() -> list[str]:
    """All models of the catalog."""
    return list(_model_rows())


@cache
def _model_file() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((_DATA / "models.json").read_text(encoding="utf-8"))
    return data


def _model_rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = _model_file()["models"]
    return rows


@cache
def _model_names() -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Rows by key of every spelling; and by key without the words of tuning, where there may be several."""
    exact: dict[str, str] = {}
    loose: dict[str, dict[str, None]] = {}
    spelled = {name: [name, *row.get("aliases", ())] for name, row in _model_rows().items()}
    spelled |= {name: [name] for name in _model_file()["not_modelled"]}
    for name, spellings in spelled.items():
        plain, kind = names.split_format(name)
        if kind == "16":  # a row whose own name says that it is not quantised
            spellings = [*spellings, plain]
        for spelling in (s for full in spellings for s in (full, names.without_organisation(full))):
            exact.setdefault(names.key(spelling), name)
            loose.setdefault(names.loose_key(spelling), {})[name] = None
    return exact, {key: tuple(rows) for key, rows in loose.items()}


def _find_model(name: str) -> str | None:
    """The one row that a name means, or the first of alternatives that differ in nothing the cache sees."""
    for text in dict.fromkeys((name, names.without_remark(name))):
        found = _row_of(text)
        if found:
            return found
        rows = tuple(row for each in names.alternatives(text) if (row := _row_of(each)))
        if rows and len({_cache_shape(row) for row in rows}) == 1:
            return rows[0]
    return None


def _row_of(name: str) -> str | None:
    exact, loose = _model_names()
    for spelling in dict.fromkeys((name, names.without_organisation(name))):
        found = exact.get(names.key(spelling))
        if found:
            return found
        rows = loose.get(names.loose_key(spelling), ())
        if len(rows) == 1 or (rows and len({_cache_shape(row) for row in rows}) == 1):
            return rows[0]
    return None


@cache
def _cache_shape(name: str) -> tuple[Any, ...]:
    if name in _model_file()["not_modelled"]:
        return (name,)
    spec = _model_spec(name)
    heads = (spec.num_key_value_heads, spec.head_dim, spec.kv_lora_rank, spec.compress_ratios)
    return (*heads, spec.layer_types, spec.sliding_window, spec.linear)


def _model_spec(name: str) -> ModelSpec:
    reason = _model_file()["not_modelled"].get(name)
    if reason:
        raise KvsimError(f"model: {name} is known, but {reason}")
    row = _model_rows()[name]
    return ModelSpec.from_config(row["config"], name, row["source"])


def _unknown_model(name: str, plain: str) -> KvsimError:
    """Several rows that a name fits, or those nearest to it."""
    exact, loose = _model_names()
    wanted = {names.loose_key(spelling) for spelling in (plain, names.without_organisation(plain))} - {""}
    fitting = [row for key, rows in loose.items() if key in wanted for row in rows]
    if not fitting:
        starts = [row for key, rows in loose.items() if key.startswith(tuple(wanted)) for row in rows]
        fitting = starts if len(min(wanted, key=len, default="")) > 3 else []
    fitting = list(dict.fromkeys(fitting))
    if len(fitting) > 1:
        some = ", ".join(fitting[:4]) + (f" and {len(fitting) - 4} more" if len(fitting) > 4 else "")
        return KvsimError(f"model: {name!r} fits several rows of the catalog: {some}; name one of them")
    return _unknown(name, exact, names.key(names.without_organisation(plain)))


_ALIKE = 0.55  # below it a "nearest" name has hardly a letter in common


def _unknown(name: str, known: Mapping[str, str], key: str) -> KvsimError:
    close = get_close_matches(key, known, n=5, cutoff=_ALIKE)
    near = list(dict.fromkeys(known[k] for k in close))[:3]
    hint = f"; nearest: {', '.join(near)}" if near else "; take one of kvsim models"
    return KvsimError(f"model: {name!r} is not in the catalog{hint}, or give a config.json")
