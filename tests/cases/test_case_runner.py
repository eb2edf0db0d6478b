"""The runner itself: it reads the notation, and it notices what does not hold or is not known."""

import pytest
from case_expect import differences
from case_forms import variants
from case_prompts import PLACEHOLDER, Prompts
from case_runner import problems

BASE = {
    "id": "X",
    "kind": "engine",
    "vllm_version": "0.33",
    "engine": {"num_gpu_blocks": 20},
    "requests": [{"id": "a", "prompt": "A:40"}, {"id": "b", "prompt": "A:40"}],
}


def case(**changes):
    return {**BASE, **changes}


class TestNotation:
    def test_pieces(self):
        prompts = Prompts()
        prompts.output("r", 10)
        tokens, features = prompts.prompt("A:3 img(cat):2 A:1-4 out(r):2 B:1 out(r):8-10")
        again, _ = prompts.prompt("A:4")
        assert tokens[:3] == again[:3]
        assert tokens[3:5] == [PLACEHOLDER] * 2
        assert tokens[5:8] == again[1:4]
        assert features == (("cat", 3, 2),)
        rest = tokens[8:]
        assert len(rest) == len({*rest} - {*again}) == 5  # two streams share no id

    @pytest.mark.parametrize(
        "piece", ["A", "A:", "A:1-", "A:x", "img(a):1-2", "img():3", ":4", "out(z):1", "A:5-2"]
    )
    def test_a_piece_that_is_none(self, piece):
        with pytest.raises(AssertionError, match=r"\S"):
            Prompts().prompt(piece)

    def test_more_output_than_there_is(self):
        prompts = Prompts()
        prompts.output("r", 10)
        with pytest.raises(AssertionError, match="longer than its output"):
            prompts.prompt("out(r):11")


class TestExpectations:
    def test_holds(self):
        assert problems(case(expect={"cached_tokens": {"a": 0, "b": 32}})) == []

    @pytest.mark.parametrize(
        "expect",
        [
            {"cached_tokens": {"a": 0, "b": 48}},
            {"cached_tokens": {"a": 0, "c": 32}},
            {"cached_tokens": [0]},
            {"cached_tokens": 0},
            {"steps": 3},
            {"steps": True},
            {"steps": None},
            {"num_preemptions": 1},
            {"resumed": {"b": {"num_tokens": 1}}},
            {"after_step_1": {"running": ["a"]}},
            {"after_step_1": {"running": [], "paused": []}},
            {"kv_cache_usage_at_end": 0.1},
            {"kv_events": {"BlockStored": 2}},
            {"kv_events": {"BlockMoved": 0}},
        ],
    )
    def test_a_difference_is_found(self, expect):
        assert len(problems(case(expect=expect))) == 1

    @pytest.mark.parametrize("name", ["cached_token", "after_step_x", "queues", "usage", "valid", "chosen"])
    def test_an_unknown_expectation_fails(self, name):
        assert problems(case(expect={name: 1})) == [f"{name}: the runner does not know this expectation"]

    def test_expecting_nothing_fails(self):
        assert problems(case()) == ["nothing is expected"]

    def test_each_variant_counts(self):
        good, bad = {"expect": {"steps": 2}}, {"name": "wrong", "expect": {"steps": 9}}
        assert problems(case(variants=[good, bad])) == ["variant wrong: steps: want 9, have 2"]

    @pytest.mark.parametrize(
        ("wanted", "seen", "tolerance", "same"),
        [
            (0.1010101, 10 / 99, None, True),
            (0.1010102, 10 / 99, None, False),
            (0.45, 0.4501, None, False),
            (100, 101, 1, True),
            (100, 102, 1, False),
            (100, 102, 0.02, True),
            (100, 103, "2%", False),
            (51, 51.04, 0.05, True),
            (51, 51.06, {"x": 0.05}, False),
            (51, 51.06, {"y": 0.05, "x": 0.1}, True),
        ],
    )
    def test_how_exact_numbers_are(self, wanted, seen, tolerance, same):
        assert (not differences({"x": wanted}, {"x": seen}, tolerance)) is same

    def test_reasons_are_compared_by_their_numbers(self):
        seen = {"reason": "row 2: field timestamp: 0.5 s lies before the row above, 2 s"}
        assert not differences({"reason": "500 comes after 2000"}, seen)
        assert differences({"reason": "500 comes after 2500"}, seen)
        assert differences({"reason": "anything"}, {"reason": None})


