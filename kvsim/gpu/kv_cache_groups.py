"""Layers to KV cache groups: which layers share a block table.

Rules: `get_kv_cache_groups` of vLLM 0.33.0 (`v1/core/kv_cache_planning.py`) and 0.16.0
(`v1/core/kv_cache_utils.py`). All groups draw blocks from one pool, so every group must need the
same bytes per block, or less.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kvsim.errors import KvsimError
from kvsim.gpu.kv_cache_spec import KVCacheSpec, cdiv
from kvsim.rules import VllmRules

Layers = Mapping[str, KVCacheSpec]

# Block-outermost layouts keep all layers of a block side by side, so that unequal pages can be packed.
LAYOUTS = ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC")


@dataclass(frozen=True)
class KVCacheGroup:
    """Layers that share one block table.

    spec: what the scheduler goes by (of the first layer).
    layers: every layer with its own spec; they differ only where uniform_type is set.
    uniform_type: same kind and blocks, unequal heads: each layer keeps its own page size.
    """

    spec: KVCacheSpec
    layers: tuple[tuple[str, KVCacheSpec], ...]
    uniform_type: bool = False

    @property
    def bytes_per_block(self) -> int:
        return sum(spec.page_size_bytes for _, spec in self.layers)

    def on_worker(self, names: Iterable[str]) -> "KVCacheGroup":
        """The part of the group that a pipeline stage holds; may be empty."""
        keep = set(names)
        return replace(self, layers=tuple(layer for layer in self.layers if layer[0] in keep))


def bytes_per_block(groups: Iterable[KVCacheGroup]) -> int:
    """Bytes that one block of the shared pool takes: those of the widest group."""
    return max(group.bytes_per_block for group in groups)


def kv_cache_groups(
    layers: Layers, rules: VllmRules, *, layout: str = "LBNHC", disable_hybrid: bool = False
) -> tuple[KVCacheGroup, ...]:
    """Split a model's layers (name -> spec, in model order) into groups.

    layout: 0.33's physical KV layout; the names beginning with B pack unequal pages side by side.
    disable_hybrid: --disable-hybrid-kv-cache-manager, window layers are stored like full ones.

    Raises KvsimError where vLLM refuses to start: unequal pages that cannot be made equal.
    """
    if layout not in LAYOUTS:
        raise KvsimError(f"kv_cache_layout: {layout!r} is not a layout; known are {', '.join(LAYOUTS)}")
    if disable_hybrid:
        layers = _all_full(layers)
    if _is_one_spec(layers):
        return (_group(layers),)
    if _is_uniform_type(layers):
        return (_group(layers, uniform_type=True),)
    packs = layout.startswith("B") or _has_latent_windows(layers)
    if rules.pads_unequal_pages and packs and len(_page_sizes(layers)) > 1:
        return _packed_groups(layers)
    if rules.pads_unequal_pages and _needs_full_fallback(layers):
        return (_group(_all_full(layers), uniform_type=True),)
    return _equal_page_groups(_with_equal_pages(layers, rules), rules)


def _group(layers: Layers, uniform_type: bool = False) -> KVCacheGroup:
    return KVCacheGroup(next(iter(layers.values())), tuple(layers.items()), uniform_type)


def _has_latent_windows(layers: Layers) -> bool:
    """DeepSeek V4: its backends allow block-outermost layouts only."""
    return any(s.kind == "sliding_window" and s.head_size_v == 0 for s in layers.values())


def _page_sizes(layers: Layers) -> set[int]:
    return {spec.page_size_bytes for spec in layers.values()}


def _is_one_spec(layers: Layers) -> bool:
    """Whether all layers merge into one spec; a window recorded on a full layer does not matter."""
    specs = {replace(s, window=None) if s.kind == "full" else s for s in layers.values()}
    windows = {s.window for s in layers.values() if s.kind == "full" and s.window}
    if all(s.kind == "full" for s in specs) and len(windows) > 1:
        raise KvsimError("All attention layers in the same KV cache group must have the same window size.")
    return len(specs) == 1


def _is_uniform_type(layers: Layers) -> bool:
    """Whether all layers need the same number of blocks, whatever their heads."""
    kinds = {"full" if s.kind == "mla" else s.kind for s in layers.values()}
    windows = {None if s.kind in ("full", "mla") else s.window for s in layers.values()}
    return len(kinds) == len(windows) == len({s.block_size for s in layers.values()}) == 1


def _all_full(layers: Layers) -> dict[str, KVCacheSpec]:
    """Store window layers for all tokens, if the model has full-attention layers too."""
    if not any(s.kind in ("full", "mla") for s in layers.values()):
        return dict(layers)
    full = {name: spec.as_full() for name, spec in layers.items()}
    if not (_is_one_spec(full) or _is_uniform_type(full)):
        raise KvsimError("Failed to promote local KV cache specs to one unified type.")
    return full


def _needs_full_fallback(layers: Layers) -> bool:
    """MLA beside window layers whose pages cannot agree: vLLM then stores all layers in full."""
    kinds = {spec.kind for spec in layers.values()}
    widest = max(_page_sizes(layers))
    stuck = any(s.kind == "mla" and widest % s.page_size_bytes for s in layers.values())
    return stuck and "sliding_window" in kinds and "chunked_local" not in kinds


def _with_equal_pages(layers: Layers, rules: VllmRules) -> dict[str, KVCacheSpec]:
    """Give smaller pages larger blocks where they divide the largest page, else pad them (0.33)."""
    widest = max(_page_sizes(layers))
    return {name: _stretched(name, spec, widest, rules) for name, spec in layers.items()}


def _stretched(name: str, spec: KVCacheSpec, page: int, rules: VllmRules) -> KVCacheSpec:
    if page % spec.page_size_bytes == 0:
        return replace(spec, block_size=spec.block_size * (page // spec.page_size_bytes))
    if rules.pads_unequal_pages and spec.kind != "mla":
        return replace(spec, page_size_padded=page)
    raise KvsimError(
        f"Layer {name}: page size {spec.page_size_bytes} is not divisible into the maximum page size {page}"
        f" and vLLM {rules.version} cannot pad it"
    )


def _group_size(counts: list[int], rules: VllmRules) -> int:
    """The smallest layer count among the specs, or the largest if it is not much larger."""
    return max(counts) if max(counts) < min(counts) * rules.group_size_ratio else min(counts)


def _equal_page_groups(layers: Layers, rules: VllmRules) -> tuple[KVCacheGroup, ...]:
    """One bucket per spec, each dealt out round-robin into groups of at most the group size.

    Round-robin, so that each pipeline stage holds a share of every group. Short groups are padded:
    they leave part of their blocks unused.
    """
    buckets: dict[KVCacheSpec, list[str]] = defaultdict(list)
    for name, spec in layers.items():
        buckets[spec].append(name)
    size = _group_size([len(names) for names in buckets.values()], rules)
    groups = []
    for spec, names in buckets.items():
        count = cdiv(len(names), size)
        groups += [KVCacheGroup(spec, tuple((n, spec) for n in names[i::count])) for i in range(count)]
    return tuple(groups)


def padding_layers(groups: Iterable[KVCacheGroup]) -> int:
    """Layers' worth of cache that the groups leave unused ("Add k padding layers")."""
    sizes = [len(group.layers) for group in groups]
    return max(sizes) * len(sizes) - sum(sizes)


