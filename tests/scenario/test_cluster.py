"""The `cluster` section: both forms, what groups take over, what the simulation is told, what is refused."""

import pickle

import pytest

from kvsim.cluster.policies import POLICIES
from kvsim.errors import KvsimError
from kvsim.gpu.capacity import plan_capacity
from kvsim.scenario import Scenario, load_scenario
from kvsim.scenario.loader import template_of
from kvsim.scenario.policy_section import told
from kvsim.sim import build
from kvsim.sweep.asked import asked
from kvsim.sweep.axes import read_axes
from kvsim.sweep.points import Resolver, expand

HEAD = """\
model: Qwen/Qwen3-8B
gpu: h100-sxm
engine: {max_model_len: 8192}
workload: {type: shared_prefix, rate: 10, num_requests: 5}
"""
MIXTURE = HEAD.replace("Qwen3-8B", "Qwen3-30B-A3B")
SHORT = HEAD + "cluster: {replicas: 3, router: least_request}\n"
LONG = (
    HEAD
    + """\
cluster:
  links:
    rack: {bandwidth: 25.0e+9, latency: 1.0e-5}
  routers:
    front: least_request
  groups:
    large: {replicas: 2}
    small-cards:
      replicas: 4
      link: rack
      gpu: l40s
      engine: {max_num_seqs: 64}
"""
)
TWO_CELLS = (
    HEAD
    + """\
cluster:
  routers:
    day: {policy: random, share: 3}
    night: round_robin
  groups:
    a: {router: day}
    b: {router: night, model: qwen3-4b}
    c: {router: day, replicas: 2}
"""
)
READS_EVENTS = """\
class Mine:
    reads_events = True

    def __init__(self, weight=1.0):
        self.weight = weight

    def choose(self, request, view):
        return 0
"""


@pytest.fixture
def load(tmp_path):
    def loaded(text, *overrides) -> Scenario:
        (tmp_path / "case.yaml").write_text(text)
        return load_scenario(tmp_path / "case.yaml", overrides)

    return loaded


@pytest.fixture
def complaint(load, tmp_path):
    def said(text, *overrides) -> str:
        with pytest.raises(KvsimError) as caught:
            load(text, *overrides)
        assert "\n" not in str(caught.value)
        return str(caught.value).replace(str(tmp_path), "DIR")

    return said


def test_one_replica_is_what_it_was(load):
    plain = load(HEAD)
    assert plain.resolved()["cluster"] == {"replicas": 1, "router": "round_robin"}
    for text in ("{replicas: 1}", "{router: round_robin}", "{router: {policy: round_robin}}", "{}"):
        assert load(f"{HEAD}cluster: {text}\n").scenario_hash == plain.scenario_hash
    for flag in ("data_parallel_size=1", "api_server_count=1", "enable_expert_parallel=false"):
        assert load(HEAD, f"engine.{flag}").scenario_hash == plain.scenario_hash
    (cell,) = plain.cells()
    assert [group.engine_names for group in cell.groups] == [("replica-0",)]
    assert cell.groups[0].plan.config == build.plan_engine(plain).config


def test_short_form(load):
    scenario = load(SHORT)
    (cell,) = scenario.cells()
    (group,) = cell.groups
    assert (cell.name, cell.share, group.name, group.link) == ("router", 1.0, "replica", None)
    assert group.replica_names == group.engine_names == ("replica-0", "replica-1", "replica-2")
    assert cell.router.policy == POLICIES["least_request"]()
    assert (cell.router.kv_event_delay, cell.router.kv_event_loss) == (0.0, 0.0)
    assert scenario.scenario_hash != load(HEAD).scenario_hash


def test_groups_take_over_and_replace(load):
    scenario = load(LONG)
    (cell,) = scenario.cells()
    large, small = cell.groups
    assert (cell.name, large.name, small.name) == ("front", "large", "small_cards")
    assert small.replica_names[-1] == "small_cards-3"
    assert small.link == build.Link("rack", 25e9, 1e-5)
    assert large.plan.config.max_num_seqs == 1024  # of an H100
    assert (small.plan.config.max_num_seqs, small.plan.config.max_num_batched_tokens) == (64, 2048)
    assert small.plan.config.max_model_len == 8192
    assert small.plan.config.num_gpu_blocks < large.plan.config.num_gpu_blocks
    assert small.plan.cost.gpu.name == "L40S"
    assert scenario.cluster.num_replicas == 6


