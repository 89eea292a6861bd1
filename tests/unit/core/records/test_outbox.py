"""The outbox of a record set as a value: its size, its folding, and what of it is stored (C5, C14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records import life_cycle
from spark_jms.core.records.life_cycle import MAX_OUTBOX, Acknowledgement, Outbox, outbox_change


def row(position: int, *pairs: tuple[int, int]) -> Acknowledgement:
    return Acknowledgement(position, "c", f"k{position}", Ranges.of(*(pairs or ((position, position),))), 1, 0)


def stored(outbox: Outbox) -> dict[int, Acknowledgement]:
    return {one.position: one for one in outbox}


@given(st.lists(st.one_of(st.integers(1, 3).map(lambda n: -n), st.integers(1, 4)), max_size=30), st.data())
def test_stored_rows_follow_the_outbox(steps: list[int], data: st.DataObject) -> None:
    """C5, C14: whatever was appended, folded and delivered between two writes, what is written and removed makes the stored
    rows those of the outbox. A positive step appends so many rows, a negative one delivers the first rows to the table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(life_cycle, "MAX_OUTBOX", 5)
        written = now = Outbox()
        known = stored(written)
        position = 0
        for step in steps:
            if step < 0:
                now = now.behind(now[min(-step, len(now)) - 1].position) if now else now
            for _ in range(step):
                position += 1
                now = now.appended(row(position, (3 * position, 3 * position), (3 * position + 2, 3 * position + 2)))
            assert len(now) <= 5
            assert now.bytes == sum(one.bytes for one in now)
            if data.draw(st.booleans()):
                change = outbox_change(written, now)
                for gone in change.removed:
                    del known[gone]
                known.update({one.position: one for one in change.written})
                assert known == stored(now)
                written = now


@given(st.lists(st.integers(1, 9), unique=True).map(sorted), st.lists(st.integers(1, 9), unique=True).map(sorted))
def test_stored_rows_follow_any_other_outbox(before: list[int], after: list[int]) -> None:
    """C19: an outbox need not be the successor of the stored one: a restored record set has any other."""
    old, new = Outbox(map(row, before)), Outbox(row(position, (1, position)) for position in after)
    change = outbox_change(old, new)
    kept = {position: one for position, one in stored(old).items() if position not in change.removed}
    assert kept | {one.position: one for one in change.written} == stored(new)


def test_long_outbox_is_not_walked_for_one_more_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """C11, C14: an acknowledgement beside 999 waiting ones looks at its own row, not at theirs."""
    looked: list[int] = []

    def counted(self: Acknowledgement) -> int:
        looked.append(self.position)
        return 224

    outbox = Outbox(map(row, range(1, MAX_OUTBOX)))
    monkeypatch.setattr(Acknowledgement, "bytes", property(counted))
    compared: list[int] = []
    monkeypatch.setattr(Acknowledgement, "__eq__", lambda a, b: compared.append(a.position) or a is b)
    after = outbox.appended(row(MAX_OUTBOX))
    assert outbox_change(outbox, after) == ([], [after[-1]])
    assert looked == [MAX_OUTBOX]
    assert set(compared) <= {1, MAX_OUTBOX}
