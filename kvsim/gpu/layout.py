"""One pool of equal blocks and the groups that draw from it: enough to turn bytes into tokens.

`kvsim.gpu.memory` plans exactly what a release does for attention layers, pipeline stages included. This
is the smaller picture that covers every release from 0.3 on and layers with a recurrent state (linear
attention, Mamba), on one GPU of a tensor-parallel group.

Sources: `v1/core/kv_cache_utils.py` and `HybridAttentionMambaModelConfig` of
`model_executor/models/config.py` (0.16), `MambaSpec` in `v1/kv_cache_interface.py` (0.16, 0.33).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from kvsim.errors import KvsimError
from kvsim.gpu.deepseek_v4 import BLOCK_TOKENS, CompressedPlan
from kvsim.gpu.kv_cache_groups import bytes_per_block, kv_cache_groups, padding_layers
from kvsim.gpu.kv_cache_spec import cdiv
from kvsim.gpu.layers import cache_value_bytes, check_split, kv_cache_layers, kv_heads_per_gpu
from kvsim.gpu.memory import KVCacheOptions
from kvsim.gpu.model import DTYPE_BYTES, LinearSpec, ModelSpec
from kvsim.gpu.releases import Release

_MLA_KERNEL_BLOCK = 64  # FlashMLA's; Triton's kernels would take 16

MambaMode = Literal["none", "align", "all"]


@dataclass(frozen=True)
class CacheLayout:
    """How the KV cache of one GPU is cut.

    block_size: tokens of a block, the smallest of all groups. block_bytes: bytes of one block of the pool.
    num_groups: block tables per request. blocks_per_request: blocks of a request of that many tokens.
    padding: share of every block that groups with fewer layers leave unused.
    checked_blocks: what the start-up check counts for a request, where that is not all groups' blocks.
    """

    block_size: int
    block_bytes: int
    num_groups: int
    blocks_per_request: Callable[[int], int]
    release: Release
    padding: float = 0.0
    checked_blocks: Callable[[int], int] | None = None

    def blocks(self, available_bytes: float) -> int:
        return int(max(available_bytes, 0) // self.block_bytes)

    def concurrency(self, blocks: int, max_model_len: int) -> float:
        """Requests of max_model_len tokens that fit, as vLLM prints it."""
        if max_model_len < 1:
            return 0.0
        if not self.release.has_hybrid_groups:
            return blocks * self.block_size / max_model_len
        return blocks / self.blocks_per_request(max_model_len)

    def printed_tokens(self, blocks: int, max_model_len: int) -> int:
        """The figure of vLLM's line "GPU KV cache size"."""
        if self.release.prints_concurrency_times_length:
            return int(self.concurrency(blocks, max_model_len) * max_model_len)
        return blocks // self.num_groups * self.block_size

    def needed_bytes(self, max_model_len: int) -> int:
        """Bytes of one request as the start-up check counts them."""
        return self.block_bytes * (self.checked_blocks or self.blocks_per_request)(max_model_len)

    def longest(self, available_bytes: float, limit: int) -> int:
        """Longest length up to `limit` that fits; 0 if none does."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.needed_bytes(middle) <= available_bytes
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


def cache_layout(
    model: ModelSpec,
    options: KVCacheOptions,
    release: Release,
    *,
    mtp_layers: int = 0,
    spec_tokens: int = 0,
    mamba_mode: MambaMode = "none",
    block_multiple: int = 16,
    draft: ModelSpec | None = None,
) -> CacheLayout:
    """The layout of a model on one tensor-parallel rank.

    mtp_layers: built-in draft layers that keep a cache of their own. spec_tokens: drafts per step.
    draft: a model of its own that drafts (EAGLE, a small model), whose layers draw from the same pool.
    mamba_mode: `--mamba-cache-mode`. block_multiple: the attention kernel's block is a multiple of it.
    Raises KvsimError for a model that is not modelled or a wrong split.
    """
    if model.compress_ratios:
        return _compressed_layout(model, options, release, mtp_layers)
    if draft is not None and ("linear" in model.layer_types or model.compress_ratios):
        raise KvsimError(f"speculative_config: a draft model beside {model.name} is not modelled")
    if "linear" in model.layer_types:
        return _linear_layout(model, options, release, mtp_layers, spec_tokens, mamba_mode, block_multiple)
    layers = kv_cache_layers(_with_draft_layers(model, mtp_layers), options)
    if draft is not None:
        own = kv_cache_layers(draft, options)
        layers |= {f"draft.{name}": spec for name, spec in own.items()}
    if model.encoder is not None and not release.v0:
        return _encoder_decoder_layout(model, options, release)
    if not release.has_hybrid_groups:
        page = sum(spec.as_full().page_size_bytes for spec in layers.values())
        return CacheLayout(options.block_size, page, 1, lambda n: cdiv(n, options.block_size), release)
    groups = kv_cache_groups(layers, release.rules, disable_hybrid=options.disable_hybrid_kv_cache_manager)

    def per_request(length: int) -> int:
        limits = options.request_limits(release.rules, length)
        return sum(group.spec.blocks_per_request(limits) for group in groups)

    smallest = min(group.spec.block_size for group in groups)
    padding = padding_layers(groups) / (len(groups) * max(len(group.layers) for group in groups))

    def first(length: int) -> int:
        return groups[0].spec.blocks_per_request(options.request_limits(release.rules, length))

    checked = first if release.rules.fit_check_first_group_only else None
    return CacheLayout(smallest, bytes_per_block(groups), len(groups), per_request, release, padding, checked)


def _with_draft_layers(model: ModelSpec, count: int) -> ModelSpec:
    """The model with built-in draft layers: full attention, each with an indexer where the model has them."""
    if not count:
        return model
    total = model.num_hidden_layers + count
    indexed = tuple(range(model.num_hidden_layers, total)) if model.indexed_layers else ()
    return replace(
        model,
        num_hidden_layers=total,
        layer_types=(*model.layer_types, *("full",) * count),
        indexed_layers=(*model.indexed_layers, *indexed),
    )


def _compressed_layout(
    model: ModelSpec, options: KVCacheOptions, release: Release, mtp_layers: int
) -> CacheLayout:
    """DeepSeek V4. A draft layer has a window alone."""
    check_split(model, options)
    ratios = (*model.compress_ratios, *(0,) * mtp_layers)
    plan = CompressedPlan(kv_cache_layers(replace(model, compress_ratios=ratios), options), release)

    def printed(length: int) -> int:
        return plan.printed(options.request_limits(release.rules, length))

    def held(length: int) -> int:
        return plan.held(options.request_limits(release.rules, length))

    block = cdiv(options.block_size, BLOCK_TOKENS) * BLOCK_TOKENS
    return CacheLayout(
        block, plan.block_bytes, plan.num_groups, printed, release, plan.padding, checked_blocks=held
    )


def _encoder_decoder_layout(model: ModelSpec, options: KVCacheOptions, release: Release) -> CacheLayout:
    """Decoder layers keep their own tokens in one group and the encoder's output in another."""
    assert model.encoder is not None
    block, encoder = options.block_size, model.encoder.num_tokens
    page = sum(spec.page_size_bytes for spec in kv_cache_layers(model, options).values())
    return CacheLayout(block, page, 2, lambda n: cdiv(n, block) + cdiv(encoder, block), release)


