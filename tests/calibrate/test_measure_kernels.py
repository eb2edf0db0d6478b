"""The calls that are timed compute what an engine computes; other packages are called as they ask."""

import sys
from dataclasses import replace
from operator import attrgetter
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch, for example pip install torch==2.13.0+cpu")

from kvsim.calibrate.measure.device import Device, open_device  # noqa: E402
from kvsim.calibrate.measure.operations import available, copies, flash_attention, gemm  # noqa: E402
from kvsim.calibrate.measure.operations.sequences import PagedCache, Sequences  # noqa: E402
from kvsim.calibrate.measure.operations.torch_attention import (  # noqa: E402
    Sdpa,
    Varlen,
    attention,
    varlen_attention,
)
from kvsim.calibrate.measure.points import Kernel, Point  # noqa: E402

OPERATION = attrgetter("operation")
KERNEL = Kernel("any", frozenset(), "torch", "")


@pytest.fixture
def device() -> Device:
    torch.manual_seed(0)
    return open_device("cpu")


def equal(batch: int, new: int, kv: int, dtype: str = "bfloat16", heads=(4, 2, 16)) -> Point:
    names = ("batch", "q_len", "kv_len", "n_q", "n_kv", "head_dim")
    columns = tuple(zip(names, (batch, new, kv, *heads), strict=True))
    operation = "decode" if new == 1 else "prefill" if new == kv else "cached"
    return Point("attention", operation, KERNEL, dtype, columns)


def mixed(chunk: int, old: int, decodes: int, kv: int, dtype: str = "bfloat16") -> Point:
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "n_q", "n_kv", "head_dim")
    columns = tuple(zip(names, (chunk, old, decodes, kv, 4, 2, 16), strict=True))
    return Point("step_attention", "mixed", KERNEL, dtype, columns)


def reference(query, keys, values):
    """query: (new, heads, size); keys, values: (kv, KV heads, size); the last query sees all keys."""
    new, kv = len(query), len(keys)
    group = query.shape[1] // keys.shape[1]
    keys, values = (each.float().repeat_interleave(group, 1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query.float(), keys) / query.shape[-1] ** 0.5
    hidden = ~torch.ones(new, kv, dtype=torch.bool).tril(kv - new)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


def close(ours, theirs) -> None:
    torch.testing.assert_close(ours.float(), theirs, rtol=0.05, atol=0.05)


def remembered(device: Device, monkeypatch) -> list:
    """Everything that is drawn at random, in order."""
    drawn: list = []
    draw = Device.random

    def random(self, *shape, **kind):
        drawn.append(draw(self, *shape, **kind))
        return drawn[-1]

    monkeypatch.setattr(Device, "random", random)
    return drawn


@pytest.mark.parametrize("point", [equal(2, 1, 9), equal(2, 5, 5), equal(3, 4, 11)], ids=OPERATION)
def test_sdpa_writes_the_cache_and_aligns_its_mask_at_the_last_key(device, monkeypatch, point) -> None:
    drawn = remembered(device, monkeypatch)
    (call,) = Sdpa(device).prepare(device, point)
    out = call().transpose(1, 2)
    query, cache, fresh = drawn
    assert torch.equal(cache[:, :, point["kv_len"] - point["q_len"] :], fresh)
    for i in range(point["batch"]):
        close(out[i], reference(query.transpose(1, 2)[i].transpose(0, 1), *cache[:, i]))


def test_an_image_sees_all_of_itself(device, monkeypatch) -> None:
    drawn = remembered(device, monkeypatch)
    columns = (("batch", 2), ("seq_len", 6), ("n_heads", 3), ("head_dim", 16))
    (call,) = Sdpa(device).prepare(device, Point("attention_encoder", "encoder", KERNEL, "bfloat16", columns))
    out = call().transpose(1, 2)
    q, k, v = (each.float() for each in drawn)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 4.0
    close(out, torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v))


