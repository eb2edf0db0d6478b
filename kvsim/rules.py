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
    fit_check_first_group_only: the start-up check measures the first group's need alone.
    cuda_graph_memory_counted: the CUDA-graph estimate is taken off the KV budget.
    override_before_fit_check: ``num_gpu_blocks_override`` also replaces the memory that is checked.
    """

    version: str
    printed_size_from_concurrency: bool
    null_block_held_back: bool
    window_cap_counts_in_flight: bool
    group_size_ratio: float
    pads_unequal_pages: bool
    default_gpu_memory_utilization: float
    fit_check_first_group_only: bool
    cuda_graph_memory_counted: bool
    override_before_fit_check: bool


_RELEASES = {
    "0.33": VllmRules(
        version="0.33",
        printed_size_from_concurrency=True,
        null_block_held_back=True,
        window_cap_counts_in_flight=True,
        group_size_ratio=1.5,
        pads_unequal_pages=True,
        default_gpu_memory_utilization=0.92,
        fit_check_first_group_only=False,
        cuda_graph_memory_counted=True,
        override_before_fit_check=True,
    ),
    "0.16": VllmRules(
        version="0.16",
        printed_size_from_concurrency=False,
        null_block_held_back=False,
        window_cap_counts_in_flight=False,
        group_size_ratio=1.25,
        pads_unequal_pages=False,
        default_gpu_memory_utilization=0.9,
        fit_check_first_group_only=True,
        cuda_graph_memory_counted=False,
        override_before_fit_check=False,
    ),
}


def rules_for(version: str) -> VllmRules:
    """Rules of a release, named "0.33" or "0.33.0"; raises KvsimError for one kvsim does not know."""
    short = ".".join(str(version).split(".")[:2])
    if short not in _RELEASES:
        known = ", ".join(_RELEASES)
        raise KvsimError(f"vllm_version: {version!r} is not known; known are {known}")
    return _RELEASES[short]