def test_cells(load):
    day, night = load(TWO_CELLS).cells()
    assert (day.name, day.share, [group.name for group in day.groups]) == ("day", 3.0, ["a", "c"])
    assert (night.name, night.share, [group.name for group in night.groups]) == ("night", 1.0, ["b"])
    assert night.groups[0].plan.cost.model.name == "Qwen/Qwen3-4B"


@pytest.mark.parametrize("text", [HEAD, SHORT, LONG, TWO_CELLS])
def test_what_is_resolved_can_be_read(load, text):
    scenario = load(text)
    again = load(scenario.to_yaml())
    assert again.to_yaml() == scenario.to_yaml()
    assert again.scenario_hash == scenario.scenario_hash
    assert template_of(scenario).scenario().scenario_hash == scenario.scenario_hash
    made = Scenario(**scenario.resolved())
    assert made.scenario_hash == scenario.scenario_hash


def test_sections_made_in_python(load):
    """A checked section may go into another scenario."""
    cluster = load(SHORT).cluster
    made = Scenario(**(load(HEAD).given | {"cluster": cluster}))
    assert made.scenario_hash == load(SHORT).scenario_hash
    assert template_of(made).scenario().scenario_hash == made.scenario_hash


def test_overrides_reach_every_key(load):
    assert load(SHORT, "cluster.replicas=9").cluster.replicas == 9
    assert load(SHORT, "cluster.router=random").cluster.router.policy == "random"
    router = load(SHORT, "cluster.router.kv_event_delay=0.5").cluster.router
    assert (router.policy, router.kv_event_delay) == ("least_request", 0.5)
    assert load(HEAD, "cluster.router.policy=random").cluster.router.policy == "random"
    changed = load(
        LONG,
        "cluster.groups.small-cards.replicas=7",
        "cluster.routers.front.kv_event_loss=0.1",
        "cluster.links.rack.latency=0",
        "cluster.groups.large.engine.block_size=32",
    )
    assert changed.cluster.groups["small_cards"].replicas == 7
    assert changed.cluster.routers["front"].kv_event_loss == 0.1
    assert changed.cluster.links["rack"].latency == 0
    assert changed.cells()[0].groups[0].plan.config.block_size == 32


def test_overrides_make_no_new_names(complaint, load):
    said = complaint(LONG, "cluster.groups.larg.replicas=7")
    assert said == (
        "--set cluster.groups.larg.replicas=7: the scenario's cluster has no group larg; "
        "there are large, small_cards"
    )
    said = complaint(HEAD, "cluster.links.rack.latency=0")
    assert said == "--set cluster.links.rack.latency=0: the scenario's cluster has no link rack; it has none"
    assert load(LONG, "cluster.groups.more={replicas: 2}").cluster.num_replicas == 8


def test_a_router_and_its_keys_in_any_order(load):
    texts = ["cluster.router=random", "cluster.router.kv_event_delay=0.5"]
    for overrides in (texts, texts[::-1]):
        router = load(SHORT, *overrides).cluster.router
        assert (router.policy, router.kv_event_delay) == ("random", 0.5)


def test_points_of_a_sweep(load):
    """Names of policies, parameters and sizes are keys like any other."""
    axes = read_axes(
        [
            "cluster.router=random,least_request",
            "cluster.router.kv_event_delay=0:1:0.5",
            "cluster.replicas=1,2",
        ],
        most=100,
    )
    given = asked(None, place=str, set_=axes)
    points = Resolver(template_of(load(HEAD))).points(expand(given))
    assert [point.problem for point in points] == [None] * 12
    assert len({point.hash for point in points}) == 12
    last = points[-1].scenario.cluster
    assert (last.replicas, last.router.policy, last.router.kv_event_delay) == (2, "least_request", 1.0)
    with pytest.raises(KvsimError, match=r"cluster.router=zz: cluster.router: 'zz' is not known"):
        Resolver(template_of(load(HEAD))).points([{"cluster.router": "random"}, {"cluster.router": "zz"}])


