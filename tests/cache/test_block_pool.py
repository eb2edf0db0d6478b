"""`BlockPool` by exact ids: free order, duplicates, sharing, refusal, in both releases."""

import pytest

from kvsim.cache.block_pool import BlockPool
from kvsim.errors import KvsimError

A, B, C = (bytes([i]) * 16 for i in (1, 2, 3))
VERSIONS = pytest.mark.parametrize("version", ["0.33", "0.16"])


def test_block_0_is_never_handed_out():
    pool = BlockPool(5)
    assert pool.num_gpu_blocks == 5
    assert pool.free_queue() == [1, 2, 3, 4]
    assert pool.get_new_blocks(4) == [1, 2, 3, 4]
    assert pool.get_num_free_blocks() == 0


def test_usage_leaves_the_null_block_out():
    pool = BlockPool(5)
    assert pool.get_usage() == 0.0
    pool.get_new_blocks(1)
    assert pool.get_usage() == 0.25
    pool.get_new_blocks(3)
    assert pool.get_usage() == 1.0


def test_too_many_blocks_wanted():
    pool = BlockPool(4)
    with pytest.raises(KvsimError, match="4 blocks wanted, 3 are free"):
        pool.get_new_blocks(4)
    assert pool.free_queue() == [1, 2, 3]


@pytest.mark.parametrize("size", [1, 0, -3])
def test_a_pool_without_a_usable_block(size):
    with pytest.raises(KvsimError, match=f"num_gpu_blocks is {size}: at least 2"):
        BlockPool(size)


@VERSIONS
def test_cached_blocks_join_the_tail_in_the_order_given(version):
    pool = BlockPool(7, vllm_version=version)
    blocks = pool.get_new_blocks(4)
    for block, content in zip(blocks, (A, B, C, bytes(16)), strict=True):
        pool.cache_block(block, content, 16)
    pool.free_blocks(blocks[::-1])
    assert pool.free_queue() == [5, 6, 4, 3, 2, 1]


@pytest.mark.parametrize(("version", "queue"), [("0.33", [4, 3, 5, 6, 2, 1]), ("0.16", [5, 6, 4, 3, 2, 1])])
def test_blocks_without_a_hash(version, queue):
    """0.33 reuses them first, before anything cached has to go."""
    pool = BlockPool(7, vllm_version=version)
    blocks = pool.get_new_blocks(4)
    pool.cache_block(1, A, 16)
    pool.cache_block(2, B, 16)
    pool.free_blocks(blocks[::-1])
    assert pool.free_queue() == queue


@pytest.mark.parametrize(("version", "queue"), [("0.33", [3, 2, 1, 4]), ("0.16", [4, 3, 2, 1])])
def test_caching_off(version, queue):
    pool = BlockPool(5, enable_caching=False, vllm_version=version)
    blocks = pool.get_new_blocks(3)
    pool.free_blocks(blocks[::-1])
    assert pool.free_queue() == queue


@VERSIONS
def test_a_cached_block_is_found_until_it_is_handed_out_again(version):
    pool = BlockPool(3, vllm_version=version)
    pool.get_new_blocks(2)
    pool.cache_block(1, A, 16)
    pool.free_blocks([2, 1])
    assert pool.get_cached_block(A) == 1
    assert pool.get_new_blocks(1) == [2]
    assert pool.get_cached_block(A) == 1
    assert pool.get_new_blocks(1) == [1]
    assert pool.get_cached_block(A) is None


def test_one_content_in_several_blocks_gives_the_oldest():
    pool = BlockPool(6)
    pool.get_new_blocks(4)
    for block in (3, 1, 2):
        pool.cache_block(block, A, 16)
    assert pool.get_cached_block(A) == 3
    pool.free_blocks([3, 4, 1, 2])
    assert pool.free_queue() == [4, 5, 3, 1, 2]
    found = []
    for _ in range(5):
        pool.get_new_blocks(1)
        found.append(pool.get_cached_block(A))
    assert found == [3, 3, 1, 2, None]


def test_the_middle_one_of_equal_blocks_goes_first():
    pool = BlockPool(5)
    pool.get_new_blocks(4)
    for block in (1, 2, 3):
        pool.cache_block(block, A, 16)
    pool.free_blocks([2])
    pool.get_new_blocks(1)
    assert pool.get_cached_block(A) == 1
    pool.free_blocks([1])
    pool.get_new_blocks(1)
    assert pool.get_cached_block(A) == 3


def test_a_group_sees_its_own_blocks_only():
    pool = BlockPool(5)
    pool.get_new_blocks(2)
    pool.cache_block(1, A, 16, group_id=0)
    pool.cache_block(2, A, 16, group_id=1)
    assert [pool.get_cached_block(A, group_id) for group_id in (0, 1, 2)] == [1, 2, None]


def test_touch_takes_a_free_block_out_of_the_queue():
    pool = BlockPool(6)
    pool.get_new_blocks(3)
    for block, content in ((1, A), (2, B), (3, C)):
        pool.cache_block(block, content, 16)
    pool.free_blocks([1, 2, 3])
    pool.touch([2])
    assert pool.free_queue() == [4, 5, 1, 3]
    pool.touch([2])
    pool.free_blocks([2])
    assert pool.free_queue() == [4, 5, 1, 3]
    pool.free_blocks([2])
    assert pool.free_queue() == [4, 5, 1, 3, 2]


def test_the_null_block_can_be_touched_and_freed_without_effect():
    pool = BlockPool(4)
    pool.touch([0, 0])
    pool.free_blocks([0])
    assert pool.free_queue() == [1, 2, 3]


@VERSIONS
def test_reset_is_refused_while_a_block_is_in_use(version):
    pool = BlockPool(5, vllm_version=version)
    pool.get_new_blocks(2)
    pool.cache_block(1, A, 16)
    pool.cache_block(2, B, 16)
    pool.free_blocks([1])
    assert not pool.reset_prefix_cache()
    assert (pool.get_cached_block(A), pool.get_cached_block(B)) == (1, 2)
    pool.free_blocks([2])
    queue = pool.free_queue()
    assert pool.reset_prefix_cache()
    assert (pool.get_cached_block(A), pool.get_cached_block(B)) == (None, None)
    assert pool.free_queue() == queue


def test_a_large_pool_keeps_every_hash():
    n = 5000
    pool = BlockPool(n + 1)
    blocks = pool.get_new_blocks(n)
    hashes = [(i * 0x9E3779B97F4A7C15 % (1 << 128)).to_bytes(16, "little") for i in range(1, n + 1)]
    for block, block_hash in zip(blocks, hashes, strict=True):
        pool.cache_block(block, block_hash, 16)
    assert [pool.get_cached_block(block_hash) for block_hash in hashes] == blocks
