"""GPUs by name: visible memory and data-sheet figures, each with its source.

Names are forgiving: brand, case, separators and words like "HBM3" or "Server Edition" do not matter. A
memory size in the name must fit the row ("A100 80GB"); it also tells apart rows that share a name, and
without it such a name is ambiguous. "RTX 3090/4090" means the first if both show about the same memory.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.model_names import key

GIB = 1 << 30
_DATA = Path(__file__).parent / "data" / "gpus.json"

_BRANDS = ("nvidia", "geforce", "tesla", "amd", "radeon", "instinct")
_PLAIN = ("gpu", "graphics", "tensor", "core", "colab", "oam", "generation")
_EDITIONS = ("hbm2", "hbm2e", "hbm3", "hbm3e", "blackwell", "server", "workstation", "edition")
_IDLE_WORDS = frozenset((*_BRANDS, *_PLAIN, *_EDITIONS))
_SPELLED = {"sxm2": "sxm", "sxm4": "sxm", "sxm5": "sxm", "sxm6": "sxm", "pcie4": "pcie", "pcie5": "pcie"}
_SIZE = re.compile(r"(?<![a-z0-9.])(\d{1,3}(?:\.\d+)?)\s*-?(?:gib|gb|g)(?![a-z0-9])", re.I)
_SIZE_TOLERANCE = 0.09  # a card's nominal size against what the driver shows
_SAME_MEMORY = 0.03


@dataclass(frozen=True)
class GpuSpec:
    """Data-sheet figures of one GPU.

    memory_bytes: what torch sees. bandwidth: bytes/s of device memory.
    bf16_flops, fp8_flops, fp4_flops: dense peak, flop/s; None where the tensor cores lack the type.
    link_bandwidth: bytes/s to a peer GPU, one way (NVLink, else PCIe).
    """

    name: str
    memory_bytes: int
    bandwidth: float
    bf16_flops: float
    fp8_flops: float | None
    link_bandwidth: float
    source: str
    fp4_flops: float | None = None

    @property
    def memory_gib(self) -> float:
        return self.memory_bytes / GIB


def gpu(name: str) -> GpuSpec:
    """The GPU of that name; raises KvsimError if none or more than one fits, with the nearest names."""
    found = _rows_of(name) or _alternative(name)
    if not found:
        plain = _key(_SIZE.sub("", name)) or _key(name)
        close = get_close_matches(plain, _spellings(), n=5, cutoff=0.5)
        near = list(dict.fromkeys(row for spelling in close for row in _spellings()[spelling]))[:3]
        hint = f"; nearest: {', '.join(near)}" if near else "; kvsim gpus lists what is"
        raise KvsimError(f"gpu: {name!r} is not in the catalog{hint}")
    if len(found) > 1:
        rows = dict.fromkeys((*found, *_namesakes(name)))
        raise KvsimError(f"gpu: {name!r} is ambiguous: {' or '.join(rows)}; name one of them")
    return _spec(found[0], _rows()[found[0]])


def gpu_remark(name: str) -> str | None:
    """Which card a name was taken for, where there are others of that name; None where it is plain."""
    found = _rows_of(name)
    if len(found) != 1 or _key(found[0]) == _key(name) or "hbm3" in name.lower():  # of H100s only the SXM
        return None
    others = [row for row in _namesakes(name) if row != found[0]]
    return f"gpu: {name} is taken to be {found[0]}; there is also {', '.join(others)}" if others else None


def gpu_names() -> list[str]:
    """All GPUs of the catalog."""
    return list(_rows())


def _key(name: str) -> str:
    text = re.sub(r"[a-z0-9]+", lambda word: _SPELLED.get(word[0], word[0]), name.lower())
    return key(text, _IDLE_WORDS)


@cache
def _rows() -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = json.loads(_DATA.read_text(encoding="utf-8"))
    return rows


@cache
def _spellings() -> dict[str, tuple[str, ...]]:
    """Rows by key of every name, memory sizes left out."""
    found: dict[str, dict[str, None]] = {}
    for name, row in _rows().items():
        for spelling in (name, *row.get("aliases", ())):
            found.setdefault(_key(_SIZE.sub(" ", spelling)), {})[name] = None
    return {spelling: tuple(rows) for spelling, rows in found.items()}


def _rows_of(name: str) -> tuple[str, ...]:
    """Rows that a name fits, those of the memory size in it if it has one."""
    exact = next((row for row in _rows() if _key(row) == _key(name)), None)
    if exact:
        return (exact,)
    size = _SIZE.search(name)
    rows = _spellings().get(_key(_SIZE.sub(" ", name)), ())
    if size is None:
        return rows
    wanted = float(size[1])
    return tuple(row for row in rows if abs(_gib(row) / wanted - 1) <= _SIZE_TOLERANCE)


def _namesakes(name: str) -> tuple[str, ...]:
    """Rows whose name begins with these words, of that memory size if the name has one."""
    wanted, size = _words(name), _SIZE.search(name)
    return tuple(
        row
        for row in _rows()
        if _words(row)[: len(wanted)] == wanted
        and (size is None or abs(_gib(row) / float(size[1]) - 1) <= _SIZE_TOLERANCE)
    )


def _words(name: str) -> list[str]:
    words = re.findall(r"[a-z0-9]+", _SIZE.sub(" ", name).lower())
    return [_SPELLED.get(word, word) for word in words if word not in _IDLE_WORDS]


def _alternative(name: str) -> tuple[str, ...]:
    """The first card of a name like "RTX 3090/4090" or "A100/H100 80GB", if all have about one memory."""
    parts = [part.strip() for part in name.split("/")]
    if len(parts) < 2 or not all(parts):
        return ()
    size = _SIZE.search(name)
    before = parts[0].rsplit(" ", 1)[0] if " " in parts[0] else ""
    chosen: list[str] = []
    for part in parts:
        text = part if size is None or _SIZE.search(part) else f"{part} {size[0]}"
        rows = _rows_of(text) or (_rows_of(f"{before} {text}") if before else ())
        if len(rows) != 1:
            return ()
        chosen += rows
    sizes = [_gib(row) for row in chosen]
    return (chosen[0],) if max(sizes) <= min(sizes) * (1 + _SAME_MEMORY) else ()


def _gib(name: str) -> float:
    return float(_rows()[name]["memory_gib"])


def _spec(name: str, row: Mapping[str, Any]) -> GpuSpec:
    def flops(dtype: str) -> float | None:
        rate = row.get(f"{dtype}_tflops")
        return rate * 1e12 if rate else None

    return GpuSpec(
        name=name,
        memory_bytes=row.get("memory_bytes") or round(row["memory_gib"] * GIB),
        bandwidth=row["bandwidth_gb_s"] * 1e9,
        bf16_flops=row["bf16_tflops"] * 1e12,
        fp8_flops=flops("fp8"),
        fp4_flops=flops("fp4"),
        link_bandwidth=row["link_gb_s"] * 1e9,
        source=row["source"],
    )
