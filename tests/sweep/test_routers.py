"""One scenario under several routing policies."""

import json
from pathlib import Path

import pytest
from sweeps import contents, scenario

import kvsim
from kvsim.errors import KvsimError
from kvsim.scenario import Scenario, template_of
from kvsim.sweep import SweepResult
from kvsim.sweep.points import Resolver
from kvsim.sweep.routers import is_stale, routers_asked
from kvsim.sweep.store import SWEEP

CLUSTER = "cluster: {replicas: 3, router: round_robin}\n"
GROUPS = """\
cluster:
  routers: {front: {policy: random, share: 2}, back: random}
  groups:
    big: {replicas: 2, router: front}
    small: {replicas: 1, router: back}
"""


def meanings(scenario: Scenario, *policies) -> tuple[str, dict]:
    asked = routers_asked(template_of(scenario), policies)
    (axis,) = asked.axes
    assert tuple(asked.meanings[axis.key]) == axis.values
    return axis.key, dict(asked.meanings[axis.key])


def test_policies_are_names_names_with_parameters_or_mappings(tmp_path: Path) -> None:
    policies = (
        "random",
        "dynamo_kv:overlap-score-credit=0.5:router_temperature=0.1",
        {"policy": "dynamo_kv", "overlap_score_credit": 2},
    )
    key, values = meanings(scenario(tmp_path, CLUSTER), *policies)
    assert key == "cluster.router"
    assert values == {
        "random": {"policy": "random"},
        "dynamo_kv:overlap_score_credit=0.5:router_temperature=0.1": {
            "policy": "dynamo_kv",
            "overlap_score_credit": 0.5,
            "router_temperature": 0.1,
        },
        "dynamo_kv:overlap_score_credit=2": {"policy": "dynamo_kv", "overlap_score_credit": 2},
    }


def test_what_the_router_is_told_stays_and_so_do_parameters_of_its_own_policy(tmp_path: Path) -> None:
    router = "{policy: dynamo_kv, overlap_score_credit: 0.5, kv_event_delay: 0.1}"
    own = scenario(tmp_path, f"cluster: {{replicas: 3, router: {router}}}\n")
    _, values = meanings(own, "random", "dynamo_kv", "dynamo_kv:overlap_score_credit=2")
    assert values["random"]["kv_event_delay"] == 0.1
    assert "overlap_score_credit" not in values["random"]
    assert values["dynamo_kv"]["overlap_score_credit"] == 0.5
    assert values["dynamo_kv:overlap_score_credit=2"]["overlap_score_credit"] == 2
    assert all(value["kv_event_delay"] == 0.1 for value in values.values())


def test_an_interval_of_metrics_stays_only_if_it_was_given(tmp_path: Path) -> None:
    """The policy's own one is its own; other policies take snapshots as often as they do."""
    own = scenario(tmp_path, "cluster: {replicas: 3, router: least_request}\n")
    _, values = meanings(own, "random", "production_stack_prefixaware")
    assert not any("metrics_interval" in value for value in values.values())
    own = scenario(tmp_path, "cluster: {replicas: 3, router: {policy: random, metrics_interval: 7}}\n")
    _, values = meanings(own, "least_request")
    assert values["least_request"]["metrics_interval"] == 7


def test_several_routers_all_get_the_policy(tmp_path: Path) -> None:
    key, values = meanings(scenario(tmp_path, GROUPS), "random", "least_request")
    assert key == "cluster.routers"
    (front, back) = values["least_request"].values()
    assert front["policy"] == back["policy"] == "least_request"
    assert front["share"] == 2


@pytest.mark.parametrize(
    ("policies", "problem"),
    [
        ((), "--compare-routers: no policies; write their names with commas, such as round_robin,dynamo_kv"),
        (("random", "random"), "--compare-routers random: is given twice; give it once"),
        (
            ("random", "rendom"),
            "--compare-routers rendom: 'rendom' is not known; did you mean random? One of ",
        ),
        (("random:",), "--compare-routers random:: write NAME or NAME:PARAMETER=VALUE, several with commas"),
        (("kv:x",), "--compare-routers kv:x: write NAME or NAME:PARAMETER=VALUE, several with commas"),
        (("kv:x=",), "--compare-routers kv:x=: x has no value; write x=VALUE"),
        (("kv:x=1:x=2",), "--compare-routers kv:x=1:x=2: x is given twice; give it once"),
        (("dynamo_kv", "kv"), "--compare-routers kv: is the same as dynamo_kv; give it once"),
        (("a=b",), "--compare-routers a=b: write NAME or NAME:PARAMETER=VALUE, several with commas"),
        (("random:x=1",), "--compare-routers random:x=1: cluster.router.x: not a parameter of random; "),
        (({"name": "random"},), "--compare-routers: a mapping needs the key policy, such as "),
    ],
)
def test_wrong_policies_are_refused_before_anything_runs(tmp_path: Path, policies, problem) -> None:
    with pytest.raises(KvsimError) as raised:
        routers_asked(template_of(scenario(tmp_path, CLUSTER)), policies)
    assert str(raised.value).startswith(problem)


