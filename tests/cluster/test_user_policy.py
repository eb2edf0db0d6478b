"""A user's own policy: from a file, at work, and failing in one line."""

import pickle
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from asking import Asked, request

from kvsim.cluster.policies import POLICIES
from kvsim.cluster.policies.user import UserPolicy
from kvsim.cluster.router import Router, TargetFacts
from kvsim.errors import KvsimError
from kvsim.scenario.user_policy import is_user_policy, load_user_policy

GOOD = """
    class Stickiest:
        reads_events = True
        metrics_interval = 0.05

        def __init__(self, weight: float = 1.0):
            self.weight = weight
            self.seen = []

        def choose(self, request, view):
            score = self.weight * view.targets["overlap"] - view.targets["in_flight"]
            return score.argmax()

        def ended(self, request_id, target, now):
            self.seen.append((request_id, target, now))
"""


def load(tmp_path, source: str, name: str = "mine.py:Mine", **arguments) -> UserPolicy:
    (tmp_path / "mine.py").write_text(textwrap.dedent(source), encoding="utf-8")
    return load_user_policy(name, arguments, tmp_path)


def message(call) -> str:
    with pytest.raises(KvsimError) as raised:
        call()
    assert "\n" not in str(raised.value)
    return str(raised.value)


class TestAtWork:
    def test_it_chooses_by_what_it_asks_for(self, tmp_path):
        policy = load(tmp_path, GOOD, "mine.py:Stickiest", weight=2)
        assert policy.reads_events
        assert policy.scrapes_every == 0.05
        router = Asked(policy, ["a", "b", "c"])
        assert [router.choose(request((1, 0, 9))) for _ in range(4)] == [0, 1, 2, 0]
        router.targets["overlap"] = [0, 0, 9]
        assert router.choose(request((1, 0, 9))) == 2
        assert router.chooser.wants_ends
        router.chooser.ended("r", 2, 1.5)
        assert router.chooser.policy.seen == [("r", 2, 1.5)]

    def test_each_run_has_an_object_of_its_own(self, tmp_path):
        policy = load(tmp_path, GOOD, "mine.py:Stickiest")
        assert policy.start(None).policy is not policy.start(None).policy

    def test_by_default_it_sees_metrics_of_the_moment_and_no_events(self, tmp_path):
        policy = load(tmp_path, "class Mine:\n    def choose(self, request, view): return 0")
        assert policy.scrapes_every == 0
        assert not policy.reads_events
        assert not policy.start(None).wants_ends

    def test_numpy_integers_will_do(self):
        policy = UserPolicy(name="x.py:X", make=lambda: Returns(np.int32(1)))
        assert type(Asked(policy, ["a", "b"]).choose(request((1, 0, 9)))) is int

    def test_other_processes_can_have_it(self, tmp_path):
        cloudpickle = pytest.importorskip("cloudpickle")
        copied = pickle.loads(cloudpickle.dumps(load(tmp_path, GOOD, "mine.py:Stickiest", weight=3)))
        assert copied.start(None).policy.weight == 3


class Returns:
    def __init__(self, value):
        self.value = value

    def choose(self, request, view):
        return self.value


class TestFailing:
    def test_an_error_is_named_with_line_and_request(self, tmp_path):
        source = """
            class Mine:
                def choose(self, request, view):
                    return self.pick(view)

                def pick(self, view):
                    return view.names[7]
        """
        router = Asked(load(tmp_path, source), ["a", "b"])
        assert message(lambda: router.choose(request((1, 0, 9), name="chat-12"))) == (
            "policy mine.py:Mine, line 7: IndexError: list index out of range, on request chat-12"
        )

    def test_an_error_in_the_library_points_to_the_line_that_called_it(self, tmp_path):
        source = """
            import json

            class Mine:
                def choose(self, request, view):
                    return json.loads("{")
        """
        router = Asked(load(tmp_path, source), ["a"])
        assert message(lambda: router.choose(request((1, 0, 9)))).startswith(
            "policy mine.py:Mine, line 6: JSONDecodeError: "
        )

    def test_a_long_message_is_cut_and_stays_one_line(self):
        class Loud:
            def choose(self, request, view):
                raise ValueError("a\nb " * 500)

        router = Asked(UserPolicy(name="x.py:Loud", make=Loud), ["a"])
        assert len(message(lambda: router.choose(request((1, 0, 9))))) < 300

    @pytest.mark.parametrize("value", [2, -1, None, "a", 1.0, True])
    def test_a_choice_that_is_none(self, value):
        router = Asked(UserPolicy(name="x.py:X", make=lambda: Returns(value)), ["a", "b"])
        assert message(lambda: router.choose(request((1, 0, 9), name="q"))) == (
            f"policy x.py:X: choose returned {value!r} on request q; "
            "it must return the number of a target, 0 to 1"
        )

    def test_the_view_is_not_to_be_changed(self, tmp_path):
        source = """
            class Mine:
                def choose(self, request, view):
                    view.targets["in_flight"] = 0
                    return 0
        """
        router = Asked(load(tmp_path, source), ["a"])
        router.targets.flags.writeable = False
        with pytest.raises(KvsimError, match="read-only"):
            router.choose(request((1, 0, 9)))

    def test_what_is_changed_in_a_view_all_the_same_is_lost(self):
        router = Router(UserPolicy(name="x.py:X", make=lambda: Returns(0)), [TargetFacts("a", 10)], 0)
        targets = router.view(0.0).targets
        targets.flags.writeable = True
        targets["in_flight"] = -500
        assert router.view(0.0).targets["in_flight"].tolist() == [0]

    def test_whatever_is_raised_is_told(self, tmp_path):
        source = """
            class Mine:
                def choose(self, request, view):
                    raise GeneratorExit("enough")
        """
        router = Asked(load(tmp_path, source), ["a"])
        told = message(lambda: router.choose(request((1, 0, 9), name="q")))
        assert told == "policy mine.py:Mine, line 4: GeneratorExit: enough, on request q"

    def test_in_ended_and_while_made(self, tmp_path):
        source = """
            class Mine:
                def __init__(self, n):
                    self.n = 1 / n
                def choose(self, request, view): return 0
                def ended(self, request_id, target, now):
                    raise KeyError(request_id)
        """
        chooser = load(tmp_path, source, n=1).start(None)
        assert message(lambda: chooser.ended("r9", 0, 1.0)) == (
            "policy mine.py:Mine, line 7: KeyError: 'r9', at the end of request r9"
        )
        assert message(lambda: load(tmp_path, source, n=0).start(None)) == (
            "policy mine.py:Mine, line 4: ZeroDivisionError: division by zero, while it was made"
        )