def test_workers_get_the_whole_of_it(load, policy_file):
    for text in (OWN, LONG):
        sent = pickle.loads(pickle.dumps(load(text)))
        assert sent.scenario_hash == load(text).scenario_hash
        assert [cell.groups for cell in sent.cells()] != []
    assert sent.cluster.num_replicas == 6


@pytest.mark.parametrize(
    ("text", "overrides", "gpus"),
    [
        (HEAD, [], 1),
        (SHORT, ["engine.tensor_parallel_size=2"], 6),
        (MIXTURE, ["engine.data_parallel_size=4", "cluster.replicas=2"], 8),
        (LONG, ["cluster.groups.large.engine.tensor_parallel_size=4"], 12),
    ],
)
def test_gpus(load, text, overrides, gpus):
    assert load(text, *overrides).num_gpus == gpus


def test_originals_names_and_spellings(load):
    for name in ("least-request", "LEAST_REQUEST"):
        assert load(HEAD, f"cluster.router={name}").cluster.router.policy == "least_request"


def test_all_policies_by_name(load):
    for name, kind in POLICIES.items():
        router = load(HEAD, f"cluster.router={name}").cells()[0].router
        assert router.policy == kind()
        assert router.metrics_interval == kind().scrapes_every


# ---- data parallel, expert parallel ----


def test_ranks_are_engines(load):
    (cell,) = load(MIXTURE, "engine.data_parallel_size=2", "cluster.replicas=2").cells()
    (group,) = cell.groups
    assert group.engine_names == ("replica-0/dp0", "replica-0/dp1", "replica-1/dp0", "replica-1/dp1")
    assert (group.internal_balancing, group.api_server_count, group.num_engines) == (True, 2, 4)
    (cell,) = load(MIXTURE, "engine.data_parallel_size=2", "engine.api_server_count=1").cells()
    assert cell.groups[0].api_server_count == 1
    outside = load(MIXTURE, "engine.data_parallel_size=2", "engine.data_parallel_external_lb=true")
    assert outside.engine.api_server_count == 1
    assert not outside.cells()[0].groups[0].internal_balancing


@pytest.mark.parametrize("ranks", [1, 4])
def test_experts_are_shared_by_ranks_as_in_kvsim_capacity(load, ranks):
    parallel = {"data_parallel_size": ranks, "enable_expert_parallel": True}
    scenario = load(MIXTURE, *(f"engine.{flag}={str(value).lower()}" for flag, value in parallel.items()))
    capacity = scenario.cells()[0].groups[0].plan.capacity
    asked = plan_capacity("Qwen/Qwen3-30B-A3B", "H100 SXM", max_model_len=8192, **parallel)
    assert capacity["num_gpu_blocks"] == asked.num_gpu_blocks
    assert any("experts elsewhere" in line for line in capacity["lines"]) == (ranks > 1)


def test_dense_ranks_are_as_alone(load):
    alone, ranks = load(HEAD), load(HEAD, "engine.data_parallel_size=4")
    plans = [scenario.cells()[0].groups[0].plan for scenario in (alone, ranks)]
    assert plans[0].capacity == plans[1].capacity
    assert plans[0].cost.parameters == plans[1].cost.parameters
    assert plans[0].cost.description == plans[1].cost.description


# ---- a user's policy ----


@pytest.fixture
def policy_file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(READS_EVENTS)
    return path


OWN = HEAD + "cluster: {replicas: 2, router: {policy: 'own.py:Mine', weight: 0.5, kv_event_delay: 0.1}}\n"


