"""What one engine is told: vLLM's flags under their own names, checked once."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsim.cache.groups import KVCacheConfig, KVGroup
from kvsim.cache.hashing import HASH_FUNCTIONS
from kvsim.errors import KvsimError
from kvsim.rules import VllmRules, rules_for

POLICIES = ("fcfs", "priority")
SPEC_METHODS = (None, "ngram", "eagle")
MAX_TOKENS = 2**31 - 1  # token counts are held in 32 bits


@dataclass(frozen=True)
class EngineConfig:
    """Flags of one engine (`vllm serve` names; vLLM 0.33.0 `config/scheduler.py`, `config/cache.py`).

    num_gpu_blocks counts the null block. prefix_caching_hash_algo "fast" is kvsim's own chain.
    encoder_compute_budget and encoder_cache_size, in embeddings, default to
    max_num_batched_tokens. kv_groups: attention kinds that share the pool. acceptance_rate: share
    of draft tokens that are accepted, each given that the one before it was. log_capacity > 0
    records block and request events of every step, as many between two readings; with kv_events
    they can be read as vLLM's KV events, for which the tokens of live requests are kept.
    step_capacity > 0 records a row for each step, as many between two readings.

    Raises KvsimError for a value that vLLM would refuse or that makes no sense.
    """

    num_gpu_blocks: int
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str = "fast"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    disable_chunked_mm_input: bool = False
    scheduling_policy: str = "fcfs"
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool | None = None
    watermark: float = 0.0
    encoder_compute_budget: int | None = None
    encoder_cache_size: int | None = None
    spec_method: str | None = None
    num_speculative_tokens: int = 0
    disable_lookahead_block_hashes: bool = False
    acceptance_rate: float = 0.0
    max_loras: int | None = None
    prefix_cache_retention_interval: int | None = 0
    kv_groups: tuple[KVGroup, ...] = field(default_factory=lambda: (KVGroup(),))
    vllm_version: str = "0.33"
    log_capacity: int = 0
    kv_events: bool = True
    step_capacity: int = 0

    def __post_init__(self) -> None:
        for name in (
            "enable_prefix_caching",
            "enable_chunked_prefill",
            "disable_chunked_mm_input",
            "async_scheduling",
            "disable_lookahead_block_hashes",
        ):
            if not isinstance(getattr(self, name), bool):
                raise KvsimError(f"{name} must be true or false, not {getattr(self, name)!r}")
        if self.scheduler_reserve_full_isl not in (None, True, False):
            given = self.scheduler_reserve_full_isl
            raise KvsimError(f"scheduler_reserve_full_isl must be true or false, not {given!r}")
        for name, least in (
            ("num_gpu_blocks", 2),
            ("max_model_len", 1),
            ("block_size", 1),
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 1),
            ("long_prefill_token_threshold", 0),
            ("num_speculative_tokens", 0),
        ):
            self._check_range(name, least)
        for name, least in (
            ("encoder_compute_budget", 1),
            ("encoder_cache_size", 1),
            ("max_loras", 1),
        ):
            if getattr(self, name) is not None:
                self._check_range(name, least)
        for name, choices in (
            ("scheduling_policy", POLICIES),
            ("spec_method", SPEC_METHODS),
            ("prefix_caching_hash_algo", ("fast", *HASH_FUNCTIONS)),
        ):
            self._check_choice(name, choices)
        self._check_together()

    def _check_range(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if type(value) is not int:
            raise KvsimError(f"{name} must be a whole number, not {value!r}")
        if not least <= value <= MAX_TOKENS:
            raise KvsimError(f"{name} must be from {least} to {MAX_TOKENS}, not {value}")

    def _check_choice(self, name: str, choices: tuple[Any, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise KvsimError(f"{name} must be one of {', '.join(map(str, choices))}, not {value!r}")

    def _check_together(self) -> None:
        if not 0 <= self.watermark < 1:
            raise KvsimError(f"watermark must be at least 0 and below 1, not {self.watermark}")
        if not 0 <= self.acceptance_rate <= 1:
            raise KvsimError(f"acceptance_rate must be from 0 to 1, not {self.acceptance_rate}")
        if (self.spec_method is None) != (self.num_speculative_tokens == 0):
            raise KvsimError("spec_method and num_speculative_tokens go together")
        # vLLM 0.33.0 config/scheduler.py verify_max_model_len: a whole prompt must fit one step.
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise KvsimError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_model_len "
                f"({self.max_model_len}) without enable_chunked_prefill"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise KvsimError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs})"
            )
        if not self.kv_groups:
            raise KvsimError("kv_groups must name at least one group")

    @property
    def rules(self) -> VllmRules:
        return rules_for(self.vllm_version)

    @property
    def full_sequence_must_fit(self) -> bool:
        """Whether a prompt is admitted only if all of it fits; by the release, or as the flag says.

        The flag came between the releases that kvsim knows (0.19), so it is not tied to one of them.
        """
        given = self.scheduler_reserve_full_isl
        return self.rules.full_sequence_gate if given is None else given

    @property
    def queue_depth(self) -> int:
        """Batches in flight (vLLM 0.33.0 `VllmConfig.max_concurrent_batches` without pipelining)."""
        return 2 if self.async_scheduling else 1

    @property
    def num_lookahead_tokens(self) -> int:
        """Draft slots with KV of their own; n-gram drafts have none."""
        return self.num_speculative_tokens if self.spec_method == "eagle" else 0

    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens after a block that its hash covers (EAGLE-like drafts, 0.33)."""
        eagle = self.spec_method == "eagle" and self.enable_prefix_caching
        covers = self.rules.lookahead_block_hashes and not self.disable_lookahead_block_hashes
        return 1 if eagle and covers else 0

    @property
    def use_eagle_block_drop(self) -> bool:
        """Whether a hit gives up its last block, whose draft KV saw another next token."""
        return self.spec_method == "eagle" and self.num_hash_lookahead_tokens == 0

    @property
    def index_group(self) -> int:
        """The KV cache group that a router's index follows: the first with full attention, else the first."""
        return next((g for g, group in enumerate(self.kv_groups) if group.kind == "full"), 0)

    def kv_cache_config(self) -> KVCacheConfig:
        return KVCacheConfig(
            num_gpu_blocks=self.num_gpu_blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            rules=self.rules,
            groups=self.kv_groups,
            max_in_flight_tokens=self.queue_depth * self.max_num_batched_tokens,
            enable_prefix_caching=self.enable_prefix_caching,
            use_eagle_block_drop=self.use_eagle_block_drop,
            num_hash_lookahead_tokens=self.num_hash_lookahead_tokens,
            retention_interval=self.prefix_cache_retention_interval,
            watermark=self.watermark,
            log_capacity=self.log_capacity,
            kv_events=self.kv_events,
        )

    @cached_property
    def _block_limits(self) -> tuple[tuple[int, int], ...]:
        """Block size and most blocks of one request (below 0: no limit), per group."""
        kv = self.kv_cache_config()
        sizes = zip(kv.groups, kv.group_block_sizes, strict=True)
        return tuple((size, kv.max_admission_blocks(group, size)) for group, size in sizes)

    def blocks_for(self, num_tokens: int) -> int:
        """Most blocks that a request of that many tokens holds at once, over all groups."""
        needs = ((math.ceil(num_tokens / size), cap) for size, cap in self._block_limits)
        return sum(need if cap < 0 else min(need, cap) for need, cap in needs)

    @property
    def encoder_budget(self) -> int:
        """Embeddings that one step may encode."""
        return self.encoder_compute_budget or self.max_num_batched_tokens

    def may_refuse(
        self,
        num_prompt_tokens: NDArray[np.int64],
        num_output_tokens: NDArray[np.int64],
        largest_images: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """For many requests at once: false where `refusal` surely is None."""
        longest = num_prompt_tokens + num_output_tokens + self.num_lookahead_tokens
        blocks = sum(-(-longest // size) for size, _ in self._block_limits)
        return (
            (num_prompt_tokens < 1)
            | (num_prompt_tokens >= self.max_model_len)
            | (blocks > self.num_gpu_blocks - 1)
            | (largest_images > 0)
        )

    def refusal(self, num_prompt_tokens: int, num_output_tokens: int, largest_image: int = 0) -> str | None:
        """Why a request of this size can never run to its end here, or None. Sizes in tokens.

        A prompt must leave room for one output token within max_model_len (vLLM refuses it at the
        door); what the request grows to must fit the whole pool, else it would preempt itself for
        ever; each of its images must fit the encoder's budget and cache.
        """
        if num_prompt_tokens < 1:
            return "prompt is empty"
        if num_prompt_tokens >= self.max_model_len:
            return (
                f"prompt of {num_prompt_tokens} tokens leaves no room for output in "
                f"max_model_len {self.max_model_len}"
            )
        longest = num_prompt_tokens + max(num_output_tokens, 1) - 1
        longest = min(longest + self.num_lookahead_tokens, self.max_model_len)
        need, have = self.blocks_for(longest), self.num_gpu_blocks - 1
        if need > have:
            return f"needs {need} KV blocks for {longest} tokens, the pool has {have}"
        room = min(self.encoder_budget, self.encoder_cache_size or self.encoder_budget)
        if self.disable_chunked_mm_input:
            room = min(room, self.max_num_batched_tokens)
        if largest_image > room:
            return f"image of {largest_image} tokens exceeds the encoder budget of {room}"
        return None