def test_varlen_takes_each_sequence_by_itself(device, monkeypatch) -> None:
    drawn = remembered(device, monkeypatch)
    point = mixed(chunk=3, old=4, decodes=2, kv=6)
    (call,) = Varlen(device).prepare(device, point)
    out = call()
    query, cache, fresh = drawn
    assert torch.equal(cache[:, [4, 5, 6, 13, 20]], fresh)
    for first, last, key, end in ((0, 3, 0, 7), (3, 4, 7, 14), (4, 5, 14, 21)):
        close(out[first:last], reference(query[first:last], *cache[:, key:end]))


def gathered(paged_keys, block_table, lengths):
    """Keys of each sequence in order, through the block table."""
    size = paged_keys.shape[1]
    for row, length in zip(block_table, lengths, strict=True):
        yield paged_keys[row[: -(-int(length) // size)].long()].flatten(0, 1)[: int(length)]


def paged_attention(query, keys, values, starts, lengths, block_table):
    out = torch.empty(query.shape)
    both = zip(gathered(keys, block_table, lengths), gathered(values, block_table, lengths), strict=True)
    for i, (k, v) in enumerate(both):
        rows = slice(int(starts[i]), int(starts[i + 1]))
        out[rows] = reference(query[rows], k, v)
    return out


def test_blocks_lie_in_random_order_and_no_two_tokens_share_a_slot(device) -> None:
    sequences = Sequences((1, 3, 1), (300, 7, 65))
    paged = PagedCache(device, equal(1, 1, 2), sequences, 64, "bfloat16")
    blocks = [int(b) for row, count in zip(paged.block_table, (5, 1, 2), strict=True) for b in row[:count]]
    assert sorted(blocks) == list(range(8))
    assert len(set(paged.slots.tolist())) == 5
    paged.write()
    keys = list(gathered(paged.cache[0], paged.block_table, sequences.kv))
    assert torch.equal(torch.cat((keys[0][-1:], keys[1][-3:], keys[2][-1:])), paged.new[0])
    assert paged.new_starts.tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize("point", [equal(2, 1, 300), equal(2, 5, 5), mixed(3, 260, 2, 511)], ids=OPERATION)
def test_flash_attn_2(device, monkeypatch, point) -> None:
    seen = {}

    def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, *, cache_seqlens, block_table, causal):
        assert causal
        assert k_cache.shape[1] % 256 == 0
        batch, new = q.shape[:2]
        for i in range(batch):
            for token in range(new):
                position = int(cache_seqlens[i]) + token
                block = int(block_table[i, position // 256])
                k_cache[block, position % 256], v_cache[block, position % 256] = k[i, token], v[i, token]
        starts = torch.arange(batch + 1) * new
        seen["writes"] = True
        return paged_attention(q.flatten(0, 1), k_cache, v_cache, starts, cache_seqlens + new, block_table)

    def flash_attn_varlen_func(q, k, v, cu_q, cu_k, max_q, max_k, causal=False, block_table=None):
        assert causal
        assert (max_q, max_k) == (3, 512)
        return paged_attention(q, k, v, cu_q, cu_k.diff(), block_table)

    module = ModuleType("flash_attn")
    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    module.flash_attn_varlen_func = flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    check_paged(flash_attention.FlashAttention2(), device, monkeypatch, point)


def check_paged(operation, device, monkeypatch, point) -> None:
    """The call's result is that of the data that was drawn, through the cache as it is afterwards."""
    made = []
    init = PagedCache.__init__

    def keep(self, *arguments) -> None:
        init(self, *arguments)
        made.append(self)

    monkeypatch.setattr(PagedCache, "__init__", keep)
    (call,) = operation.prepare(device, point)
    out = call()
    (paged,) = made
    lengths = paged.sequences.kv
    expected = paged_attention(paged.query, *paged.cache, paged.new_starts, lengths, paged.block_table)
    close(out.view(expected.shape), expected)
    rows = paged.cache[0].flatten(0, 1)
    assert torch.equal(rows[paged.slots], paged.new[0])


POINTS = [equal(2, 1, 300), equal(3, 4, 70), mixed(3, 60, 2, 127)]


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8"])
@pytest.mark.parametrize("point", POINTS, ids=OPERATION)
def test_flash_attn_3(device, monkeypatch, point, dtype) -> None:
    def flash_attn_with_kvcache(
        q, k_cache, v_cache, *, cache_seqlens, page_table, cu_seqlens_q, max_seqlen_q, causal, **scales
    ):
        assert causal
        assert max_seqlen_q == int(cu_seqlens_q.diff().max())
        if dtype == "fp8":
            assert {q.dtype, k_cache.dtype, v_cache.dtype} == {torch.float8_e4m3fn}
            assert {each.shape for each in scales.values()} == {(len(cache_seqlens), 2)}
            assert sorted(scales) == ["k_descale", "q_descale", "v_descale"]
            return None
        assert q.dtype == torch.bfloat16
        return paged_attention(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table)

    module = ModuleType("flash_attn_interface")
    module.flash_attn_with_kvcache = flash_attn_with_kvcache
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    operation = flash_attention.FlashAttention3()
    if dtype == "bfloat16":
        check_paged(operation, device, monkeypatch, point)
        return
    (call,) = operation.prepare(device, replace(point, dtype=dtype))
    call()


@pytest.fixture
def vllm(monkeypatch) -> SimpleNamespace:
    """vLLM's functions with the parameters of 0.32, as far as they are used; calls are noted."""
    noted = SimpleNamespace(plans=[], writes=[], calls=[])

    def reshape_and_cache_flash(
        key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale
    ):
        noted.writes.append(kv_cache_dtype)
        assert k_scale.shape == v_scale.shape == (1,)
        if kv_cache_dtype == "auto":
            for new, cache in ((key, key_cache), (value, value_cache)):
                cache.view(-1, *new.shape[1:])[slot_mapping] = new
        else:
            assert key_cache.dtype == torch.uint8

    def get_scheduler_metadata(
        batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens,
        qkv_dtype=torch.bfloat16, cu_seqlens_q=None, page_size=None, causal=False, num_splits=0,
    ):  # fmt: skip
        noted.plans.append((batch_size, max_seqlen_q, max_seqlen_k, page_size, causal, num_splits))
        return torch.zeros(1, dtype=torch.int32)

    def flash_attn_varlen_func(
        q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None,
        causal=False, block_table=None, out=None, scheduler_metadata=None,
        q_descale=None, k_descale=None, v_descale=None, num_splits=0, fa_version=2,
    ):  # fmt: skip
        noted.calls.append((fa_version, scheduler_metadata is not None, num_splits, q_descale))
        assert causal
        assert out.dtype == torch.bfloat16
        assert max_seqlen_k == int(seqused_k.max())
        if q.dtype != torch.bfloat16:
            assert k.dtype == v.dtype == q.dtype
            return out
        return paged_attention(q, k, v, cu_seqlens_q, seqused_k, block_table)

    module = ModuleType("vllm")
    module._custom_ops = SimpleNamespace(reshape_and_cache_flash=reshape_and_cache_flash)
    module.vllm_flash_attn = SimpleNamespace(
        get_scheduler_metadata=get_scheduler_metadata, flash_attn_varlen_func=flash_attn_varlen_func
    )
    monkeypatch.setitem(sys.modules, "vllm", module)
    return noted


@pytest.mark.parametrize("point", POINTS, ids=OPERATION)
def test_vllm_on_ampere(device, monkeypatch, vllm, point) -> None:
    operation = flash_attention.VllmFlashAttention(replace(device, capability=(8, 0)))
    assert operation.kernel.name == "vllm_flash_attn_fa2"
    assert "fp8" not in operation.kernel.dtypes
    check_paged(operation, device, monkeypatch, point)
    assert vllm.writes == ["auto"]
    assert vllm.calls == [(2, False, 0, None)]


def test_vllm_on_hopper_gets_its_work_plan_before(device, monkeypatch, vllm) -> None:
    operation = flash_attention.VllmFlashAttention(replace(device, capability=(9, 0)))
    assert operation.kernel.name == "vllm_flash_attn_fa3"
    check_paged(operation, device, monkeypatch, POINTS[2])
    assert vllm.plans == [(3, 3, 128, 64, True, 32)]
    assert vllm.calls == [(3, True, 32, None)]
    (call,) = operation.prepare(device, replace(POINTS[0], dtype="fp8"))
    call()
    assert vllm.writes[-1] == "fp8"
    assert vllm.calls[-1][3].shape == (2, 2)


def linear(dtype: str) -> Point:
    return Point("gemm", "gemm", KERNEL, dtype, (("dtype", dtype), ("m", 4), ("n", 48), ("k", 32)))


def test_linear_layers_take_turns_with_copies_of_their_weights(device, monkeypatch) -> None:
    drawn = remembered(device, monkeypatch)
    calls = gemm.TorchLinear(device).prepare(device, linear("bfloat16"))
    assert len(calls) == 6
    inputs, *weights = drawn
    for call, weight in zip(calls, weights, strict=True):
        close(call(), inputs.float() @ weight.float().T)
    assert [gemm.copies(size) for size in (2 << 20, 200 << 20, 2 << 30)] == [6, 3, 1]


def test_fp8_linear_layers_cast_their_input(device) -> None:
    calls = gemm.TorchFp8Linear(device).prepare(device, linear("fp8"))
    out = calls[0]()
    assert (out.shape, out.dtype) == ((4, 48), torch.bfloat16)


def test_pieces_of_a_copy_are_all_of_it(device) -> None:
    columns = (("direction", "host_to_device"), ("memory", "pinned"), ("pieces", 4), ("bytes", 4096))
    point = Point("copies", "copy", KERNEL, "bfloat16", columns)
    drawn = []
    operation = copies.Copies(device)
    make = operation._memory
    operation._memory = lambda *where: drawn.append(make(*where)) or drawn[-1]
    (call,) = operation.prepare(device, point)
    source, target = drawn
    source.fill_(7)
    call()
    assert target.sum().item() == 7 * 4096
    assert operation.time(device, point, [call], cold=False).us > 0


def test_torch_alone_does_every_operation(device) -> None:
    done = set().union(*(each.kernel.operations for each in available(device)))
    assert done == {"prefill", "cached", "decode", "mixed", "encoder", "gemm", "copy"}


def test_the_operators_that_cuda_runs_take_what_they_are_given() -> None:
    """On tensors without data, by torch's own description of these operators."""
    cuda = Device(torch, SimpleNamespace(type="cuda"), *([None] * 4))  # type: ignore[arg-type]
    query = torch.empty(2, 3, 8, 64, dtype=torch.bfloat16, device="meta")
    key = torch.empty(2, 9, 2, 64, dtype=torch.bfloat16, device="meta")
    out = attention(cuda, query.transpose(1, 2), key.transpose(1, 2), key.transpose(1, 2), causal=True)
    assert out.shape == (2, 8, 3, 64)
    starts = [torch.empty(3, dtype=torch.int32, device="meta")] * 2
    packed = (query.flatten(0, 1), key.flatten(0, 1), key.flatten(0, 1))
    out = varlen_attention(cuda, *packed, starts, Sequences((3, 3), (9, 9)))
    assert out.shape == (6, 8, 64)
    small = torch.empty(4, 32, dtype=torch.float8_e4m3fn, device="meta")
    one = torch.empty((), device="meta")
    weights = torch.empty(48, 32, dtype=torch.float8_e4m3fn, device="meta").t()
    out = torch._scaled_mm(
        small, weights, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    assert out.shape == (4, 48)
