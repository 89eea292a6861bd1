"""What the connections of a domain have done to its store (R14)."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jms.core.records.stored_form import consumer_record, lease_record, member_record
from spark_jms.store.contract import Delete, Operation, Put
from spark_jms.store.engine.entry_log import LedgerBatch
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Change, Connected, Entry, Opened, Prepared, Resolved, Written
from spark_jms.store.regions.protocol.messages import ConnectionRow
from spark_jms.store.replicated.persistence import DomainConnections

QUEUE, TOPIC = member_record("t", "-", 0), member_record("t", "billing", 3)
SERVER, SUBSCRIPTIONS = "messaging.jmsServer.fast", "messaging.jmsServer.durablesubs.fast"


def batch(history: Sequence[Entry], *entries: Entry) -> LedgerBatch:
    """After these entries."""
    before, after = Ledger(), Ledger()
    for ledger, made in ((before, history), (after, (*history, *entries))):
        for entry in made:
            ledger.apply(entry)
    return LedgerBatch(len(history), entries, (), before, after)


def changed(name: str, *operations: Operation) -> Written:
    return Written((Change(name, 1, operations),))


def opened(*names: str) -> list[Entry]:
    return [Connected("s", ""), *(Opened(name, 1, "s") for name in names)]


def test_operations_count_at_the_connection_of_their_record() -> None:
    """R14: record sets of topics are durable subscriptions; those of queues, consumers and housekeeping are the server's."""
    others = (consumer_record("t", "-", "q1"), lease_record("t"))
    connections = DomainConnections("fast")
    history = opened(QUEUE, TOPIC, *others)
    connections.kept(
        batch(history, changed(QUEUE, Put("a", b"1")), changed(TOPIC, Put("a", b"1"), Put("b", b"2"), Delete("none")))
    )
    connections.kept(batch(history, *(changed(name, Put("a", b"1")) for name in others)))
    assert connections.rows() == (
        ConnectionRow(SERVER, create_count=3, object_count=3),
        ConnectionRow(SUBSCRIPTIONS, create_count=2, delete_count=1, object_count=2),
    )


def test_second_put_of_a_key_is_an_update() -> None:
    """R14: also within one physical write, and after a deletion it is a creation again."""
    connections = DomainConnections("fast")
    connections.kept(
        batch(
            opened(QUEUE),
            changed(QUEUE, Put("a", b"1")),
            changed(QUEUE, Put("a", b"2")),
            changed(QUEUE, Delete("a")),
            changed(QUEUE, Put("a", b"3")),
        )
    )
    assert connections.rows()[0] == ConnectionRow(SERVER, 2, 0, 1, 1, 1)


def test_engine_has_read_the_objects_that_it_found() -> None:
    """R14"""
    connections = DomainConnections("fast")
    found = [*opened(QUEUE, TOPIC), changed(QUEUE, Put("a", b"1"), Put("b", b"2")), changed(TOPIC, Put("c", b"3"))]
    connections.kept(batch(found, changed(QUEUE, Put("a", b"4"), Delete("b"))))
    assert connections.rows() == (ConnectionRow(SERVER, 0, 2, 1, 1, 1), ConnectionRow(SUBSCRIPTIONS, 0, 1, 0, 0, 1))


def test_prepared_changes_count_when_they_are_made() -> None:
    """R14: whether the transaction was prepared in the same physical write or before; not when it is rolled back."""
    prepared = Prepared("x", (Change(QUEUE, 1, (Put("a", b"1"),)),))
    together, later, never = DomainConnections("fast"), DomainConnections("fast"), DomainConnections("fast")
    together.kept(batch(opened(QUEUE), prepared, Resolved("x", True)))
    later.kept(batch(opened(QUEUE), prepared))
    assert later.rows()[0] == ConnectionRow(SERVER)
    later.kept(batch([*opened(QUEUE), prepared], Resolved("x", True)))
    never.kept(batch([*opened(QUEUE), prepared], Resolved("x", False)))
    assert [each.rows()[0] for each in (together, later)] == [ConnectionRow(SERVER, 1, 0, 0, 0, 1)] * 2
    assert never.rows()[0] == ConnectionRow(SERVER)
