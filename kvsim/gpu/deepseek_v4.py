"""KV cache of DeepSeek V4: latent vectors of 4 or 128 tokens each, and windows of what is not yet compressed.

Every layer keeps a window of 128 plain latents. A layer that compresses adds the compressed latents, the
state of its compressor, and, at ratio 4, the indexer's compressed keys and their compressor's state.
Sources: `get_kv_cache_spec` in `models/deepseek_v4/{attention,compressor}.py` and
`v1/attention/backends/mla/sparse_swa.py` (vLLM 0.22.1 to 0.33.0), which agree on all sizes.

How the blocks are cut changed: 0.20 to 0.23 gave every group as many slots of each page size as the
widest one, 0.24 to 0.26 the slots that some group uses, 0.27 and later a block as wide as the widest group.
"""

from kvsim.errors import KvsimError
from kvsim.gpu.kv_cache_groups import kv_cache_groups
from kvsim.gpu.kv_cache_spec import KVCacheSpec, RequestLimits, cdiv
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.releases import Release
from kvsim.rules import rules_for

BLOCK_TOKENS = 256  # the indexer's kernels take no other
RATIOS = (0, 1, 4, 128)
FIRST_RELEASE = 20

_WINDOW_BLOCK = 64
_STATE_BLOCKS = {4: 4, 128: 8}  # tokens of a block of compressor states, by ratio
_PACKED_BYTES = 584  # `fp8_ds_mla`: 448 fp8 values, 64 16-bit rotary values, 8 scales
_INDEX_SCALE_BYTES = 4
_STATE_VALUE_BYTES = 4


def compressed_layers(
    model: ModelSpec, block_size: int, kv_cache_dtype: str = "auto"
) -> dict[str, KVCacheSpec]:
    """All cached parts of all layers, the same on every tensor-parallel rank.

    block_size: tokens of an attention block, a multiple of 256 (smaller ones count as 256).
    Pages are padded to 576 bytes in the packed fp8 format, which "auto" means, else to 512.
    Raises KvsimError for a cache type that the model is not served with.
    """
    if kv_cache_dtype != "auto" and not kv_cache_dtype.startswith("fp8") and kv_cache_dtype != "bfloat16":
        raise KvsimError(
            f"kv_cache_dtype: {kv_cache_dtype!r} does not go with {model.name}; give auto, fp8 or bfloat16"
        )
    packed = kv_cache_dtype != "bfloat16"
    row = _PACKED_BYTES if packed else 2 * model.head_dim
    align = 576 if packed else 512
    block = cdiv(block_size, BLOCK_TOKENS) * BLOCK_TOKENS
    layers: dict[str, KVCacheSpec] = {}
    for i, ratio in enumerate(model.compress_ratios):
        layers[f"layers.{i}.swa"] = _window(_WINDOW_BLOCK, model.sliding_window or 128, row, align)
        if ratio <= 1:
            continue
        layers[f"layers.{i}.attn"] = _latents(block, ratio, row, align)
        layers[f"layers.{i}.compressor"] = _states(ratio, model.head_dim, align)
        if ratio == 4:
            layers[f"layers.{i}.indexer"] = _latents(
                block, ratio, model.index_head_dim + _INDEX_SCALE_BYTES, align
            )
            layers[f"layers.{i}.indexer_compressor"] = _states(ratio, model.index_head_dim, align)
    return layers


def _latents(block: int, ratio: int, row: int, align: int) -> KVCacheSpec:
    page = cdiv(block // ratio * row, align) * align
    return KVCacheSpec("mla", block, 1, cdiv(row, ratio), 1, page_size_padded=page)


def _window(block: int, window: int, row: int, align: int) -> KVCacheSpec:
    page = cdiv(block * row, align) * align
    return KVCacheSpec("sliding_window", block, 1, row, 1, 0, window, page)


def _states(ratio: int, head_dim: int, align: int) -> KVCacheSpec:
    """Key and score of every token not yet compressed; ratio 4 compresses overlapping pairs of windows."""
    overlap = 2 if ratio == 4 else 1
    return _window(_STATE_BLOCKS[ratio], overlap * ratio, 2 * overlap * head_dim * _STATE_VALUE_BYTES, align)


class CompressedPlan:
    """Groups of one GPU under a release's rules, and what they cost.

    block_bytes: bytes of one block of the pool. num_groups: block tables of a request.
    Raises KvsimError for a release that did not know the model.
    """

    def __init__(self, layers: dict[str, KVCacheSpec], release: Release) -> None:
        if release.minor < FIRST_RELEASE:
            raise KvsimError(
                f"vllm_version: {release.name} does not know DeepSeek V4; give 0.{FIRST_RELEASE} or later"
            )
        self.groups = kv_cache_groups(layers, rules_for("0.33"))
        self._prints_bytes = release.minor <= 26
        self._pages = [[spec.page_size_bytes for _, spec in group.layers] for group in self.groups]
        latents = next(i for i, group in enumerate(self.groups) if group.spec.kind == "mla")
        self._full = latents
        if release.minor <= 29:  # window pages were stretched to the next page of the latents
            sizes = sorted(set(self._pages[latents]))
            self._pages = [[min(s for s in sizes if s >= p) for p in pages] for pages in self._pages]
        self.block_bytes = self._block_bytes(release.minor)
        self.num_groups = len(self.groups)
        self.padding = 1 - sum(map(sum, self._pages)) / (self.block_bytes * self.num_groups)

    def _block_bytes(self, minor: int) -> int:
        if minor >= 27:
            return max(sum(pages) for pages in self._pages)
        slots = {
            size: max(pages.count(size) for pages in self._pages) for size in set(self._pages[self._full])
        }
        if minor <= 23:
            return sum(slots) * max(slots.values())
        return sum(size * count for size, count in slots.items())

    def blocks(self, limits: RequestLimits) -> list[int]:
        """Blocks of one request in every group."""
        return [group.spec.blocks_per_request(limits) for group in self.groups]

    def held(self, limits: RequestLimits) -> int:
        """Blocks of one request, as the start-up check counts them."""
        return sum(self.blocks(limits))

    def printed(self, limits: RequestLimits) -> int:
        """Blocks of one request behind "Maximum concurrency": up to 0.26 bytes over the latents' bytes."""
        if not self._prints_bytes:
            return self.held(limits)
        used = sum(n * sum(pages) for n, pages in zip(self.blocks(limits), self._pages, strict=True))
        return cdiv(used, sum(self._pages[self._full]))
