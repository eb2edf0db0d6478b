"""Sizes to choose points from, and those that come first.

The core sizes are the few that pin the fitted numbers of the cost model's forms: what each is there for
stands beside it. All others fill the space between and beyond.
"""

from dataclasses import dataclass

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Sizes along each axis, upper bounds, and core points (see the module).

    most_new, most_kv: tokens of a whole batch. most_flops: of one call.
    reduce_gpus: numbers of GPUs, as far as there are so many.
    """

    batches: Sizes
    new_tokens: Sizes
    contexts: Sizes
    chunks: Sizes
    chunk_contexts: Sizes
    chunk_batches: Sizes
    decodes: Sizes
    rows: Sizes
    sides: Sizes
    images: Sizes
    image_tokens: Sizes
    copy_bytes: Sizes
    copy_pieces: Sizes
    reduce_elements: Sizes
    reduce_gpus: Sizes
    most_new: int
    most_kv: int
    most_flops: float
    core_prefill: tuple[tuple[int, int], ...] = ()
    core_cached: tuple[tuple[int, int, int], ...] = ()
    core_decode: tuple[tuple[int, int], ...] = ()
    core_mixed: tuple[tuple[int, int, int, int], ...] = ()
    core_rows: Sizes = ()
    core_encoder: tuple[tuple[int, int], ...] = ()


def _octaves(first: int, last: int) -> Sizes:
    return tuple(1 << power for power in range(first, last + 1))


def _with_halves(first: int, last: int) -> Sizes:
    """Powers of two and the middles between them."""
    return tuple(sorted({*_octaves(first, last), *(3 << power for power in range(first, last - 1))}))


CARD = Grid(
    batches=_octaves(0, 11),
    new_tokens=_with_halves(4, 14),
    contexts=_octaves(1, 17),
    chunks=(16, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
    chunk_contexts=(256, 1024, 4096, 8192, 16384, 32768, 65536, 122880),
    chunk_batches=(1, 2, 4, 16, 64),
    decodes=(1, 4, 8, 16, 32, 64, 128, 256),
    rows=(*range(1, 9), *_with_halves(3, 14), 9, 17, 33, 65, 129, 257, 513, 1025),
    sides=(512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384),
    images=_octaves(0, 6),
    image_tokens=(64, 256, 576, 1024, 1296, 2304, 4096, 6400, 9216, 16384, 32768),
    copy_bytes=tuple(1 << power for power in range(12, 30)),
    copy_pieces=(1, 8, 64),
    reduce_elements=_octaves(7, 28),
    reduce_gpus=(2, 4, 8),
    most_new=131072,
    most_kv=1 << 21,
    most_flops=4e13,
    core_prefill=(
        # (batch, new tokens)
        (1, 16),  # launch
        (1, 16384),  # tensor cores and softmax at one sequence
        (8, 4096),  # the same at several
        (64, 128),  # padding of short rows
        (1, 2048),  # where the terms meet
        (256, 32),  # padding and bytes
        (32, 1024),  # the usual chunk
        (1, 256),  # one block that walks its context
        (4, 8192),
        (256, 512),  # bytes of many short sequences
        (16, 256),
        (1, 6144),
    ),
    core_cached=(
        # (batch, new tokens, cached tokens)
        (1, 16, 8192),
        (1, 512, 8192),
        (1, 2048, 32768),
        (1, 16, 122880),
        (1, 2048, 4096),
        (4, 512, 1024),
        (1, 8192, 65536),
        (16, 64, 4096),
    ),
    core_decode=(
        # (batch, context with the new token)
        (1, 128),  # launch
        (64, 8192),  # bandwidth, far beyond the L2 cache
        (1, 131072),  # one sequence walked by few blocks
        (256, 128),  # cost of a sequence
        (256, 4096),  # bandwidth at full batch
        (8, 1024),  # bytes within the L2 cache
        (2048, 16),  # cost of a sequence and KV head
        (1, 8192),  # split of the context
        (16, 32768),
        (32, 1024),  # a usual step
        (1024, 1024),
        (4, 65536),
        (128, 512),
    ),
    core_mixed=(
        # (chunk, its context, decodes, their context)
        (16, 0, 1, 16384),  # one decode walked without its context split
        (512, 0, 32, 1024),
        (2048, 0, 128, 1024),
        (512, 8192, 32, 4096),
        (128, 0, 256, 256),
        (2048, 16384, 8, 16384),
        (16, 0, 64, 4096),
        (1024, 0, 8, 32768),
    ),
    # weights read once, where arithmetic takes over, and tiles in full
    core_rows=(1, 16, 8192, 256, 64, 1024, 4, 128, 512, 2048, 32, 4096),
    core_encoder=((1, 256), (1, 4096), (8, 1024), (1, 16384), (64, 256), (2, 2304)),
)

# The same code in a moment, for machines without a GPU.
TINY = Grid(
    batches=(1, 2),
    new_tokens=(16, 32),
    contexts=(16, 33),
    chunks=(8, 16),
    chunk_contexts=(16, 32),
    chunk_batches=(1, 2),
    decodes=(1, 2),
    rows=(1, 8),
    sides=(64,),
    images=(1, 2),
    image_tokens=(16, 32),
    copy_bytes=(1 << 12, 1 << 16),
    copy_pieces=(1, 4),
    reduce_elements=(128, 1024),
    reduce_gpus=(2,),
    most_new=64,
    most_kv=128,
    most_flops=1e7,
    core_decode=((2, 33),),
)
