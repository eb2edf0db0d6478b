"""What changed between the vLLM releases that kvsim knows: one row of flags per release.

Every rule that differs is a named field here and nowhere else, so a further release is one
more entry in `_RELEASES`.
"""

from dataclasses import dataclass

from kvsim.errors import KvsimError


@dataclass(frozen=True)
class VllmRules:
    """Rules of one vLLM release.

    Capacity (`v1/core/kv_cache_utils.py` in 0.16, `v1/core/kv_cache_planning.py` in 0.33):

    printed_size_from_concurrency: "GPU KV cache size" is ``int(concurrency * max_model_len)``;
        else blocks // groups x smallest block size.
    null_block_held_back: the start-up check and automatic ``max_model_len`` plan with one block less.
    window_cap_counts_in_flight: a window group reserves for the tokens of all batches in flight,
        not for one batch.
    group_size_ratio: the largest layer count is taken as group size below this multiple of the smallest.
    pads_unequal_pages: pages that cannot be made equal are padded or packed; else start-up fails.
    default_gpu_memory_utilization: share of the card when the flag is absent.
    largest_batch_tier: cards of 160 GiB and more get the largest default batch (`engine/arg_utils.py`).
    fit_check_first_group_only: the start-up check measures the first group's need alone.
    cuda_graph_memory_counted: the CUDA-graph estimate is taken off the KV budget.
    override_before_fit_check: ``num_gpu_blocks_override`` also replaces the memory that is checked.
    uniform_groups_projected: with unequal heads in one group, a pipeline stage counts its own layers;
        else every stage counts those of the whole model.
    kv_tensor_has_kv_axis: a layer's tensor has an outermost axis for K and V (FlashAttention's shape).
    captures_full_batches: CUDA graphs are also captured for decode batches of exact sizes, the largest
        among them, and for max_num_batched_tokens.

    Block pool and hashes (`v1/core/block_pool.py`, `kv_cache_utils.py`):

    unhashed_blocks_freed_to_front: freed blocks without a hash are reused first; else all join the tail.
    tagged_extra_keys: keys are ("lora", name, path), ("mm", id, offset), ("cache_salt", salt);
        else bare name, identifier, salt.
    last_image_keys_output_blocks: a block completed by output tokens is keyed with the last image
        only, and the ranges of images are compared strictly.
    lookahead_block_hashes: with a draft head, hashes cover the next token and no hit block is dropped.
    concatenated_coarse_hashes: a coarser block's key joins its fine hashes; else the last fine hash.
    fixed_root_seed: without PYTHONHASHSEED, sha256 hashes start from a constant; else from random bytes.
    events_carry_group: KV events name the cache group and list extra keys.

    KV cache manager (`kv_cache_manager.py`, `kv_cache_coordinator.py`):

    stats_at_admission: prefix-cache statistics count admissions; else every lookup.
    full_sequence_gate: a request is admitted only if its whole prompt fits.
    watermark: some blocks can be kept free at admission.
    lookahead_slots_at_admission: draft slots are reserved for admitted requests as well.
    frees_behind_processed_tokens: window blocks go when no step in flight reads them.
    sparse_window_retention: window groups cache only blocks that a later request can resume from.
    aligned_hybrid_caching: hybrid groups cache up to a multiple of the common block size, and partial
        prompt tails; EAGLE looks one block further and drops it once.

    Scheduler (`sched/scheduler.py`, `sched/async_scheduler.py`, `encoder_cache_manager.py`):

    lone_request_ignores_prefill_threshold: `long_prefill_token_threshold` needs a second request.
    self_preemption_continues: a request that preempts itself does not end the scan (priority).
    loras_of_all_running: `max_loras` counts running requests that are not scheduled, too.
    blocked_encoder_input_is_skipped: a waiting request without encoder room does not end admission.
    pads_drafts_at_admission: an admission with one token left gets placeholder drafts.
    stale_output_accounting: preemption marks output in flight as stale, and accepted tokens are cached
        in the output step; else a forced reset discards the next output.
    encoder_released_after_output: encoder references go when the output is processed; else at schedule.
    encoder_reference_per_input: a repeated image keeps its entry to its last copy, and embedding counts
        are checked.
    empty_batches_wait: with batches in flight, an iteration may return early without having scheduled.
    async_with_ngram_drafts: asynchronous scheduling combines with n-gram speculation.
    """

    version: str
    printed_size_from_concurrency: bool
    null_block_held_back: bool
    window_cap_counts_in_flight: bool
    group_size_ratio: float
    pads_unequal_pages: bool
    default_gpu_memory_utilization: float
    largest_batch_tier: bool
    fit_check_first_group_only: bool
    cuda_graph_memory_counted: bool
    override_before_fit_check: bool
    unhashed_blocks_freed_to_front: bool
    tagged_extra_keys: bool
    last_image_keys_output_blocks: bool
    lookahead_block_hashes: bool
    concatenated_coarse_hashes: bool
    fixed_root_seed: bool
    events_carry_group: bool
    stats_at_admission: bool
    full_sequence_gate: bool
    watermark: bool
    lookahead_slots_at_admission: bool
    frees_behind_processed_tokens: bool
    sparse_window_retention: bool
    aligned_hybrid_caching: bool
    lone_request_ignores_prefill_threshold: bool
    self_preemption_continues: bool
    loras_of_all_running: bool
    blocked_encoder_input_is_skipped: bool
    pads_drafts_at_admission: bool
    stale_output_accounting: bool
    encoder_released_after_output: bool
    encoder_reference_per_input: bool
    empty_batches_wait: bool
    async_with_ngram_drafts: bool
    uniform_groups_projected: bool
    kv_tensor_has_kv_axis: bool
    captures_full_batches: bool

    @property
    def minor(self) -> int:
        """33 of 0.33."""
        return int(self.version.split(".")[1])


