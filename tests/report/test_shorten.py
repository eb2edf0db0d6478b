"""Long lists on few columns."""

import pytest

from kvsim.report.shorten import hashes, names, numbers


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "-"),
        ([7], "7"),
        ([7, 8], "7, 8"),
        ([7, 8, 9], "7..9"),
        ([*range(1, 63), 64], "1..62, 64"),
        ([9, 8, 7, 12], "9..7, 12"),
        ([-1, -1, -1], "-1 x3"),
        ([0, 0, 0, 1, 2, 3], "0 x3, 1..3"),
        ([5, 5, 6, 6], "5, 5, 6, 6"),
        ([1013, *range(1024, 2025)], "1013, 1024..2024"),
        (list(range(0, 40, 2)), "0, 2, 4, 6, 8, 10, 12, 14, ..., 36, 38 (20 in all)"),
        (list(range(0, 24, 2)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22"),
    ],
)
def test_numbers(values: list[int], text: str) -> None:
    assert numbers(values) == text


def test_names() -> None:
    assert names([]) == "-"
    assert names(["a", "b"]) == "a, b"
    assert names([f"r{i}" for i in range(1008)]) == "r0, r1, r2, r3, r4, r5 and 1,002 more"


def test_hashes() -> None:
    assert hashes(["0123456789abcdef"]) == "01234567"
    assert hashes(["0123456789abcdef", "ffff", "fedcba9876543210"]) == "01234567..fedcba98"
