"""The one check of whether a request fits, on a single GPU or over pipeline stages.

`get_kv_cache_configs` of vLLM: groups are made of the whole model's layers, each stage holds its part of
every group, the stage with the fewest blocks decides for all. The start-up check looks at every stage;
releases with `VllmRules.fit_check_first_group_only` (0.11 to 0.20) hold the whole model's groups against
the poorest stage instead.
"""

from dataclasses import dataclass, replace
from typing import Any

from kvsim.errors import KvsimError
from kvsim.gpu.kv_cache_groups import bytes_per_block, kv_cache_groups
from kvsim.gpu.layers import kv_cache_layers, layers_per_stage, pipeline_stages
from kvsim.gpu.layout import CacheLayout, cache_layout
from kvsim.gpu.memory import MAX_GPU_BLOCKS, KVCacheOptions
from kvsim.gpu.model import ModelSpec
from kvsim.gpu.releases import Release


@dataclass(frozen=True)
class StagedLayout:
    """whole: layout of all layers. stages: the same with the block bytes of one pipeline stage each.

    blocks_override: --num-gpu-blocks-override. `available` is everywhere the bytes on one GPU.
    """

    whole: CacheLayout
    stages: tuple[CacheLayout, ...]
    blocks_override: int | None = None

    @property
    def blocks_decide(self) -> bool:
        """Whether the start-up check goes by --num-gpu-blocks-override, whatever the memory."""
        release = self.whole.release
        return self.blocks_override is not None and (release.rules.override_before_fit_check or release.v0)

    def blocks(self, available: int) -> int:
        """Of the poorest stage; raises KvsimError beyond any machine."""
        found = self.blocks_override or min(stage.blocks(available) for stage in self.stages)
        if found > MAX_GPU_BLOCKS:
            key = "num_gpu_blocks_override" if self.blocks_override else "the memory"
            raise KvsimError(f"{found:,} KV blocks are more than {MAX_GPU_BLOCKS:,}; lower {key}")
        return found

    def checked(self, available: int) -> list[tuple[CacheLayout, int]]:
        """What the start-up check looks at: layouts, and the bytes that each may use."""
        release, rules = self.whole.release, self.whole.release.rules
        first_group_only = rules.fit_check_first_group_only and release.has_hybrid_groups
        checked = []
        for layout in (self.whole,) if first_group_only else self.stages:
            blocks = self.blocks_override if self.blocks_decide else None
            room = available if blocks is None else blocks * layout.block_bytes
            checked.append((layout, room - (layout.block_bytes if rules.null_block_held_back else 0)))
        return checked

    def need(self, available: int, length: int) -> tuple[CacheLayout, int, int]:
        """(layout, bytes that a request of that length needs, bytes usable) of the first stage that lacks
        room, as vLLM reports it; of the tightest where none does."""
        found = [(layout, layout.needed_bytes(length), room) for layout, room in self.checked(available)]
        short = [each for each in found if each[1] > each[2]]
        return short[0] if short else max(found, key=lambda each: each[1] - each[2])

    def longest(self, available: int, limit: int) -> int:
        """Longest length up to `limit` that fits everywhere; 0 if none does."""
        return min(layout.longest(max(room, 0), limit) for layout, room in self.checked(available))

    def bytes_for(self, length: int) -> int:
        """Bytes available on one GPU that a request of that length needs at least."""
        null = self.whole.release.rules.null_block_held_back
        return max(
            layout.needed_bytes(length) + (layout.block_bytes if null else 0) for layout, _ in self.checked(0)
        )


def staged_layout(model: ModelSpec, options: KVCacheOptions, release: Release, **more: Any) -> StagedLayout:
    """Lay out a model over options.pipeline_parallel_size stages; `more` as for `cache_layout`.

    Raises KvsimError for what is not modelled or does not split.
    """
    whole = cache_layout(model, options, release, **more)
    count = options.pipeline_parallel_size
    if count == 1:
        return StagedLayout(whole, (whole,), options.num_gpu_blocks_override)
    if "linear" in model.layer_types or model.encoder is not None:
        kind = "linear-attention" if "linear" in model.layer_types else "encoder-decoder"
        raise KvsimError(f"pipeline_parallel_size: {count} stages of a {kind} model are not modelled; give 1")
    if more.get("draft") is not None:
        raise KvsimError(f"pipeline_parallel_size: a draft model over {count} stages is not modelled; give 1")
    sizes = _stage_block_bytes(model, options, release, whole, more.get("mtp_layers", 0))
    stages = tuple(replace(whole, block_bytes=size) for size in sizes)
    return StagedLayout(whole, stages, options.num_gpu_blocks_override)


def _stage_block_bytes(
    model: ModelSpec, options: KVCacheOptions, release: Release, whole: CacheLayout, drafts: int
) -> list[int]:
    counts = layers_per_stage(model.num_hidden_layers, options.pipeline_parallel_size)
    if drafts:  # a built-in draft head sits on the last stage
        kinds = (*model.layer_types, *("full",) * drafts)
        model = replace(model, num_hidden_layers=len(kinds), layer_types=kinds)
        counts[-1] += drafts
    layers = kv_cache_layers(model, options)
    workers = pipeline_stages(layers, model.num_hidden_layers, len(counts), counts)
    if not all(workers):
        raise KvsimError(
            f"pipeline_parallel_size: a stage of {len(counts)} would have no attention layer; give fewer"
        )
    if not release.has_hybrid_groups:
        return [sum(spec.as_full().page_size_bytes for spec in worker.values()) for worker in workers]
    rules = release.rules
    groups = kv_cache_groups(layers, rules, disable_hybrid=options.disable_hybrid_kv_cache_manager)
    if groups[0].uniform_type and not rules.uniform_groups_projected:
        return [whole.block_bytes] * len(workers)
    return [bytes_per_block(tuple(group.on_worker(worker) for group in groups)) for worker in workers]
