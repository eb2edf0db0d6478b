import pytest
from plotted import small

import kvsim
from kvsim.results import RunResult


@pytest.fixture(scope="session")
def result(tmp_path_factory) -> RunResult:
    return kvsim.load_scenario(small(tmp_path_factory.mktemp("scenario"))).run()