def test_own_policy(load, policy_file, tmp_path):
    scenario = load(OWN)
    router = scenario.cells()[0].router
    assert (router.policy.reads_events, router.kv_event_delay) == (True, 0.1)
    assert router.policy.make().weight == 0.5
    resolved = scenario.resolved()["cluster"]["router"]
    assert (resolved["policy"], resolved["weight"]) == ("own.py:Mine", 0.5)
    assert load(scenario.to_yaml()).scenario_hash == scenario.scenario_hash
    (tmp_path / "sub").mkdir()
    policy_file.rename(tmp_path / "sub" / "own.py")
    moved = load(OWN.replace("own.py", "sub/own.py"))
    assert moved.scenario_hash == scenario.scenario_hash
    (tmp_path / "sub" / "own.py").write_text(READS_EVENTS + "# another\n")
    assert load(OWN.replace("own.py", "sub/own.py")).scenario_hash != scenario.scenario_hash
    with pytest.raises(KvsimError, match=r"cluster.router.policy_sha256: .*own.py holds another policy"):
        load(scenario.to_yaml().replace("own.py", "sub/own.py"))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("own.py", "other.py", "cluster.router.policy: 'other.py' is not a regular file (tried DIR/other.py"),
        ("Mine", "Yours", "cluster.router.policy: own.py:Yours: the file has no class 'Yours'; it has Mine"),
        ("weight", "wait", "cluster.router.policy: own.py:Mine: got an unexpected keyword argument 'wait'"),
        ("weight: 0.5", "weight: [.nan]", "cluster.router.weight.0: nan is not a finite number"),
        ("delay: 0.1", "delay: -1", "cluster.router.kv_event_delay: -1 is out of range; give at least 0"),
    ],
)
def test_own_policy_that_cannot_be_taken(complaint, policy_file, old, new, says):
    assert complaint(OWN.replace(old, new)).startswith(f"DIR/case.yaml line 5: {says}")


def test_own_policy_that_does_not_run(complaint, policy_file):
    policy_file.write_text("1 / 0\n")
    said = complaint(OWN)
    assert said.startswith("DIR/case.yaml line 5: cluster.router.policy: own.py:Mine, line 1: ZeroDivision")


# ---- refusals ----