_RELEASES = {
    "0.33": VllmRules(
        version="0.33",
        printed_size_from_concurrency=True,
        null_block_held_back=True,
        window_cap_counts_in_flight=True,
        group_size_ratio=1.5,
        pads_unequal_pages=True,
        default_gpu_memory_utilization=0.92,
        largest_batch_tier=True,
        fit_check_first_group_only=False,
        cuda_graph_memory_counted=True,
        override_before_fit_check=True,
        unhashed_blocks_freed_to_front=True,
        tagged_extra_keys=True,
        last_image_keys_output_blocks=False,
        lookahead_block_hashes=True,
        concatenated_coarse_hashes=False,
        fixed_root_seed=True,
        events_carry_group=True,
        stats_at_admission=True,
        full_sequence_gate=True,
        watermark=True,
        lookahead_slots_at_admission=True,
        frees_behind_processed_tokens=True,
        sparse_window_retention=True,
        aligned_hybrid_caching=True,
        lone_request_ignores_prefill_threshold=True,
        self_preemption_continues=True,
        loras_of_all_running=True,
        blocked_encoder_input_is_skipped=True,
        pads_drafts_at_admission=True,
        stale_output_accounting=True,
        encoder_released_after_output=True,
        encoder_reference_per_input=True,
        empty_batches_wait=True,
        async_with_ngram_drafts=True,
        uniform_groups_projected=True,
        kv_tensor_has_kv_axis=False,
        captures_full_batches=True,
    ),
    "0.16": VllmRules(
        version="0.16",
        printed_size_from_concurrency=False,
        null_block_held_back=False,
        window_cap_counts_in_flight=False,
        group_size_ratio=1.25,
        pads_unequal_pages=False,
        default_gpu_memory_utilization=0.9,
        largest_batch_tier=False,
        fit_check_first_group_only=True,
        cuda_graph_memory_counted=False,
        override_before_fit_check=False,
        unhashed_blocks_freed_to_front=False,
        tagged_extra_keys=False,
        last_image_keys_output_blocks=True,
        lookahead_block_hashes=False,
        concatenated_coarse_hashes=True,
        fixed_root_seed=False,
        events_carry_group=False,
        stats_at_admission=False,
        full_sequence_gate=False,
        watermark=False,
        lookahead_slots_at_admission=False,
        frees_behind_processed_tokens=False,
        sparse_window_retention=False,
        aligned_hybrid_caching=False,
        lone_request_ignores_prefill_threshold=False,
        self_preemption_continues=False,
        loras_of_all_running=False,
        blocked_encoder_input_is_skipped=False,
        pads_drafts_at_admission=False,
        stale_output_accounting=False,
        encoder_released_after_output=False,
        encoder_reference_per_input=False,
        empty_batches_wait=False,
        async_with_ngram_drafts=False,
        uniform_groups_projected=False,
        kv_tensor_has_kv_axis=True,
        captures_full_batches=False,
    ),
}


def releases() -> tuple[str, ...]:
    """Releases that kvsim knows, newest first."""
    return tuple(_RELEASES)


def rules_for(version: str) -> VllmRules:
    """Rules of a release, named "0.33" or "0.33.0"; raises KvsimError for one kvsim does not know."""
    short = ".".join(str(version).split(".")[:2])
    if short not in _RELEASES:
        known = ", ".join(_RELEASES)
        raise KvsimError(f"vllm_version: {version!r} is not known; known are {known}")
    return _RELEASES[short]
