"""FlashAttention of other packages, on a paged KV cache: `flash_attn`, `flash_attn_interface`, vLLM's.

Written after the signatures of flash-attn 2.8, of its Hopper package, and of vLLM 0.9 to 0.32.
"""

import inspect
from collections.abc import Callable
from typing import Any

from kvsim.calibrate.measure.device import Device, package_version
from kvsim.calibrate.measure.operations.operation import Operation
from kvsim.calibrate.measure.operations.sequences import PagedCache, Sequences
from kvsim.calibrate.measure.points import Kernel, Point
from kvsim.calibrate.measure.timing import Call

_DECODER = frozenset({"prefill", "cached", "decode", "mixed"})
_HOPPER = 9


class FlashAttention2(Operation):
    """`flash_attn_with_kvcache`, which also writes the cache; mixed steps by its varlen function."""

    def __init__(self) -> None:
        version = package_version("flash-attn")
        self.kernel = Kernel("flash_attn_2", _DECODER, "flash-attn", version, block_size=256)

    def prepare(self, device: Device, point: Point) -> list[Call]:
        import flash_attn

        paged = PagedCache(device, point, Sequences.of(point), self.kernel.block_size, "bfloat16")
        if point.operation == "mixed":
            return [self._mixed(flash_attn.flash_attn_varlen_func, device, paged)]
        return [self._equal(flash_attn.flash_attn_with_kvcache, device, paged)]

    def _equal(self, kernel: Callable[..., Any], device: Device, paged: PagedCache) -> Call:
        sequences = paged.sequences
        shape = (len(sequences.new), sequences.most_new, -1, paged.heads.head_dim)
        query, key, value = (each.view(shape) for each in (paged.query, *paged.new))
        before = paged.lengths - sequences.most_new
        return lambda: kernel(
            query,
            paged.cache[0],
            paged.cache[1],
            k=key,
            v=value,
            cache_seqlens=before,
            block_table=paged.block_table,
            causal=True,
        )

    def _mixed(self, kernel: Callable[..., Any], device: Device, paged: PagedCache) -> Call:
        sequences = paged.sequences
        starts = sequences.starts(device, sequences.kv)

        def call() -> Any:
            paged.write()
            return kernel(
                paged.query,
                paged.cache[0],
                paged.cache[1],
                paged.new_starts,
                starts,
                sequences.most_new,
                sequences.most_kv,
                causal=True,
                block_table=paged.block_table,
            )

        return call


class FlashAttention3(Operation):
    """The Hopper package's `flash_attn_with_kvcache`."""

    def __init__(self) -> None:
        version = package_version("flash-attn-3") or package_version("flash_attn_3")
        dtypes = frozenset({"bfloat16", "fp8"})
        self.kernel = Kernel("flash_attn_fa3", _DECODER, "flash-attn-3", version, dtypes, block_size=64)

    def prepare(self, device: Device, point: Point) -> list[Call]:
        import flash_attn_interface

        sequences = Sequences.of(point)
        paged = PagedCache(device, point, sequences, self.kernel.block_size, point.dtype)
        scales: dict[str, Any] = {}
        if point.dtype == "fp8":
            scale = device.torch.ones(len(sequences.new), paged.heads.n_kv, device=device.device)
            scales = {f"{name}_descale": scale for name in "qkv"}

        def call() -> Any:
            paged.write()
            return flash_attn_interface.flash_attn_with_kvcache(
                paged.query,
                paged.cache[0],
                paged.cache[1],
                cache_seqlens=paged.lengths,
                page_table=paged.block_table,
                cu_seqlens_q=paged.new_starts,
                max_seqlen_q=sequences.most_new,
                causal=True,
                **scales,
            )

        return [call]


class VllmFlashAttention(Operation):
    """The kernel that vLLM picks on this device, with its own write of the cache.

    FlashAttention-3 gets its work plan made before, once a step as in the engine, with the
    most context splits that vLLM allows under CUDA graphs.
    """

    graph = True
    _MOST_SPLITS = 32

    def __init__(self, device: Device) -> None:
        self._version = 3 if device.capability[0] == _HOPPER else 2
        self.kernel = Kernel(
            f"vllm_flash_attn_fa{self._version}",
            _DECODER,
            "vllm",
            package_version("vllm"),
            frozenset({"bfloat16", "fp8"} if self._version == 3 else {"bfloat16"}),
            block_size=64,
        )

    def prepare(self, device: Device, point: Point) -> list[Call]:
        from vllm import _custom_ops, vllm_flash_attn

        torch, fp8 = device.torch, point.dtype == "fp8"
        sequences = Sequences.of(point)
        paged = PagedCache(device, point, sequences, self.kernel.block_size, point.dtype)
        output = torch.empty(paged.query.shape, dtype=torch.bfloat16, device=device.device)
        stored = paged.cache.view(torch.uint8) if fp8 else paged.cache
        one = torch.ones(1, device=device.device)
        options = self._options(vllm_flash_attn, device, paged)

        def call() -> Any:
            _custom_ops.reshape_and_cache_flash(
                paged.new[0],
                paged.new[1],
                stored[0],
                stored[1],
                paged.slots,
                "fp8" if fp8 else "auto",
                one,
                one,
            )
            return vllm_flash_attn.flash_attn_varlen_func(
                q=paged.query,
                k=paged.cache[0],
                v=paged.cache[1],
                out=output,
                cu_seqlens_q=paged.new_starts,
                max_seqlen_q=sequences.most_new,
                seqused_k=paged.lengths,
                max_seqlen_k=sequences.most_kv,
                causal=True,
                block_table=paged.block_table,
                **options,
            )

        return [call]

    def _options(self, module: Any, device: Device, paged: PagedCache) -> dict[str, Any]:
        """What only some versions of the kernel or of vLLM take."""
        options: dict[str, Any] = {"fa_version": self._version}
        if self._version == 3:
            options["num_splits"] = self._MOST_SPLITS
            plan = {
                "batch_size": len(paged.sequences.new),
                "max_seqlen_q": paged.sequences.most_new,
                "max_seqlen_k": paged.sequences.most_kv,
                "num_heads_q": paged.heads.n_q,
                "num_heads_kv": paged.heads.n_kv,
                "headdim": paged.heads.head_dim,
                "cache_seqlens": paged.lengths,
                "qkv_dtype": paged.query.dtype,
                "cu_seqlens_q": paged.new_starts,
                "page_size": paged.block_size,
                "causal": True,
                "num_splits": self._MOST_SPLITS,
            }
            options["scheduler_metadata"] = module.get_scheduler_metadata(
                **_accepted(module.get_scheduler_metadata, plan)
            )
        if paged.query.dtype != device.torch.bfloat16:
            shape = (len(paged.sequences.new), paged.heads.n_kv)
            scale = device.torch.ones(1, device=device.device).expand(shape)
            options |= {f"{name}_descale": scale for name in "qkv"}
        return _accepted(module.flash_attn_varlen_func, options)


def _accepted(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    known = inspect.signature(function).parameters
    return {name: value for name, value in options.items() if name in known}