ROUTER_KEYS = "kv_event_delay, kv_event_loss, metrics_interval, chars_per_token, share"


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("{replicas: 0}", ".replicas: 0 is out of range; give at least 1"),
        ("{replicas: 2.5}", ".replicas: 2.5 is not a whole number"),
        ("3", ": 3 is not a mapping"),
        ("{router: least_reqest}", ".router: 'least_reqest' is not known; did you mean least_request?"),
        ("{router: {policy: zz}}", ".router.policy: 'zz' is not known; one of random, round_robin, "),
        ("{router: {policy: 3}}", ".router.policy: 3 is not text; one of random, "),
        ("{router: {kv_event_loss: 1}}", ".router.policy: missing; one of random, round_robin, "),
        ("{router: 3}", ".router: 3 is neither a policy's name nor a mapping with policy: NAME"),
        (
            "{router: {policy: random, weight: 1}}",
            f".router.weight: not a parameter of random; it takes none (any router: {ROUTER_KEYS})",
        ),
        (
            "{router: {policy: random, kv_event_lost: 1}}",
            ".router.kv_event_lost: not a parameter of random; did you mean kv_event_loss? It takes none",
        ),
        ("{router: {policy: random, kv_event_loss: 1.5}}", ".router.kv_event_loss: 1.5 is out of range"),
        ("{router: {policy: random, kv_event_loss: no}}", ".router.kv_event_loss: 'no' is not a number"),
        ("{router: {policy: random, kv_event_delay: -1}}", ".router.kv_event_delay: -1 is out of range"),
        ("{router: {policy: random, share: 0}}", ".router.share: 0 is out of range; give above 0"),
        ("{router: {policy: random, chars_per_token: 0}}", ".router.chars_per_token: 0 is out of range"),
        ("{rooter: random}", ".rooter: unknown key; did you mean router?"),
        (
            "{replicas: 2, groups: {a: {}}}",
            ".replicas: does not go with groups; write groups: {NAME: {replicas: 4, router: NAME}} instead",
        ),
        (
            "{router: random, links: {a: {bandwidth: 1}}}",
            ".router: does not go with links; write routers: {NAME: ...} instead",
        ),
        ("{routers: {a: random}}", ".groups: missing; name at least one, such as groups: {a: "),
        ("{groups: {a: {}}}", ".groups.a.router: there is none; name one, such as routers: {front: "),
        ("{groups: {a: {router: b}}}", ".groups.a.router: there is none; name one, such as routers: "),
        (
            "{routers: {one: random, two: random}, groups: {a: {}}}",
            ".groups.a.router: missing; one of one, two",
        ),
        (
            "{routers: {one: random, two: random}, groups: {a: {router: on}}}",
            ".groups.a.router: on is not there; did you mean one?",
        ),
        (
            "{routers: {one: random, two: random}, groups: {a: {router: one}}}",
            ".routers.two: no group has it; give it one or leave it out",
        ),
        ("{routers: {r: {policy: x}}, groups: {a: {}}}", ".routers.r.policy: 'x' is not known; one of"),
        ("{routers: {r: random}, groups: {a: {replicas: 0}}}", ".groups.a.replicas: 0 is out of range"),
        ("{routers: {r: random}, groups: {a: {link: x}}}", ".groups.a.link: there are none; name it"),
        (
            "{links: {y: {bandwidth: 1}}, routers: {r: random}, groups: {a: {link: x}}}",
            ".groups.a.link: x is not there; one of y",
        ),
        ("{links: {y: {}}}", ".links.y.bandwidth: missing; give bytes per second"),
        ("{links: {y: {bandwidth: 0}}}", ".links.y.bandwidth: 0 is out of range; give above 0"),
        ("{links: {y: {bandwidth: 1, latency: -1}}}", ".links.y.latency: -1 is out of range"),
        ("{links: {y: {speed: 1}}}", ".links.y.speed: unknown key; known are bandwidth, latency"),
        (
            "{routers: {r: random}, groups: {a: {replica: 3}}}",
            ".groups.a.replica: unknown key; did you mean replicas?",
        ),
        ("{routers: {r: random}, groups: {a.b: {}}}", ".groups.a.b: is no name; use letters, digits"),
        (
            "{routers: {r: random}, groups: {a: {gpu: H2O}}}",
            ".groups.a.gpu: 'H2O' is not in the catalog",
        ),
        (
            "{routers: {r: random}, groups: {a: {model: nothing}}}",
            ".groups.a.model: 'nothing' is not in the catalog",
        ),
        (
            "{routers: {r: random}, groups: {a: {engine: {block_sise: 16}}}}",
            ".groups.a.engine.block_sise: unknown key; did you mean block_size?",
        ),
        (
            "{routers: {r: random}, groups: {a: {engine: {block_size: 17}}}}",
            ".groups.a.engine.block_size: 17 is not a block size",
        ),
        (
            "{routers: {r: random}, groups: {a: {engine: {tensor_parallel_size: 3}}}}",
            ".groups.a.engine.tensor_parallel_size: 3 does not divide the 32 attention heads",
        ),
        (
            "{routers: {r: random}, groups: {a: {engine: {max_model_len: 999999}}}}",
            ".groups.a.engine.max_model_len: ",
        ),
        (
            "{routers: {r: random}, groups: {a: {}, b: {model: qwen3-4b}}}",
            ".groups.b.model: Qwen/Qwen3-4B, but a of the same router (r) serves Qwen/Qwen3-8B; a request",
        ),
        (
            "{routers: {r: random}, groups: {a: {calibration: no.json}}}",
            ".groups.a.calibration: 'no.json' is not a regular file",
        ),
        (
            f"{{routers: {{r: random}}, groups: {{a: {{model_sha256: {'a' * 64}}}}}}}",
            ".groups.a.model_sha256: goes with a config.json as model; leave it out",
        ),
    ],
)
def test_bad_clusters(complaint, section, says):
    assert complaint(f"{HEAD}cluster: {section}\n").startswith(f"DIR/case.yaml line 5: cluster{says}")


