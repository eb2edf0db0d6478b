"""torch's own FlashAttention-2 (PyTorch 2.4 and later), which is there wherever torch is.

Both operations align the causal mask at the last key, as an engine needs it; `scaled_dot_product_attention`
itself does not, so the operators below it are called.
"""

from typing import Any

from kvsim.calibrate.measure.device import Device
from kvsim.calibrate.measure.operations.operation import Operation
from kvsim.calibrate.measure.operations.sequences import Sequences
from kvsim.calibrate.measure.points import Kernel, Point
from kvsim.calibrate.measure.timing import Call


class Sdpa(Operation):
    """The flash backend of torch's SDPA on a KV cache in one piece; all sequences of one length."""

    def __init__(self, device: Device) -> None:
        operations = frozenset({"prefill", "cached", "decode", "encoder"})
        self.kernel = Kernel("torch_sdpa_flash", operations, "torch", device.card.torch)

    def prepare(self, device: Device, point: Point) -> list[Call]:
        return self._encoder(device, point) if point.operation == "encoder" else self._decoder(device, point)

    def _encoder(self, device: Device, point: Point) -> list[Call]:
        shape = (point["batch"], point["seq_len"], point["n_heads"], point["head_dim"])
        device.require(10 * shape[0] * shape[1] * shape[2] * shape[3])
        q, k, v = (device.random(*shape).transpose(1, 2) for _ in range(3))
        return [lambda: attention(device, q, k, v, causal=False)]

    def _decoder(self, device: Device, point: Point) -> list[Call]:
        heads, batch, new, kv = point.heads, point["batch"], point["q_len"], point["kv_len"]
        device.require(Sequences.of(point).nbytes(heads, "bfloat16"))
        q = device.random(batch, new, heads.n_q, heads.head_dim).transpose(1, 2)
        cache = device.random(2, batch, kv, heads.n_kv, heads.head_dim)
        last, fresh = cache[:, :, kv - new :], device.random(2, batch, new, heads.n_kv, heads.head_dim)
        k, v = cache[0].transpose(1, 2), cache[1].transpose(1, 2)

        def call() -> Any:
            last.copy_(fresh)
            return attention(device, q, k, v, causal=new > 1)

        return [call]


class Varlen(Operation):
    """torch's flash attention for sequences of different lengths, packed without padding: mixed steps."""

    def __init__(self, device: Device) -> None:
        self.kernel = Kernel("torch_varlen_flash", frozenset({"mixed"}), "torch", device.card.torch)

    def prepare(self, device: Device, point: Point) -> list[Call]:
        sequences, heads = Sequences.of(point), point.heads
        device.require(sequences.nbytes(heads, "bfloat16"))
        q = device.random(sum(sequences.new), heads.n_q, heads.head_dim)
        cache = device.random(2, sum(sequences.kv), heads.n_kv, heads.head_dim)
        fresh = device.random(2, sum(sequences.new), heads.n_kv, heads.head_dim)
        slots = device.whole(_last_tokens(sequences), device.torch.int64)
        starts = [sequences.starts(device, lengths) for lengths in (sequences.new, sequences.kv)]

        def call() -> Any:
            cache.index_copy_(1, slots, fresh)
            return varlen_attention(device, q, cache[0], cache[1], starts, sequences)

        return [call]


def attention(device: Device, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    """q: (batch, query heads, new, size); k, v: (batch, KV heads, keys, size). Out as q."""
    torch = device.torch
    if device.is_cuda:
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]
    new, keys = q.shape[2], k.shape[2]
    mask = torch.ones(new, keys, dtype=torch.bool).tril(keys - new) if causal else None
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]
    )


def varlen_attention(device: Device, q: Any, k: Any, v: Any, starts: list[Any], sequences: Sequences) -> Any:
    """q: (new tokens, query heads, size); k, v: (keys, KV heads, size); starts: of new and of all tokens."""
    torch = device.torch
    if device.is_cuda:
        most = (sequences.most_new, sequences.most_kv)
        return torch.ops.aten._flash_attention_forward(q, k, v, *starts, *most, 0.0, True, False)[0]
    out = torch.empty_like(q)
    first = key = 0
    for new, kv in zip(sequences.new, sequences.kv, strict=True):
        one = (
            part[None].transpose(1, 2)
            for part in (q[first : first + new], k[key : key + kv], v[key : key + kv])
        )
        out[first : first + new] = attention(device, *one, causal=True)[0].transpose(0, 1)
        first, key = first + new, key + kv
    return out


def _last_tokens(sequences: Sequences) -> list[int]:
    """Places of each sequence's new tokens, the last of it."""
    places: list[int] = []
    end = 0
    for new, kv in zip(sequences.new, sequences.kv, strict=True):
        end += kv
        places += range(end - new, end)
    return places
