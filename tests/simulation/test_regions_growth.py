"""Throughput grows with the number of daemons (R20)."""

from __future__ import annotations

import pytest

from tests.simulator.growth import measure, speed_up


@pytest.mark.parametrize("daemons", [4, 8, 16])
def test_twice_the_daemons_are_twice_as_fast(daemons: int) -> None:
    """R20: stores are spread over daemons and so are their second copies, so no daemon does more when there are more."""
    assert speed_up(measure(2), measure(daemons)) == pytest.approx(daemons / 2, rel=0.1)