ROUTER = {"id": "R", "kind": "routing", "policy": {"name": "round_robin"}, "replicas": ["a", "b"]}


class TestRouters:
    def test_what_is_drawn_is_a_set(self):
        drawn = {**ROUTER, "policy": {"name": "random"}, "request": "P:9"}
        assert problems({**drawn, "expect": {"chosen_any": ["b", "a"]}}) == []
        assert problems({**drawn, "expect": {"chosen": "a"}}) == ["chosen: want a, have a or b"]
        assert problems({**drawn, "expect": {"chosen_any": ["a"]}}) == [
            "chosen_any: want ['a'], have ['a', 'b']"
        ]

    def test_each_request_has_its_own_expectation(self):
        requests = [
            {"id": "x", "prompt": "P:9", "expect": {"chosen": "a"}},
            {"id": "y", "prompt": "P:9"},
            {"id": "z", "prompt": "P:9", "expect": {"chosen": "b"}},
        ]
        assert problems({**ROUTER, "requests": requests}) == ["request z: chosen: want b, have a"]

    def test_a_variant_may_change_one_parameter(self):
        policy = {"name": "prefixaware", "prefix_min_match_length": 9}
        (variant,) = variants({**ROUTER, "policy": policy, "variants": [{"policy": {"chars_per_token": 1}}]})
        assert variant["policy"] == {**policy, "chars_per_token": 1}

    @pytest.mark.parametrize(
        "change",
        [
            {"replica": ["a"]},
            {"policy": {"name": "fastest"}},
            {"policy": {"name": "round_robin", "speed": 1}},
            {"request": {"prompt": "P:9", "temperature": 0}},
            {"request": {"prompt": "P:9", "text": [["A", 3]]}},
            {"requests": [{"prompt": "P:9"}]},
            {"index": {"c": ["P:9"]}, "policy": {"name": "longest_prefix"}},
            {"index": {"a": ["P:9"]}},
            {"metrics": {"a": {"queue": 3}}},
            {"booked": [{"on": "a", "prompt": "P:9", "phase": "queued"}]},
            {"policy": {"name": "llm_d"}, "weights": {"speed": 1}},
            {"policy": {"name": "llm_d", "maxTTFTPenalty": 5}},
            {"policy": {"name": "longest_prefix"}, "index": {"a": ["P:16"]}, "removed": {"a": [1]}},
            {"policy": {"name": "longest_prefix"}, "cleared": ["c"]},
        ],
    )
    def test_what_is_not_understood_is_never_passed_over(self, change):
        (line,) = problems({**ROUTER, "request": "P:9", "expect": {"chosen": "a"}, **change})
        assert line.startswith("cannot be run")

    @pytest.mark.parametrize("name", ["chose", "costs", "draws", "target"])
    def test_an_unknown_expectation_fails(self, name):
        found = problems({**ROUTER, "request": "P:9", "expect": {name: 1}})
        assert found == [f"{name}: the runner does not know this expectation"]

    @pytest.mark.parametrize(
        "policy",
        [
            {"name": "llm_d", "maxTTFTPenaltyMs": 5, "lruCapacityPerServer": 9, "speculativeIndexing": True},
            {"name": "prefix-cache", "AIBRIX_PREFIX_CACHE_BLOCK_SIZE": 8, "block_size": 8},
            {"name": "prefix-cache", "AIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR": 2},
            {"name": "kv", "router_kv_events": False, "router-temperature": 0.1},
            "least-request",
        ],
    )
    def test_parameters_have_the_originals_spelling_too(self, policy):
        expect = {"chosen_any": ["a", "b"]}
        assert problems({**ROUTER, "policy": policy, "request": "P:9", "expect": expect}) == []

    def test_what_is_under_way_was_sent(self):
        rates = {**ROUTER, "policy": "session", "request": "P:9"}
        assert problems({**rates, "running": {"a": 2, "b": 1}, "expect": {"chosen": "b"}}) == []
        history = {**ROUTER, "policy": "cache_aware", "booked": [{"on": "b", "prompt": "P:9"}]}
        assert problems({**history, "request": "P:9", "expect": {"chosen": "b"}}) == []
        counted = {**ROUTER, "policy": "least_request", "metrics": {"a": {"running": 1}}}
        assert problems({**counted, "request": "P:9", "expect": {"chosen": "b"}}) == []

    def test_an_index_alone(self):
        case = {"id": "I", "kind": "routing_index", "index": {"a": ["P:40"], "b": []}}
        good = {"prompt": "P:64", "expect": {"overlap_blocks": {"a": 2, "b": 0}, "candidates": ["a"]}}
        bad = {"prompt": "P:64", "available": ["b"], "expect": {"matched": 32}}
        assert problems({**case, "lookups": [good, bad]}) == ["lookup 2: matched: want 32, have 0"]
        assert problems({"id": "I", "kind": "routing_index", "lookups": [good]})[0].startswith("cannot")

    def test_a_ring_of_a_policy_that_has_none(self):
        ring = {"policy": "round_robin", "nodes": ["a", "b"], "keys": {"u0": "a"}}
        assert "has no ring" in problems({"id": "I", "kind": "routing_index", "ring": ring})[0]

    def test_ranks(self):
        ranks = {"id": "D", "kind": "dp", "snapshot": [[0, 0, 0.0]] * 2, "requests": 2}
        assert problems({**ranks, "expect": {"chosen": [0, 1], "waiting_after": [1, 1]}}) == []
        assert problems({**ranks, "expect": {"chosen": [0, 0]}}) == ["chosen: want [0, 0], have [0, 1]"]
        assert problems({**ranks, "data_parallel_rank": 1, "expect": {"chosen": [0, 1]}})[0].startswith(
            "cannot"
        )

    def test_lookups_and_rings(self):
        trie = {"inserted": [{"on": "A", "text": [["x", 200]]}]}
        lookup = {"text": [["x", 150]], "available": ["A", "B"]}
        case = {"id": "I", "kind": "routing_index", "trie": trie}
        good = {**lookup, "expect": {"matched": 128, "candidates": ["A"]}}
        bad = {**lookup, "expect": {"matched": 256}}
        assert problems({**case, "lookups": [good, bad]}) == ["lookup 2: matched: want 256, have 128"]
        ring = {"nodes": ["http://a:8000", "http://b:8000"], "keys": {"u0": "a", "u2": "a"}}
        assert problems({"id": "I", "kind": "routing_index", "ring": ring}) == [
            "ring: u2: want a, have http://b:8000"
        ]


