"""Throughput grows with the number of daemons (R20)."""

from __future__ import annotations

import pytest

from tests.models.regions.growth import measure, speed_up


@pytest.mark.parametrize("daemons", [4, 8, 16])
def test_throughput_doubles_with_twice_the_daemons(daemons: int) -> None:
    """R20: stores and their second copies are spread over the daemons, so no daemon does more when there are more stores."""
    assert speed_up(measure(2), measure(daemons)) == pytest.approx(daemons / 2, rel=0.1)
