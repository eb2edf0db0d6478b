"""Cases from public reports: kvsim gives the numbers that vLLM 0.33.0 gives."""

from pathlib import Path

import pytest
from case_runner import KINDS, load_cases, problems

HERE = Path(__file__).parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = metafunc.config.getoption("cases_file", None)
    files = [Path(given)] if given else [HERE / f"{name}.yaml" for name in ("cases", "more", "cluster")]
    cases = [case for file in files for case in load_cases(file)]
    metafunc.parametrize("case", cases, ids=[str(case["id"]) for case in cases])


def test_case(case):
    if case["kind"] not in KINDS:
        pytest.skip(f"{case['id']}: kind {case['kind']} is not run here")
    found = problems(case)
    assert not found, "\n".join([f"{case['id']}: {case.get('title', '')}", *found])