def test_lines_of_deep_keys(complaint):
    assert complaint(LONG.replace("max_num_seqs: 64", "max_num_seqs: 0")).startswith(
        "DIR/case.yaml line 16: cluster.groups.small_cards.engine.max_num_seqs: 0 is out of range"
    )
    assert complaint(LONG, "cluster.groups.large.replicas=x").startswith(
        "--set cluster.groups.large.replicas=x: cluster.groups.large.replicas: 'x' is not a whole number"
    )


def test_flags_that_go_wrong_only_together(complaint):
    """The scenario's flag and the group's do not fit each other."""
    text = LONG.replace("max_model_len: 8192", "max_model_len: 8192, max_num_batched_tokens: 32")
    said = complaint(text.replace("gpu: l40s", "gpu: h100-sxm"))
    assert "cluster.groups.small_cards.engine.max_num_batched_tokens: 32 is below max_num_seqs, 64" in said


def test_several_routers_and_a_closed_loop(complaint, load):
    text = TWO_CELLS.replace("rate: 10", "max_concurrency: 4")
    assert "cluster.routers: several do not go with workload.max_concurrency" in complaint(text)
    load(LONG.replace("rate: 10", "max_concurrency: 4"))


EVENTS = HEAD + (
    "cluster: {routers: {r: 'own.py:Mine'}, groups: {a: {}, b: {engine: {FLAG}}, c: {router: r}}}\n"
)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("block_size: 32", "block_size: 32, but a has 16; own.py:Mine (r) keeps one index of KV blocks"),
        ("prefix_caching_hash_algo: sha256", "prefix_caching_hash_algo: 'sha256', but a has 'fast'; own.py"),
        (
            "speculative_config: {method: eagle, num_speculative_tokens: 2, acceptance: 0.5}",
            "speculative_config: 'eagle', but a has null; own.py:Mine (r) keeps one index of KV blocks",
        ),
    ],
)
def test_one_index_for_different_blocks(complaint, load, policy_file, flag, says):
    said = complaint(EVENTS.replace("FLAG", flag))
    assert said.startswith(f"DIR/case.yaml line 5: cluster.groups.b.engine.{says}")
    load(EVENTS.replace("FLAG", flag).replace("'own.py:Mine'", "random"))
    load(EVENTS.replace("FLAG", "max_num_seqs: 8"))


def test_one_account_of_different_blocks(complaint):
    """Without events Dynamo's router still counts blocks in use."""
    router = "{policy: dynamo_kv, use_kv_events: false}"
    text = EVENTS.replace("'own.py:Mine'", router).replace("FLAG", "block_size: 32")
    assert "cluster.groups.b.engine.block_size: 32, but a has 16; dynamo_kv (r)" in complaint(text)


def test_parameters_of_a_policy(complaint, load):
    router = load(
        SHORT, "cluster.router={policy: kv, overlap_score_credit: 0.5, router_temperature: 1}"
    ).cluster.router
    assert router.policy == "dynamo_kv"
    assert (router.parameters["overlap_score_credit"], router.parameters["prefill_load_scale"]) == (0.5, 1.0)
    assert load(SHORT, "cluster.router=dynamo_kv", "cluster.router.use_kv_events=false").cells()[
        0
    ].router.policy == (POLICIES["dynamo_kv"](use_kv_events=False))
    for text, says in (
        (
            "overlap_score_credits: 1",
            "not a parameter of dynamo_kv; did you mean overlap_score_credit? It takes ",
        ),
        ("overlap_score_credit: -1", "-1 is out of range; give at least 0"),
        ("overlap_score_credit: x", "'x' is not a number"),
        ("use_kv_events: 1", "1 is not true or false"),
        ("router_ttl_secs: .inf", "inf is not a finite number"),
    ):
        key = text.partition(":")[0]
        said = complaint(f"{HEAD}cluster:\n  router:\n    policy: dynamo_kv\n    {text}\n")
        assert said.startswith(f"DIR/case.yaml line 8: cluster.router.{key}: {says}")


