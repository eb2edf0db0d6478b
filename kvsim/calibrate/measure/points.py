"""Which points to measure, in which order. A point is a row of a table that lacks its time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from kvsim.calibrate.measure.grids import Grid
from kvsim.calibrate.measure.order import interleaved, most_telling_first
from kvsim.calibrate.measure.request import EncoderShape, HeadShape, LinearShape, Request
from kvsim.calibrate.measure.shapes import model_of_heads

Value = str | int

# How often an operation's turn comes, against the others.
_WEIGHTS = {
    "decode": 3.0,
    "prefill": 3.0,
    "gemm": 6.0,
    "cached": 1.5,
    "mixed": 1.5,
    "encoder": 1.0,
    "copy": 1.5,
}
_REDUCE_AFTER = 12  # turns: all-reduce takes seconds to set up, and must not come before every core point


@dataclass(frozen=True)
class Kernel:
    """One way to run operations. version: of the package; block_size: of the KV cache, 0 if not paged."""

    name: str
    operations: frozenset[str]
    package: str
    version: str
    dtypes: frozenset[str] = frozenset({"bfloat16"})
    largest_head: int = 256
    block_size: int = 0


@dataclass(frozen=True)
class Point:
    """columns: key columns of `table` without the GPU's name, in the table's order."""

    table: str
    operation: str
    kernel: Kernel
    dtype: str
    columns: tuple[tuple[str, Value], ...]

    def __getitem__(self, column: str) -> int:
        return int(dict(self.columns)[column])

    def word(self, column: str) -> str:
        return str(dict(self.columns)[column])

    @property
    def heads(self) -> HeadShape:
        return HeadShape(self["n_q"], self["n_kv"], self["head_dim"])


def plan(request: Request, grid: Grid, kernels: Sequence[Kernel], gpus: int) -> list[Point]:
    """All points of the request, the most telling first; all-reduce of one number of GPUs in a row.

    gpus: how many are there.
    """
    groups = [
        (_WEIGHTS[operation], group)
        for kernel in kernels
        for operation in request.operations
        if operation in kernel.operations and operation in _WEIGHTS
        for dtype in request.dtypes
        if dtype in kernel.dtypes or operation in ("copy", "encoder")
        for group in _groups(operation, kernel, dtype, request, grid)
    ]
    points = list(dict.fromkeys(interleaved(groups)))
    if "all_reduce" not in request.operations:
        return points
    reduce = [kernel for kernel in kernels if "all_reduce" in kernel.operations]
    sets = [
        _all_reduce(kernel, grid, count) for kernel in reduce for count in grid.reduce_gpus if count <= gpus
    ]
    first = _REDUCE_AFTER * len(groups)
    return [*points[:first], *(point for each in sets for point in each), *points[first:]]


def left_out(request: Request, kernels: Sequence[Kernel]) -> Iterator[str]:
    """What the request names and the plan cannot have, one line each."""
    for operation in request.operations:
        able = [kernel for kernel in kernels if operation in kernel.operations]
        if operation not in ("prefill", "cached", "decode", "mixed", "gemm") or not able:
            continue
        for dtype in request.dtypes:
            if not any(dtype in kernel.dtypes for kernel in able):
                yield f"{operation}: left out in {dtype}: no installed kernel does it"
        for heads in request.shapes.heads if operation != "gemm" else ():
            largest = max(kernel.largest_head for kernel in able)
            if heads.head_dim > largest:
                yield f"{operation}: {heads} left out: heads are at most {largest} wide"
            elif operation == "mixed" and model_of_heads(heads) is None:
                yield f"mixed: {heads} left out: no model of the catalog has these heads to name them by"


def _groups(
    operation: str, kernel: Kernel, dtype: str, request: Request, grid: Grid
) -> Iterator[list[Point]]:
    shapes = request.shapes
    if operation == "gemm":
        yield _gemm(kernel, dtype, shapes.linears, grid)
    elif operation == "copy":
        yield _copies(kernel, grid)
    elif operation == "encoder":
        for encoder in shapes.encoders:
            if encoder.head_dim <= kernel.largest_head:
                yield _encoder(kernel, encoder, grid)
    else:
        for heads in shapes.heads:
            if heads.head_dim <= kernel.largest_head:
                yield _attention(operation, kernel, dtype, heads, grid)


def _attention(operation: str, kernel: Kernel, dtype: str, heads: HeadShape, grid: Grid) -> list[Point]:
    makers = {"prefill": _prefill, "cached": _cached, "decode": _decode, "mixed": _mixed}
    return makers[operation](kernel, dtype, heads, grid)


def _attention_point(
    table: str, operation: str, kernel: Kernel, dtype: str, heads: HeadShape, batch: int, new: int, kv: int
) -> Point:
    columns = (
        ("batch", batch),
        ("q_len", new),
        ("kv_len", kv),
        ("n_q", heads.n_q),
        ("n_kv", heads.n_kv),
        ("head_dim", heads.head_dim),
        ("kv_dtype", dtype),
        ("window", 0),
    )
    return Point(table, operation, kernel, dtype, columns)


def attention_flops(heads: HeadShape, batch: float, new: float, kv: float) -> float:
    """Of causal attention of `new` tokens that end a context of kv tokens."""
    return 4.0 * batch * heads.n_q * heads.head_dim * new * (kv - new / 2)


def _prefill(kernel: Kernel, dtype: str, heads: HeadShape, grid: Grid) -> list[Point]:
    sizes = [
        (batch, new)
        for batch, new in product(grid.batches, grid.new_tokens)
        if batch * new <= grid.most_new and attention_flops(heads, batch, new, new) <= grid.most_flops
    ]
    return [
        _attention_point("attention_prefill", "prefill", kernel, dtype, heads, batch, new, new)
        for batch, new in most_telling_first(sizes, sizes, grid.core_prefill)
    ]


def _cached(kernel: Kernel, dtype: str, heads: HeadShape, grid: Grid) -> list[Point]:
    sizes = [
        (batch, new, old)
        for batch, new, old in product(grid.chunk_batches, grid.chunks, grid.chunk_contexts)
        if batch * (new + old) <= grid.most_kv
        and batch * new <= grid.most_new
        and attention_flops(heads, batch, new, new + old) <= grid.most_flops
    ]
    return [
        _attention_point("attention_prefill", "cached", kernel, dtype, heads, batch, new, new + old)
        for batch, new, old in most_telling_first(sizes, sizes, grid.core_cached)
    ]


def _decode(kernel: Kernel, dtype: str, heads: HeadShape, grid: Grid) -> list[Point]:
    sizes = [(batch, kv) for batch, kv in product(grid.batches, grid.contexts) if batch * kv <= grid.most_kv]
    return [
        _attention_point("attention_decode", "decode", kernel, dtype, heads, batch, 1, kv)
        for batch, kv in most_telling_first(sizes, sizes, grid.core_decode)
    ]


def _mixed(kernel: Kernel, dtype: str, heads: HeadShape, grid: Grid) -> list[Point]:
    """One chunk beside decodes; without a model of those heads the table has no name for them."""
    model = model_of_heads(heads)
    if model is None or dtype != "bfloat16":  # the table has no column for the dtype
        return []
    sizes = [
        (new, old, decodes, kv)
        for new, old, decodes, kv in product(
            grid.chunks, (0, *grid.chunk_contexts), grid.decodes, grid.chunk_contexts
        )
        if new + old + decodes * (kv + 1) <= grid.most_kv
        and attention_flops(heads, 1, new, new + old) <= grid.most_flops
    ]
    # A quarter of the choices is enough: four axes of nine sizes are thousands.
    sizes = [each for i, each in enumerate(sizes) if i % 4 == 0 or each in grid.core_mixed]
    sizes = list(dict.fromkeys((*(core for core in grid.core_mixed), *sizes)))
    return [
        Point(
            "step_attention",
            "mixed",
            kernel,
            dtype,
            (
                ("model", model[0]),
                ("tp", model[1]),
                ("prefill_chunk", new),
                ("kv_prefill", old),
                ("n_decode", decodes),
                ("kv_decode", kv),
                ("n_q", heads.n_q),
                ("n_kv", heads.n_kv),
                ("head_dim", heads.head_dim),
            ),
        )
        for new, old, decodes, kv in most_telling_first(sizes, sizes, grid.core_mixed)
    ]


def _encoder(kernel: Kernel, shape: EncoderShape, grid: Grid) -> list[Point]:
    heads = HeadShape(shape.n_heads, shape.n_heads, shape.head_dim)
    sizes = [
        (batch, length)
        for batch, length in product(grid.images, grid.image_tokens)
        if batch * length <= grid.most_new
        and 2 * attention_flops(heads, batch, length, length) <= grid.most_flops
    ]
    return [
        Point(
            "attention_encoder",
            "encoder",
            kernel,
            "bfloat16",
            (
                ("batch", batch),
                ("seq_len", length),
                ("n_heads", shape.n_heads),
                ("head_dim", shape.head_dim),
            ),
        )
        for batch, length in most_telling_first(sizes, sizes, grid.core_encoder)
    ]


def _gemm(kernel: Kernel, dtype: str, shapes: Sequence[LinearShape], grid: Grid) -> list[Point]:
    """The models' shapes at the core numbers of rows, then these and a grid of sides at all numbers."""
    sides = [LinearShape(n, k) for n, k in product(grid.sides, grid.sides)]
    shapes = [s for s in dict.fromkeys(shapes) if not (s.n % 16 or s.k % 16)]  # what tensor cores take
    core = [(rows, s.n, s.k) for rows in grid.core_rows for s in shapes]
    sizes = [
        (rows, s.n, s.k)
        for rows, s in product(sorted(grid.rows), dict.fromkeys((*shapes, *sides)))
        if 2.0 * rows * s.n * s.k <= grid.most_flops
    ]
    return [
        Point("gemm", "gemm", kernel, dtype, (("dtype", dtype), ("m", m), ("n", n), ("k", k)))
        for m, n, k in most_telling_first(sizes, sizes, core)
    ]


