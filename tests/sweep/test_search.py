"""The search for the highest or lowest value that keeps every limit."""

import pytest

from kvsim.errors import KvsimError
from kvsim.sweep.constraints import check_names, read_constraint
from kvsim.sweep.search import Verdict, read_find, search
from kvsim.sweep.steadiness import unsteady


def found(text, is_good, start=1, *, whole=False, tolerance=None, refused=lambda value: False):
    """Drive a search with a rule for what is good."""

    def refusal(value):
        return "refused" if refused(value) else None

    probing = search(read_find(text), start, whole=whole, tolerance=tolerance, refusal=refusal)
    verdict = None
    while True:
        try:
            value = probing.send(verdict) if verdict else next(probing)
        except StopIteration as end:
            return end.value
        assert not refused(value)
        verdict = Verdict(is_good(value), "" if is_good(value) else f"at {value}")


@pytest.mark.parametrize("limit", [0.013, 0.9, 1, 1.5, 17.3, 1000.5])
@pytest.mark.parametrize("start", [0.01, 1.0, 300])
def test_the_highest_fraction_within_the_tolerance(limit, start):
    answer = found("max:a", lambda value: value <= limit, start)
    assert answer.best <= limit < answer.beyond <= answer.best * 1.0101
    assert len(answer.probes) < 35