class TestLoading:
    @pytest.mark.parametrize(
        ("source", "wanted"),
        [
            ("class Mine\n    pass", "policy mine.py:Mine, line 1: expected ':'"),
            (
                "import nonesuch",
                "policy mine.py:Mine, line 1: ModuleNotFoundError: No module named 'nonesuch'",
            ),
            ("x = 1\ny = x / 0", "policy mine.py:Mine, line 2: ZeroDivisionError: division by zero"),
            ("import sys; sys.exit(3)", "policy mine.py:Mine, line 1: SystemExit: 3"),
            ("raise ValueError('a\\nb')", "policy mine.py:Mine, line 1: ValueError: a b"),
            ("x = 1", "policy mine.py:Mine: the file has no class 'Mine'; it has no class"),
            (
                "class Other: ...\nclass Third: ...",
                "policy mine.py:Mine: the file has no class 'Mine'; it has Other, Third",
            ),
            (
                "class Mine: ...",
                "policy mine.py:Mine: the class has no method choose(self, request, view) -> int",
            ),
            (
                "class Mine:\n    def choose(self, request): return 0",
                "policy mine.py:Mine: choose must be callable as choose(self, request, view) -> int",
            ),
            (
                "from kvsim.cluster.policies import POLICIES\nclass Mine(POLICIES['dynamo_kv']): ...",
                "policy mine.py:Mine: Mine is a policy of kvsim's own or extends one; name those as "
                "docs/routing.md does, and write a class of your own with choose(self, request, view)",
            ),
            (
                "class Mine:\n    reads_events = 1\n    def choose(self, request, view): return 0",
                "policy mine.py:Mine: reads_events = 1 must be True or False",
            ),
            (
                "class Mine:\n    metrics_interval = -1\n    def choose(self, request, view): return 0",
                "policy mine.py:Mine: metrics_interval = -1 must be seconds, 0 or more, or None",
            ),
        ],
    )
    def test_what_is_wrong_with_a_file(self, tmp_path, source, wanted):
        assert message(lambda: load(tmp_path, source)) == wanted

    def test_dataclasses_with_late_annotations(self, tmp_path):
        source = """
            from __future__ import annotations
            from dataclasses import dataclass

            @dataclass
            class Mine:
                weight: float = 2.0

                def choose(self, request, view): return 0
        """
        assert load(tmp_path, source, weight=1.5).start(None).policy.weight == 1.5

    def test_arguments_that_it_does_not_take(self, tmp_path):
        assert message(lambda: load(tmp_path, GOOD, "mine.py:Stickiest", wight=2)) == (
            "policy mine.py:Stickiest: got an unexpected keyword argument 'wight'; "
            "the class takes weight: float = 1.0"
        )
        plain = "class Mine:\n    def choose(self, request, view): return 0"
        assert message(lambda: load(tmp_path, plain, a=1)).endswith("'a'; the class takes no arguments")

    def test_a_missing_argument(self, tmp_path):
        source = "class Mine:\n    def __init__(self, n): ...\n    def choose(self, request, view): return 0"
        assert message(lambda: load(tmp_path, source)) == (
            "policy mine.py:Mine: missing a required argument: 'n'; the class takes n"
        )

    def test_no_file(self, tmp_path):
        text = message(lambda: load_user_policy("gone.py:Mine", {}, tmp_path))
        assert text == f"policy gone.py:Mine: cannot read {tmp_path / 'gone.py'}: No such file or directory"

    def test_names(self):
        assert is_user_policy("policies/mine.py:Mine")
        assert not is_user_policy("dynamo_kv")


def test_the_example_of_the_documentation(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "routing.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(class .*?)```", page, re.DOTALL)
    (tmp_path / "least_tokens.py").write_text(code, encoding="utf-8")
    policy = load_user_policy("least_tokens.py:LeastTokens", {"credit": 0.5}, tmp_path)
    assert policy.reads_events
    assert policy.scrapes_every is None
    router = Asked(policy, ["a", "b", "c"])
    router.targets["in_flight_tokens"] = [100, 90, 500]
    router.targets["overlap"] = [2, 0, 0]
    assert router.choose(request((1, 0, 9))) == 0
    fields = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| `.*?\|", page, re.MULTILINE)))
    assert {*fields} >= {"overlap", "kv_cache_usage"}
    assert {*fields} - set(POLICIES) <= set(router.targets.dtype.names)


def test_an_argument_named_like_a_key_of_routers_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def __init__(self, share=1): ...\n    def choose(self, request, view): return 0\n"
    )
    text = message(lambda: load_user_policy("mine.py:Mine", {}, tmp_path, reserved=["share"]))
    assert text == "policy mine.py:Mine: share is a key of every router; call the argument otherwise"