def state_bytes(linear: LinearSpec, tensor_parallel_size: int, spec_tokens: int, dtype: str) -> int:
    """Bytes of one layer's convolution window and recurrent state on one rank."""
    size = DTYPE_BYTES.get(dtype, 2)
    channels = linear.conv_dim
    if linear.num_groups % tensor_parallel_size:  # `extra_groups_for_head_shards`
        channels += 2 * (tensor_parallel_size - linear.num_groups) * linear.group_state
    window = (linear.conv_kernel - 1 + spec_tokens) * (channels // tensor_parallel_size)
    state = linear.state_size // tensor_parallel_size
    return window * size + state * (linear.state_bytes or size)


def _linear_layout(
    model: ModelSpec,
    options: KVCacheOptions,
    release: Release,
    mtp_layers: int,
    spec_tokens: int,
    mamba_mode: MambaMode,
    block_multiple: int,
) -> CacheLayout:
    """Attention blocks are stretched until a page holds a state; then all groups share one page size."""
    if model.linear is None:
        raise KvsimError(
            f"model: the linear-attention state of {model.name} is not known; give its config.json"
        )
    if {"sliding", "chunked"} & set(model.layer_types):
        raise KvsimError(f"model: {model.name} mixes linear and window attention, which is not modelled")
    if "full" not in model.layer_types:
        raise KvsimError(
            f"model: {model.name} has no attention layer; models of states alone are not modelled"
        )
    check_split(model, options)
    tp = options.tensor_parallel_size
    heads = kv_heads_per_gpu(model.num_key_value_heads, tp)
    size = cache_value_bytes(model, options.kv_cache_dtype)
    per_token = heads * (model.head_dim + model.v_head_dim) * size
    if model.is_mla:
        per_token = (model.kv_lora_rank + model.qk_rope_head_dim) * size
        block_multiple = max(block_multiple, _MLA_KERNEL_BLOCK)
    state = state_bytes(model.linear, tp, spec_tokens, model.dtype)
    block = max(block_multiple * cdiv(state, block_multiple * per_token), options.block_size)
    full = model.layer_types.count("full") + mtp_layers
    linear = model.layer_types.count("linear")
    counts = [full, linear]
    ratio = release.rules.group_size_ratio
    size_of_group = max(counts) if max(counts) < min(counts) * ratio else min(counts)
    full_groups, linear_groups = cdiv(full, size_of_group), cdiv(linear, size_of_group)

    def per_request(length: int) -> int:
        tokens = cdiv(length, block)
        states = {"none": 1, "align": 2, "all": tokens}[mamba_mode] + spec_tokens
        if release.minor == 11:  # counted the state like attention
            states = tokens
        return full_groups * tokens + linear_groups * states

    groups = full_groups + linear_groups
    padding = 1 - (full + linear) / (groups * size_of_group)
    return CacheLayout(block, block * per_token * size_of_group, groups, per_request, release, padding)