def _copies(kernel: Kernel, grid: Grid) -> list[Point]:
    ways = [
        ("host_to_device", "pinned"),
        ("device_to_host", "pinned"),
        ("host_to_device", "pageable"),
        ("device_to_host", "pageable"),
        ("device_to_device", "device"),
    ]
    sizes = [
        (size, pieces)
        for size, pieces in product(grid.copy_bytes, grid.copy_pieces)
        if size // pieces >= grid.copy_bytes[0]
    ]
    return [
        Point(
            "copies",
            "copy",
            kernel,
            "bfloat16",
            (("direction", direction), ("memory", memory), ("pieces", pieces), ("bytes", size)),
        )
        for size, pieces in most_telling_first(sizes, sizes)
        for direction, memory in ways
    ]


def _all_reduce(kernel: Kernel, grid: Grid, gpus: int) -> list[Point]:
    sizes = [(count,) for count in grid.reduce_elements]
    return [
        Point(
            "collectives",
            "all_reduce",
            kernel,
            "bfloat16",
            (
                ("source", f"{kernel.package} {kernel.version}".strip()),
                ("dtype", "bfloat16"),
                ("num_gpus", gpus),
                ("message_size", count),
                ("bytes", 2 * count),
            ),
        )
        for (count,) in most_telling_first(sizes, sizes)
    ]