@pytest.mark.parametrize("limit", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("start", [1, 5, 256])
def test_whole_numbers_are_found_exactly(limit, start):
    answer = found("max:a", lambda value: value <= limit, start, whole=True)
    assert (answer.best, answer.beyond) == (limit, limit + 1)
    answer = found("min:a", lambda value: value >= limit, start, whole=True)
    assert answer.best == limit
    assert answer.beyond == (limit - 1 if limit > 1 else None)
    assert all(isinstance(value, int) for value in answer.probes)


def test_a_tolerance_ends_a_search_of_whole_numbers_earlier():
    exact = found("max:a", lambda value: value <= 777, whole=True)
    rough = found("max:a", lambda value: value <= 777, whole=True, tolerance=0.1)
    assert len(rough.probes) < len(exact.probes)
    assert rough.best <= 777 < rough.beyond <= rough.best * 1.1


def test_nothing_is_good():
    answer = found("max:a", lambda value: False, 8, whole=True)
    assert answer.best is None
    assert answer.probes == [8, 4, 2, 1]


def test_everything_is_good():
    answer = found("max:a", lambda value: True)
    assert answer.beyond is None
    assert answer.best > 1e11


def test_the_last_permitted_value_keeps_the_limits_so_none_binds():
    answer = found("max:a", lambda value: True, 0.3, refused=lambda value: value > 1)
    assert (answer.best, answer.beyond) == (pytest.approx(1, rel=1e-4), None)
    assert answer.refused == (pytest.approx(1.2), "refused")
    answer = found("max:a", lambda value: True, 3, whole=True, refused=lambda value: value > 10)
    assert (answer.best, answer.beyond, answer.refused) == (10, None, (12, "refused"))
    answer = found("min:a", lambda value: False, 3, whole=True, refused=lambda value: value > 10)
    assert (answer.best, answer.beyond, answer.problem) == (None, 10, "at 10")


def test_a_limit_that_binds_before_the_refused_values():
    answer = found("max:a", lambda value: value <= 9, 3, whole=True, refused=lambda value: value > 10)
    assert (answer.best, answer.beyond, answer.refused) == (9, 10, None)


@pytest.mark.parametrize("limit", [16, 100, 480, 500])
def test_values_between_permitted_ones_are_not_tried(limit):
    """As block sizes, multiples of 16."""
    answer = found("max:a", lambda value: value <= limit, 16, whole=True, refused=lambda value: value % 16)
    best = limit // 16 * 16
    assert (answer.best, answer.beyond, answer.refused) == (best, best + 16, None)
    answer = found(
        "max:a=3:1000", lambda value: value <= limit, 16, whole=True, refused=lambda value: value % 16
    )
    assert (answer.best, answer.beyond) == (best, best + 16)


def test_few_permitted_values():
    """As tensor parallel sizes."""
    permitted = {1, 2, 4, 8, 16}
    answer = found("max:a", lambda value: True, 1, whole=True, refused=lambda value: value not in permitted)
    assert (answer.best, answer.beyond, answer.refused) == (16, None, (32, "refused"))
    answer = found(
        "max:a=17:31", lambda value: True, whole=True, refused=lambda value: value not in permitted
    )
    assert (answer.best, answer.probes) == (None, [])


def test_figures_that_do_not_follow_the_value_are_told():
    limit = read_constraint("ttft_p99<=2s")
    rows = {rate: {limit.column: ttft} for rate, ttft in ((1, 0.5), (2, 1.8), (4, 0.4), (8, 9.0))}
    (told,) = unsteady(read_find("max:workload.rate"), [limit], rows)
    assert told.startswith("ttft_p99 does not follow workload.rate: 1.8 s at 2, 0.4 s at 4")
    rows[4] = {limit.column: 1.7}  # as chance does
    assert not list(unsteady(read_find("max:workload.rate"), [limit], rows))
    assert list(unsteady(read_find("min:workload.rate"), [limit], rows))


def test_given_ends():
    answer = found("max:a=2:50", lambda value: value <= 40, whole=True)
    assert (answer.best, answer.beyond, answer.probes[:2]) == (40, 41, [2, 50])
    assert found("max:a=2:50", lambda value: value <= 1, whole=True).probes == [2]
    answer = found("max:a=2:50", lambda value: True, whole=True)
    assert (answer.best, answer.beyond) == (50, None)
    assert found("min:a=2:50", lambda value: value >= 40, whole=True).best == 40


# ---- limits ----


@pytest.mark.parametrize(
    ("text", "column", "limit"),
    [
        ("ttft_p99<=2s", "vllm:time_to_first_token_seconds.p99", 2.0),
        ("ttft_p99 <= 250 ms", "vllm:time_to_first_token_seconds.p99", 0.25),
        ("tpot_mean<50ms", "vllm:request_time_per_output_token_seconds.mean", 0.05),
        ("hit_rate>=80%", "prefix_cache_hit_rate", 0.8),
        ("hit_rate>0.8", "prefix_cache_hit_rate", 0.8),
        ("preemptions<=0", "vllm:num_preemptions", 0.0),
        ("vllm:num_preemptions<=0", "vllm:num_preemptions", 0.0),
        ("capacity.max_concurrency>=1.5e1", "capacity.max_concurrency", 15.0),
    ],
)
def test_limits(text, column, limit):
    constraint = read_constraint(text)
    assert (constraint.column, constraint.limit) == (column, pytest.approx(limit))
    assert read_constraint(constraint.text) == constraint


def test_what_is_wrong_is_told_in_the_unit_of_the_limit():
    limit = read_constraint("ttft_p99<=250ms")
    column = limit.column
    assert limit.problem({column: 0.25}) is None
    assert limit.problem({column: 0.5}) == "ttft_p99<=250ms: 500 ms"
    assert limit.problem({column: None}) == "ttft_p99<=250ms: no value, no request is measured"
    assert read_constraint("hit_rate>=80%").problem({"prefix_cache_hit_rate": 0.5}) == "hit_rate>=80%: 50%"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttft", "write NAME<=LIMIT"),
        ("ttft_p99=2s", "write NAME<=LIMIT"),
        ("ttft_p99<=2h", "h is no unit"),
        ("ttft_p99<=50%", "ttft_p99 is a time; give it in s, ms, us or min, not in %"),
        ("hit_rate>=1s", "hit_rate is a share; give it in % or as a fraction, not in s"),
        ("hit_rate>=200%", "never above 100%"),
        ("finished>=1.5", "never above 100%"),
        ("ttft_p99<=-1s", "never below 0"),
        ("goodput>=5ms", "goodput is a plain number"),
    ],
)
def test_limits_of_another_form(text, says):
    with pytest.raises(KvsimError, match=says):
        read_constraint(text)


def test_unknown_figures_are_named_with_the_nearest():
    with pytest.raises(KvsimError, match=r"unknown figure ttft_p98; did you mean ttft_p9\d\?"):
        check_names([read_constraint("ttft_p98<=2s")], ["prefix_cache_hit_rate"])
