"""The batch of a point, and its keys and values in a paged KV cache."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvsim.calibrate.measure.device import Device
from kvsim.calibrate.measure.points import Point
from kvsim.calibrate.measure.request import HeadShape

_ELEMENT_BYTES = {"bfloat16": 2, "fp8": 1}


@dataclass(frozen=True)
class Sequences:
    """new: new tokens of each sequence; kv: its context with them."""

    new: tuple[int, ...]
    kv: tuple[int, ...]

    @classmethod
    def of(cls, point: Point) -> "Sequences":
        if point.operation != "mixed":
            return cls((point["q_len"],) * point["batch"], (point["kv_len"],) * point["batch"])
        chunk, decodes = point["prefill_chunk"], point["n_decode"]
        first = point["kv_prefill"] + chunk
        return cls((chunk, *[1] * decodes), (first, *[point["kv_decode"] + 1] * decodes))

    @property
    def most_new(self) -> int:
        return max(self.new)

    @property
    def most_kv(self) -> int:
        return max(self.kv)

    def starts(self, device: Device, lengths: tuple[int, ...]) -> Any:
        """int32 (sequences + 1,): where each sequence begins in a packed row of tokens."""
        total, starts = 0, [0]
        for length in lengths:
            total += length
            starts.append(total)
        return device.whole(starts)

    def nbytes(self, heads: HeadShape, dtype: str, block_size: int = 1) -> float:
        """Of keys and values, and of queries, outputs and new keys and values."""
        tokens = sum(-(-kv // block_size) * block_size for kv in self.kv)
        cache = 2 * tokens * heads.n_kv * heads.head_dim * _ELEMENT_BYTES[dtype]
        return cache + 4 * sum(self.new) * (heads.n_q + heads.n_kv) * heads.head_dim


class PagedCache:
    """Keys and values of sequences in blocks of random order, with what a kernel is told of them.

    cache: (2, blocks, block size, KV heads, head size), keys and values. block_table: int32
    (sequences, blocks of the longest). slots: int64 (new tokens,), where those belong. In fp8 queries are
    fp8, too, as the kernels ask for; new keys and values are bfloat16, as the layer before gives them.
    """

    def __init__(
        self, device: Device, point: Point, sequences: Sequences, block_size: int, dtype: str
    ) -> None:
        self.sequences = sequences
        self.heads = heads = point.heads
        self.block_size = block_size
        self._device = device
        device.require(sequences.nbytes(heads, dtype, block_size))
        counts = [-(-kv // block_size) for kv in sequences.kv]
        blocks = sum(counts)
        self.cache = device.random(2, blocks, block_size, heads.n_kv, heads.head_dim, dtype=dtype)
        self.new = device.random(2, sum(sequences.new), heads.n_kv, heads.head_dim)
        self.query = device.random(sum(sequences.new), heads.n_q, heads.head_dim, dtype=dtype)
        self.block_table = self._tables(counts, blocks)
        self.slots = self._slots()
        bits = device.torch.uint8 if dtype == "fp8" else self.cache.dtype  # index_copy_ knows no fp8
        self._stored = self.cache.view(bits).view(2, -1, heads.n_kv, heads.head_dim)
        self._fresh = self.new.to(self.cache.dtype).view(bits)

    @cached_property
    def new_starts(self) -> Any:
        return self.sequences.starts(self._device, self.sequences.new)

    @cached_property
    def lengths(self) -> Any:
        return self._device.whole(self.sequences.kv)

    def write(self) -> None:
        """New keys and values into their slots, in one kernel."""
        self._stored.index_copy_(1, self.slots, self._fresh)

    def _tables(self, counts: list[int], blocks: int) -> Any:
        torch, device = self._device.torch, self._device.device
        order = torch.randperm(blocks, device=device).to(torch.int32)
        table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device=device)
        held = torch.arange(max(counts), device=device)[None, :] < self._device.whole(counts)[:, None]
        table[held] = order
        return table

    def _slots(self) -> Any:
        torch = self._device.torch
        counts = self._device.whole(self.sequences.new, torch.int64)
        ends = self._device.whole(self.sequences.kv, torch.int64)
        row = torch.repeat_interleave(counts)
        within = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
        position = (ends - counts)[row] + within
        block = self.block_table[row, position // self.block_size].to(torch.int64)
        return block * self.block_size + position % self.block_size
