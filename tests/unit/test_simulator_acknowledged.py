"""What the simulator expects its clients to read (R7)."""

from __future__ import annotations

import pytest

from tests.simulator.acknowledged import Acknowledged, Write, Writes
from tests.simulator.errors import Violation


def test_acknowledged_write_ends_the_doubt_about_an_object() -> None:
    """R7: the region that an object was moving out of is removed, then the region that it moved to acknowledges."""
    acknowledged = Acknowledged({57: b"old"})
    acknowledged.allow(57, None)
    acknowledged.acknowledge(57, b"new")
    acknowledged.check({57: b"new"}, "the reader")
    with pytest.raises(Violation, match="was acknowledged as"):
        acknowledged.check({57: b"old"}, "the reader")


def test_removed_region_takes_the_writes_that_it_acknowledged() -> None:
    """R7: they count as acknowledged once the older writes are, and their region may be removed before that."""
    writes = Writes()
    writes.add(Write(1, b"a", "s.000", {10}))
    writes.add(Write(2, b"b", "s.001", {11}))
    assert list(writes.answered(11)) == []
    writes.region_removed("s.001")
    assert [(write.handle, write.lost) for write in writes.answered(10)] == [(1, False), (2, True)]
