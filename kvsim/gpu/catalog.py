"""Models and GPUs by name: shape facts and data-sheet figures, each with its source.

Names are forgiving: case, dashes, underscores, dots and blanks do not matter, the organisation may
be left out, and so may words like "Instruct" when that leaves one row. A quantisation named at the
end ("-FP8", "-AWQ", "(w4a16)") turns the plain row into its quantised form. A path to a
``config.json`` (or its folder) is a model too.
"""

import json
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.model_config import model_from_file

GIB = 1 << 30
_DATA = Path(__file__).parent / "data"

# Words of a model's name that say how it was tuned, not what shape it has.
_TUNING = {"instruct", "it", "hf", "base", "chat", "thinking", "meta", "2507", "unsloth", "class"}
_BRAND = {"nvidia", "geforce", "tesla"}

_QUANTISED = (
    (r"nvfp4", "nvfp4"),
    (r"fp8([-_ ]?(dynamic|static|per[-_ ]?tensor))*", "fp8"),
    (r"w8a8|gptq[-_ ]?int8|int8", "int8"),
    (r"awq|gptq([-_ ]?int4)?|w4a16|int4|(bnb )?4[-_ ]?bit", "int4"),
)


@dataclass(frozen=True)
class GpuSpec:
    """Data-sheet figures of one GPU.

    memory_bytes: what torch sees. bandwidth: bytes/s of device memory.
    bf16_flops, fp8_flops: dense peak, flop/s; fp8 is None where the tensor cores lack it.
    link_bandwidth: bytes/s to a peer GPU, one way (NVLink, else PCIe).
    """

    name: str
    memory_bytes: int
    bandwidth: float
    bf16_flops: float
    fp8_flops: float | None
    link_bandwidth: float
    source: str

    @property
    def memory_gib(self) -> float:
        return self.memory_bytes / GIB


def gpu(name: str) -> GpuSpec:
    """The GPU of that name; raises KvsimError with the nearest spellings if there is none."""
    rows = _gpu_rows()
    found = _gpu_names().get(_key(name, _BRAND))
    if found is None:
        raise _unknown("gpu", name, _gpu_names(), _key(name, _BRAND))
    return _gpu_spec(found, rows[found])


def model(name: str | Path) -> ModelSpec:
    """The model of that name or config.json; raises KvsimError with the nearest spellings if none is."""
    text = str(name)
    path = name if isinstance(name, Path) else config_file(text)
    if path is not None:
        return model_from_file(path)
    found = _find_model(text)
    if found is not None:
        return _model_spec(found)
    plain, quantization = _without_quantisation(text)
    found = _find_model(plain) if quantization else None
    if found is None:
        raise _unknown("model", text, _model_names()[0], _key(text))
    return replace(_model_spec(found), name=text, quantization=quantization)


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


def gpu_names() -> list[str]:
    """All GPUs of the catalog."""
    return list(_gpu_rows())


def model_names() -> list[str]:
    """All models of the catalog."""
    return list(_model_rows())


def _key(name: str, dropped: set[str] | frozenset[str] = frozenset()) -> str:
    words = re.split(r"[-_.\s()/:]+", name.lower())
    return "".join(word for word in words if word not in dropped)


def _without_organisation(name: str) -> str:
    return name.rsplit("/", 1)[-1]


@cache
def _gpu_rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads((_DATA / "gpus.json").read_text(encoding="utf-8"))
    return rows


@cache
def _gpu_names() -> dict[str, str]:
    spellings = {name: [name, *row.get("aliases", ())] for name, row in _gpu_rows().items()}
    return {_key(spelling, _BRAND): name for name, all_of_it in spellings.items() for spelling in all_of_it}


def _gpu_spec(name: str, row: dict[str, Any]) -> GpuSpec:
    fp8 = row.get("fp8_tflops")
    return GpuSpec(
        name=name,
        memory_bytes=row.get("memory_bytes") or round(row["memory_gib"] * GIB),
        bandwidth=row["bandwidth_gb_s"] * 1e9,
        bf16_flops=row["bf16_tflops"] * 1e12,
        fp8_flops=fp8 * 1e12 if fp8 else None,
        link_bandwidth=row["link_gb_s"] * 1e9,
        source=row["source"],
    )


@cache
def _model_file() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((_DATA / "models.json").read_text(encoding="utf-8"))
    return data


def _model_rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = _model_file()["models"]
    return rows


@cache
def _model_names() -> tuple[dict[str, str], dict[str, str]]:
    """Keys of every spelling, and keys with the tuning words left out where they name one row."""
    exact: dict[str, str] = {}
    loose: dict[str, set[str]] = {}
    spelled = {name: [name, *row.get("aliases", ())] for name, row in _model_rows().items()}
    spelled |= {name: [name] for name in _model_file()["not_modelled"]}
    for name, spellings in spelled.items():
        for spelling in (s for full in spellings for s in (full, _without_organisation(full))):
            exact.setdefault(_key(spelling), name)
            loose.setdefault(_key(spelling, _TUNING), set()).add(name)
    return exact, {key: names.pop() for key, names in loose.items() if len(names) == 1}


def _find_model(name: str) -> str | None:
    exact, loose = _model_names()
    for spelling in (name, _without_organisation(name)):
        found = exact.get(_key(spelling)) or loose.get(_key(spelling, _TUNING))
        if found:
            return found
    return None


def _model_spec(name: str) -> ModelSpec:
    reason = _model_file()["not_modelled"].get(name)
    if reason:
        raise KvsimError(f"model: {name} is known, but {reason}")
    row = _model_rows()[name]
    return ModelSpec.from_config(row["config"], name, row["source"])


def _without_quantisation(name: str) -> tuple[str, str | None]:
    for pattern, quantization in _QUANTISED:
        plain, count = re.subn(rf"(^|[-_ (]+)({pattern})\)?(?=$|[-_ )])", "", name, count=1, flags=re.I)
        if count:
            return plain, quantization
    return name, None


def _unknown(what: str, name: str, names: dict[str, str], key: str) -> KvsimError:
    close = get_close_matches(key, names, n=5, cutoff=0.5)
    near = list(dict.fromkeys(names[k] for k in close))[:3]
    hint = f"; nearest: {', '.join(near)}" if near else ""
    path = ", or give a config.json" if what == "model" else ""
    return KvsimError(f"{what}: {name!r} is not in the catalog{hint}{path}")
