"""`python -m pytest tests/cases --cases-file PATH` runs another file of cases."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases-file", metavar="PATH", help="file of cases to run instead of our own")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With a file given, its cases alone are run."""
    given = config.getoption("cases_file", None)
    return True if given and collection_path.name == "test_case_runner.py" else None
