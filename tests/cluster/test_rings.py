"""Hash rings and the policies on them: `session`, `consistent_hashing`, `prefix_hash`."""

import json
from pathlib import Path

import pytest
import uhashring
from asking import Asked, request, shares

from kvsim.cluster.policies.prefix_hash import PrefixHash
from kvsim.cluster.policies.rings import ConsistentHashing, HashRing, Session, SglangRing, _blake3

RECORDED = json.loads((Path(__file__).parent / "data" / "uhashring-2.5.json").read_text(encoding="utf-8"))
NAMES = ["a", "b", "c", "d"]


def placed(ring_class, names: list[str], keys) -> dict[str, str]:
    ring = ring_class(names)
    return {key: names[ring.number_of(key)] for key in keys}


class TestRings:
    def test_keys_lie_where_uhashring_puts_them(self):
        keys = RECORDED["keys"]
        assert placed(HashRing, RECORDED["nodes"], keys) == keys
        rest = [node for node in RECORDED["nodes"] if node != RECORDED["removed"]]
        assert placed(HashRing, rest, keys) == {**keys, **RECORDED["keys_after"]}

    def test_the_same_as_the_library(self):
        names = [f"http://10.0.0.{i}:8000" for i in range(30)]
        theirs, ours = uhashring.HashRing(names), HashRing(names)
        keys = [f"user-{i}" for i in range(2000)]
        assert [names[ours.number_of(key)] for key in keys] == [theirs.get_node(key) for key in keys]

    @pytest.mark.parametrize("ring_class", [HashRing, SglangRing])
    def test_only_keys_of_a_removed_name_move(self, ring_class):
        keys = [f"user-{i}" for i in range(1000)]
        before, after = placed(ring_class, NAMES, keys), placed(ring_class, ["a", "c", "d"], keys)
        moved = {key for key in keys if before[key] != after[key]}
        assert moved == {key for key in keys if before[key] == "b"}
        assert 150 < len(moved) < 350

    @pytest.mark.parametrize("ring_class", [HashRing, SglangRing])
    def test_the_order_of_names_does_not_matter(self, ring_class):
        keys = [f"user-{i}" for i in range(100)]
        assert placed(ring_class, NAMES, keys) == placed(ring_class, NAMES[::-1], keys)

    def test_points_are_numbered_in_bytes(self):
        # worked out apart from kvsim, as sgl-model-gateway's worker_registry.rs of 2026 has it
        names = [f"http://w{i}:8000" for i in (1, 2, 3)]
        keys = [f"user-{i}" for i in range(8)]
        assert [names.index(placed(SglangRing, names, keys)[key]) for key in keys] == [0, 0, 1, 2, 2, 0, 0, 0]

    def test_positions_are_blake3(self):
        # First 8 bytes, little endian, of the published BLAKE3 of the empty text af1349b9 f5f9a1a6 ...
        assert _blake3(b"") == int.from_bytes(bytes.fromhex("af1349b9f5f9a1a6"), "little")


class TestSession:
    def test_a_session_stays(self):
        router = Asked(Session(), NAMES)
        asked = [request((1, 0, 9), session=f"user-{i}") for i in range(50)]
        first = [router.choose(one) for one in asked]
        assert [router.choose(one) for one in asked] == first
        assert len(set(first)) == len(NAMES)
        assert [NAMES[target] for target in first] == list(
            placed(HashRing, NAMES, [f"user-{i}" for i in range(50)]).values()
        )

    def test_without_a_session_unused_targets_come_first_then_the_lowest_rate(self):
        router = Asked(Session(), ["a", "b", "c"])
        nobody = request((1, 0, 9))
        assert [router.choose(nobody, now) for now in (0, 1, 2, 3, 4, 5)] == [0, 1, 2, 0, 1, 2]
        assert router.choose(nobody, 60.5) == 0  # a's request of second 0 has left the window
        assert router.choose(nobody, 60.6) == 0  # two each: the first
        assert router.choose(nobody, 61.5) == 1

    def test_the_edge_of_the_window_is_inside(self):
        router = Asked(Session(request_stats_window=10), ["a", "b"])
        nobody = request((1, 0, 9))
        assert [router.choose(nobody, now) for now in (0, 0, 5)] == [0, 1, 0]
        assert router.choose(nobody, 10) == 1
        assert router.choose(nobody, 15.1) == 0  # a's two requests have left, one of b's is still there

    def test_requests_with_a_session_count(self):
        router = Asked(Session(), ["a", "b"])
        key = next(f"u{i}" for i in range(99) if placed(HashRing, ["a", "b"], [f"u{i}"])[f"u{i}"] == "a")
        router.choose(request((1, 0, 9), session=key))
        assert router.choose(request((1, 0, 9))) == 1


class TestConsistentHashing:
    def test_a_key_stays_and_no_key_goes_anywhere(self):
        router = Asked(ConsistentHashing(), NAMES)
        for i in range(20):
            target = router.choose(request((1, 0, 9), session=f"user-{i}"))
            assert NAMES[target] == placed(SglangRing, NAMES, [f"user-{i}"])[f"user-{i}"]
        assert not router.draws
        for share in shares(lambda: router.choose(request((1, 0, 9))), len(NAMES)):
            assert share == pytest.approx(0.25, abs=0.04)


class TestPrefixHash:
    def test_equal_heads_fall_together(self):
        router = Asked(PrefixHash(load_factor=1000), NAMES)
        for stream in range(1, 30):
            first = router.choose(request((stream, 0, 256), (99, 0, 50)))
            assert router.choose(request((stream, 0, 300))) == first
            assert router.choose(request((stream, 0, 100), (stream, 100, 200))) == first
        heads = {router.choose(request((stream, 0, 255))) for stream in range(1, 30)}
        assert heads == {0, 1, 2, 3}

    def test_the_number_of_tokens_is_a_parameter(self):
        router = Asked(PrefixHash(prefix_token_count=10, load_factor=1000), NAMES)
        assert len({router.choose(request((5, 0, 10), (i, 0, 90))) for i in range(10, 30)}) == 1

    def test_a_busy_target_yields_to_the_first_of_the_least_busy(self):
        router = Asked(PrefixHash(), NAMES)
        asked = request((7, 0, 100))
        preferred = router.choose(asked)
        others = [target for target in range(4) if target != preferred]
        # 1 of (1 + 1) / 4 * 1.25 = 0.625: too much
        assert router.choose(asked) == others[0]
        assert router.choose(asked) == others[1]
        router.targets["in_flight"] = 4
        assert router.choose(asked) == preferred  # 4 <= 17 / 4 * 1.25

    def test_all_too_busy_for_the_factor(self):
        router = Asked(PrefixHash(load_factor=0.5), ["a", "b"])
        router.targets["in_flight"] = [5, 6]
        heads = (request((stream, 0, 9)) for stream in range(1, 99))
        asked = next(head for head in heads if Asked(PrefixHash(), ["a", "b"]).choose(head) == 1)
        assert router.choose(asked) == 1
