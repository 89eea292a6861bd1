"""What the simulator expects its clients to read (R7)."""

from __future__ import annotations

import pytest

from tests.models.regions.acknowledged import Acknowledged
from tests.models.regions.errors import Promise, Violation


def test_acknowledged_write_ends_the_doubt_about_an_object() -> None:
    """R7: the region that an object was moving out of is removed, then the region that it moved to acknowledges."""
    acknowledged = Acknowledged({57: b"old"})
    acknowledged.forget_one()
    acknowledged.acknowledge(57, b"new")
    acknowledged.check({57: b"new"}, "the reader")
    with pytest.raises(Violation, match="was acknowledged as") as caught:
        acknowledged.check({57: b"old"}, "the reader")
    assert caught.value.promise is Promise.DURABLE


def test_refused_write_leaves_an_object_as_it_was() -> None:
    """R7: also what was in doubt before it stays in doubt."""
    acknowledged = Acknowledged({1: b"old"})
    acknowledged.begin(1, b"perhaps")
    before = acknowledged.begin(1, b"refused")
    acknowledged.refuse(1, before)
    for value in (b"old", b"perhaps"):
        acknowledged.check({1: value}, "the reader")
    with pytest.raises(Violation):
        acknowledged.check({1: b"refused"}, "the reader")


def test_create_without_an_answer_may_be_there_under_any_handle() -> None:
    """R7: and an object that was never written may not."""
    acknowledged = Acknowledged(unplaced={b"perhaps"})
    acknowledged.check({}, "the reader")
    acknowledged.check({7: b"perhaps"}, "the reader")
    with pytest.raises(Violation, match="deleted or never written"):
        acknowledged.check({7: b"other"}, "the reader")


def test_objects_that_were_not_read_have_to_be_there() -> None:
    """R7: a reader knows all handles, and reads some of the objects."""
    acknowledged = Acknowledged({1: b"a", 2: b"b"})
    acknowledged.check_some([1, 2], {1: b"a"}, "the reader")
    with pytest.raises(Violation, match="object 2 is absent"):
        acknowledged.check_some([1], {1: b"a"}, "the reader")


def test_handle_that_was_used_is_never_new() -> None:
    """R14"""
    acknowledged = Acknowledged()
    acknowledged.acknowledge(3, b"a")
    acknowledged.acknowledge(3, None)
    with pytest.raises(Violation) as caught:
        acknowledged.check_new(3)
    assert caught.value.promise is Promise.HANDLES