# ---- unequal pages side by side in one block (0.33, block-outermost layouts) ----


def _uniform_buckets(layers: Layers) -> list[dict[str, KVCacheSpec]]:
    buckets: list[dict[str, KVCacheSpec]] = []
    for name, spec in layers.items():
        home = next((b for b in buckets if _is_uniform_type({**b, name: spec})), None)
        if home is None:
            buckets.append({name: spec})
        else:
            home[name] = spec
    return buckets


def _by_page_size(bucket: Layers) -> list[list[str]]:
    pages: dict[int, list[str]] = defaultdict(list)
    for name, spec in bucket.items():
        pages[spec.page_size_bytes].append(name)
    return list(pages.values())


def _repeats_per_group(columns: list[list[list[str]]]) -> int | None:
    """Pattern repeats per group with the least padding, or None if no bucket mixes page sizes evenly.

    columns: per bucket, its layer names by page size.
    """
    balanced = [c for c in columns if len({len(names) for names in c}) == 1]
    floor = max((len(c[0]) for c in balanced if len(c) > 1), default=0)
    if not floor:
        return None
    counts = [len(c[0]) for c in balanced]
    # Ties go to the larger size.
    return min(range(floor, max(counts) + 1), key=lambda d: (sum(-n % d for n in counts), -d))


def _packed_groups(layers: Layers) -> tuple[KVCacheGroup, ...]:
    buckets = _uniform_buckets(layers)
    columns = [_by_page_size(bucket) for bucket in buckets]
    repeats = _repeats_per_group(columns)
    counts = [_pattern_groups(column, repeats) for column in columns]
    anchor = max(
        _widest(bucket, column, len(bucket) if _is_state(bucket, repeats) else count)
        for bucket, column, count in zip(buckets, columns, counts, strict=True)
    )
    groups: list[KVCacheGroup] = []
    for bucket, column, count in zip(buckets, columns, counts, strict=True):
        if _is_state(bucket, repeats):
            page = next(iter(bucket.values())).page_size_bytes
            count = max(count, cdiv(len(bucket), max(anchor // page, 1)))
        groups += _split(bucket, column, count)
    return tuple(groups)


def _pattern_groups(column: list[list[str]], repeats: int | None) -> int:
    balanced = len({len(names) for names in column}) == 1
    return cdiv(len(column[0]), repeats) if repeats and balanced else 1


def _is_state(bucket: Layers, repeats: int | None) -> bool:
    """Whether a bucket may be cut down to one layer per group rather than widen the block."""
    return repeats is None and next(iter(bucket.values())).kind == "sliding_window"


def _widest(bucket: Layers, column: list[list[str]], groups: int) -> int:
    return sum(cdiv(len(names), groups) * bucket[names[0]].page_size_bytes for names in column)


def _split(bucket: Layers, column: list[list[str]], count: int) -> list[KVCacheGroup]:
    if count == 1:
        return [_group(bucket, uniform_type=True)]
    patterns = list(zip(*column, strict=False))
    parts = [[name for pattern in patterns[i::count] for name in pattern] for i in range(count)]
    return [_group({name: bucket[name] for name in part}, uniform_type=True) for part in parts]
