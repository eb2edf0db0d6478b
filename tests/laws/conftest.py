"""What several modules of laws share."""

import pytest

from kvsim.cluster import fleet, router


@pytest.fixture(scope="module")
def small_tables():
    """Tables of routers and fleets begin so small that they must grow on the way, which changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router, "_ROWS", 4)
        patch.setattr(fleet, "_ENDS", 1)
        patch.setattr(fleet, "_NOTES", 1)
        yield