def test_docstrings_tell_of_parameters():
    """In the JSON Schema and on the page."""
    description, meanings = told(POLICIES["dynamo_kv"])
    assert description.endswith("by the names of `KvRouterConfig`.")
    assert meanings["decode_active_request_weight"] == "blocks that each request in flight counts"
    assert meanings["overlap_score_credit"] == meanings["overlap_score_credit_decay"]
    assert told(POLICIES["random"])[1] == {}
    for kind in POLICIES.values():
        assert told(kind)[0], kind


def test_bytes_of_another_card_are_not_taken_over(complaint, load):
    text = LONG.replace("max_model_len: 8192", "max_model_len: 8192, available_kv_cache_bytes: 40000000000")
    assert (
        "cluster.groups.small_cards.engine.available_kv_cache_bytes: the scenario's is of Qwen/Qwen3-8B on "
        "H100 SXM; give this group's, or null to estimate it"
    ) in complaint(text)
    own = load(text, "cluster.groups.small_cards.engine.available_kv_cache_bytes=null")
    large, small = own.cells()[0].groups
    assert large.plan.capacity["available_kv_cache_bytes"] == 40_000_000_000
    assert small.plan.capacity["available_kv_cache_bytes"] < 30_000_000_000


def test_pictures_are_sized_for_one_family(complaint):
    text = (
        "model: Qwen/Qwen3-VL-2B-Instruct\ngpu: h100-sxm\nengine: {max_model_len: 8192}\n"
        "workload: {type: image, rate: 1, num_requests: 2, image_size: [64, 64]}\n"
        "cluster: {routers: {r: random, s: random}, groups: {a: {router: r}, "
        "b: {router: s, model: Qwen/Qwen2.5-VL-7B-Instruct}}}\n"
    )
    assert "cluster.groups.b.model: Qwen/Qwen2.5-VL-7B-Instruct turns pixels to tokens as" in complaint(text)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["data_parallel_size=0"], "engine.data_parallel_size: 0 is out of range; give at least 1"),
        (["api_server_count=0"], "engine.api_server_count: 0 is out of range; give at least 1"),
        (
            ["data_parallel_external_lb=true"],
            "engine.data_parallel_external_lb: goes with a data_parallel_size above 1; leave it out",
        ),
        (
            ["data_parallel_external_lb=true", "data_parallel_size=2"],
            "engine.data_parallel_external_lb: Qwen/Qwen3-8B has no experts, so vLLM refuses it",
        ),
        (["enable_expert_parallel=true"], "engine.enable_expert_parallel: Qwen/Qwen3-8B has no experts"),
    ],
)
def test_ranks_that_vllm_refuses(complaint, flags, says):
    said = complaint(HEAD, *(f"engine.{flag}" for flag in flags))
    assert said.startswith(f"--set engine.{flags[0]}: {says}")


def test_a_group_without_room_is_named(load):
    scenario = load(LONG, "cluster.groups.small_cards.engine.gpu_memory_utilization=0.1")
    with pytest.raises(KvsimError, match=r"^cluster.groups.small_cards: engine.gpu_memory_utilization: "):
        scenario.cells()


def test_more_engines_than_this_machine_holds(load, monkeypatch):
    plan = load(SHORT).cells()[0].groups[0].plan
    core = build.make_cores(plan.config, plan.cost, 1)[0]
    monkeypatch.setattr(build, "machine_memory", lambda: 3 * build.table_bytes(core))
    assert len(build.make_cores(plan.config, plan.cost, 3)) == 3
    with pytest.raises(KvsimError, match=r"^cluster: 4 engines need .* GiB for their tables, this"):
        build.make_cores(plan.config, plan.cost, 4)


def test_steps_are_of_one_engine(load):
    with pytest.raises(KvsimError, match=r"^cluster: the scenario has 3, .*give --set cluster.replicas=1$"):
        next(load(SHORT).steps())
    with pytest.raises(
        KvsimError, match=r"^cluster: .* groups of replicas, .*; give --set 'cluster={replicas: 1}'"
    ):
        next(load(LONG).steps())
    assert next(load(LONG, "cluster={replicas: 1}").steps()).step == 1
