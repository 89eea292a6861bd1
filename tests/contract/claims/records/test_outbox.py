"""The acknowledgement table has each acknowledgement once, under repeated writes and folded rows (C5, C14)."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from spark_jms.claims.records.life_cycle import AcknowledgementTable
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records import life_cycle
from spark_jms.core.records.endings import SELECTOR_REFUSED, SKIPPER, Stamp
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.stored_form import from_objects, to_objects
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing import memory_domain


def acknowledged(state: RecordSet, number: int) -> RecordSet:
    claim = Claim(f"k{number}", "c", "s", Ranges.of((number, number)), 0, True)
    return state.claim(claim).acknowledge("c", "s", claim.id, 1, number)


def messages(domain: Domain, consumer: str = "c") -> int:
    """The number of messages in the table that this consumer has ended."""
    table = domain.acknowledgements("orders")
    paths = [f"{table.storage.uri}/{file.path}" for file in table.refresh().member_files(0).files]
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    return sum(row["messages"] for row in rows if row["consumer"] == consumer)


@pytest.mark.parametrize("noted", [True, False])
def test_row_folded_after_its_write_counts_once(monkeypatch: pytest.MonkeyPatch, noted: bool) -> None:
    """C5, C14: a consumer dies after it wrote the table and before it noted that in the store. Then the table cannot be
    written for so long that rows in the table are folded with rows that are not."""
    monkeypatch.setattr(life_cycle, "MAX_OUTBOX", 3)
    with memory_domain(orders="queue") as root:
        domain = Domain(root)
        outbox = AcknowledgementTable(domain.acknowledgements("orders"), "t", "-")
        state = RecordSet().attach("c", "s")
        for number in (1, 2):
            state = acknowledged(state, number)
        written = outbox.write({0: state.outbox})
        if noted:
            state = state.delivered_to_table(written[0])
        for number in (3, 4, 5, 6, 7):
            state = acknowledged(from_objects(to_objects(state), "x"), number)
        assert len(state.outbox) == 3
        for _ in range(2):  # repeated, as by a consumer that does not know of the first write
            assert outbox.write({0: state.outbox}) == {0: 7}
            assert messages(domain) == 7
        state = acknowledged(state.delivered_to_table(7), 8)
        outbox.write({0: state.outbox})
        assert messages(domain) == 8


def test_row_folded_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: a folded row keeps the position of its first row."""
    monkeypatch.setattr(life_cycle, "MAX_OUTBOX", 1)
    with memory_domain(orders="queue") as root:
        domain = Domain(root)
        outbox = AcknowledgementTable(domain.acknowledgements("orders"), "t", "-")
        state = acknowledged(acknowledged(RecordSet().attach("c", "s"), 1), 2)
        assert outbox.write({0: state.outbox}) == {0: 2}
        (row,) = acknowledged(state, 3).outbox
        assert (row.since, row.position, row.picks) == (1, 3, Ranges.of((1, 3)))
        assert outbox.write({0: [row]}) == {0: 3}
        assert messages(domain) == 3


def test_hull_folded_after_its_write_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """C5, T6: refused messages between acknowledged ones, whose rows were written and not noted, and folded with others then: each
    kind has its number, whatever numbers the hulls have in common."""
    monkeypatch.setattr(life_cycle, "MAX_OUTBOX", 3)
    with memory_domain(orders="queue") as root:
        domain = Domain(root)
        outbox = AcknowledgementTable(domain.acknowledgements("orders"), "t", "-")
        before = (
            RecordSet().attach("c", "s").skip(Ranges.from_numbers(range(1000, 1080, 2)), SELECTOR_REFUSED, Stamp(1, 9))
        )
        state = before.delivered_to_table(outbox.write({0: before.outbox})[0])
        for step in range(6):
            first = 100 * step
            state = state.skip(Ranges.from_numbers(range(first + 2, first + 80, 2)), SELECTOR_REFUSED, Stamp(1, 9))
            state = acknowledged(from_objects(to_objects(state), "x"), first + 1)
            if step in (1, 3):
                outbox.write({0: state.outbox})  # the consumer dies before it notes that
        for _ in range(2):
            outbox.write({0: state.outbox})
            assert messages(domain, "c") == 6
            assert messages(domain, SKIPPER) == 40 + 6 * 39


def test_rows_of_another_table_are_not_taken_for_written() -> None:
    """C14, C18: the acknowledgements survived a destination that was deleted by hand; the positions of the new one start at
    1 again, in the same table."""
    with memory_domain(orders="queue") as root:
        domain = Domain(root)
        for table_id, total in (("old", 3), ("new", 5)):
            state = RecordSet().attach("c", "s")
            for number in range(1, 4 if table_id == "old" else 3):
                state = acknowledged(state, number)
            outbox = AcknowledgementTable(domain.acknowledgements("orders"), table_id, "-")
            outbox.write({0: state.outbox})
            assert messages(domain) == total