def test_a_single_engine_has_nothing_to_choose_from(tmp_path: Path) -> None:
    with pytest.raises(KvsimError, match="no router has two or more to choose from"):
        scenario(tmp_path).compare_routers(["random", "round_robin"], progress=False)


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> tuple[SweepResult, Path]:
    folder = tmp_path_factory.mktemp("compared")
    policies = ["round_robin", "least_request", "longest_prefix"]
    result = scenario(folder, CLUSTER).compare_routers(
        policies, out=folder / "out", workers=1, progress=False
    )
    return result, folder / "out"


def test_a_row_for_each_policy_and_each_of_its_replicas(compared) -> None:
    result, _ = compared
    assert result.frame["cluster.router"].tolist() == ["round_robin", "least_request", "longest_prefix"]
    assert result.replicas is not None
    assert result.replicas.groupby("cluster.router", sort=False).size().tolist() == [3, 3, 3]
    of = result.replicas.groupby("cluster.router", sort=False)
    assert of["requests.total"].sum().tolist() == [60, 60, 60]
    assert of["requests.total"].max().iloc[0] == 20
    most = (of["requests.total"].max() / of["requests.total"].mean()).tolist()
    assert result.frame["imbalance.requests.max_over_mean"].tolist() == pytest.approx(most)
    assert result.frame["num_gpus"].tolist() == [3, 3, 3]


def test_a_policy_has_the_figures_of_a_run_of_its_own(compared, tmp_path: Path) -> None:
    result, _ = compared
    alone = kvsim.load_scenario(
        scenario(tmp_path, CLUSTER).folder / "tiny.yaml", ["cluster.router=longest_prefix"]
    ).run()
    row = result.frame.iloc[2]
    assert row["prefix_cache_hit_rate"] == alone.metrics["prefix_cache_hit_rate"]
    assert row["imbalance.requests.jain"] == alone.metrics["imbalance"]["requests"]["jain"]


def test_the_folder_is_a_sweeps_and_keeps_what_is_finished(compared, tmp_path: Path) -> None:
    result, folder = compared
    loaded = SweepResult.load(folder)
    assert loaded.frame.equals(result.frame)
    assert loaded.replicas is not None
    assert loaded.replicas.equals(result.replicas)
    before = contents(folder)
    again = scenario(tmp_path, CLUSTER).compare_routers(
        ["round_robin", "least_request", "longest_prefix"], out=folder, workers=1, progress=False
    )
    assert again.frame.equals(result.frame)
    assert contents(folder) == before
    assert loaded.plot.routers() is not None


def test_a_comparison_of_another_kvsim_is_stale(compared, tmp_path: Path) -> None:
    _, folder = compared
    assert not is_stale(folder)
    assert not is_stale(tmp_path)
    head = json.loads((folder / SWEEP).read_text())
    (tmp_path / SWEEP).write_text(json.dumps(head | {"kvsim": "0.0"}))
    assert is_stale(tmp_path)


# ---- keys of clusters in any sweep


def test_a_policy_is_set_before_its_parameters(tmp_path: Path) -> None:
    resolver = Resolver(template_of(scenario(tmp_path, CLUSTER)))
    point = resolver.point({"cluster.router.overlap_score_credit": 0.5, "cluster.router": "dynamo_kv"})
    assert point.scenario is not None
    resolved = point.scenario.resolved()["cluster"]["router"]
    assert (resolved["policy"], resolved["overlap_score_credit"]) == ("dynamo_kv", 0.5)


def test_replicas_of_a_group_are_swept(tmp_path: Path) -> None:
    resolver = Resolver(template_of(scenario(tmp_path, GROUPS)))
    point = resolver.point({"cluster.groups.big.replicas": 5})
    assert point.scenario is not None
    assert point.scenario.resolved()["cluster"]["groups"]["big"]["replicas"] == 5


@pytest.mark.parametrize(
    ("key", "what", "there"),
    [
        ("cluster.groups.bog.replicas", "group bog", "there are big, small"),
        ("cluster.routers.frnt.share", "router frnt", "there are front, back"),
        ("cluster.links.rack.latency", "link rack", "it has none"),
    ],
)
def test_groups_that_are_not_there_are_not_made(tmp_path: Path, key: str, what: str, there: str) -> None:
    resolver = Resolver(template_of(scenario(tmp_path, GROUPS)))
    with pytest.raises(KvsimError) as raised:
        resolver.points([{key: 2}])
    assert str(raised.value) == f"--set {key}=2: the scenario's cluster has no {what}; {there}"