class TestInput:
    @pytest.mark.parametrize(
        "change",
        [
            {"engine": {"num_gpu_block": 20}},
            {"engine": {"speculative": {"method": "eagle", "tokens": 1}}},
            {"engine": {"async_scheduling": True}},
            {"send": "later"},
            {"requests": [{"id": "a", "prompt": "A:3", "salt": "x"}]},
            {"requests": [{"id": "a", "prompt": "A:9000"}]},
        ],
    )
    def test_what_is_not_understood_is_never_passed_over(self, change):
        (line,) = problems(case(expect={"steps": 1}, **change))
        assert line.startswith("cannot be run")

    def test_variants_merge_engine_key_by_key(self):
        merged = variants(
            {"kind": "engine", "engine": {"a": 1, "b": 2}, "x": 1, "variants": [{"engine": {"b": 3}, "x": 2}]}
        )
        assert merged == [{"kind": "engine", "engine": {"a": 1, "b": 3}, "x": 2}]

    def test_a_request_that_never_fits_does_not_hang(self):
        stuck = {"engine": {"num_gpu_blocks": 3}, "requests": [{"id": "a", "prompt": "A:100"}]}
        expect = {"after_step_1": {"running": [], "waiting": ["a"]}}
        assert problems(case(expect=expect, **stuck)) == []
