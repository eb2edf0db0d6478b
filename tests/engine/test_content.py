"""What of a request's content an engine takes in."""

from engine_runs import drain, engine, request, rows_by_id

from kvsim.tokens import expand, first_tokens, segments


def test_first_tokens_cut_within_a_segment():
    content = segments((1, 0, 5), (2, 3, 5), (3, 0, 5))
    for count in range(1, 17):
        assert expand(first_tokens(content, count)).tolist() == expand(content).tolist()[:count]


def test_an_endless_answer_costs_no_more_than_max_model_len():
    core = engine(max_model_len=64)
    core.add_request(request("r", prompt=20, output=2**31 - 1))
    assert len(core.kv.block_hashes) <= 1024
    drain(core)
    assert rows_by_id(core)["r"]["num_tokens"] == 64
