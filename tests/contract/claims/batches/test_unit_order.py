"""Units of order where some messages cannot be delivered: delayed ones, and ones that a selector refuses (T10, C7, C12)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_jms import connect
from spark_jms.claims.batches import planner
from spark_jms.claims.messages.scan import Question, scan
from spark_jms.client import Context
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.ordering.blocked_units import BlockedUnits
from spark_jms.errors import ModuleFileError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.compaction import compact
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of
from tests.harness.messages.sequence_reader import Reader, put

HIGH = "JMSPriority > 6"


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(orders="queue", prices="topic") as root, connect(root, housekeeping=False) as opened:
        yield opened


@pytest.mark.parametrize("one_commit", [False, True])
def test_delayed_message_blocks_the_later_ones_of_its_unit(context: Context, one_commit: bool) -> None:
    """T10, C12: the earlier one and those of other units come at once."""
    rows: list[dict[str, Any]] = [
        {"group_id": "a"},
        {"group_id": "a", "delay": "1 h"},
        {"group_id": "a"},
        {"group_id": "b"},
        {},
        {"group_id": "a"},
    ]
    if one_commit:
        context.producer("orders").send_many([{"text": str(n), **row} for n, row in enumerate(rows)])
    else:
        put(context, *rows)
    reader = Reader(context)
    assert reader.take() == [1, 4, 5]
    reader.now_ms += 3_600_000
    assert reader.take() == [2, 3, 6]


def test_refused_message_blocks_the_later_ones_of_its_unit(context: Context) -> None:
    """T10, C7: until another consumer has processed it, also for plans that read it no more."""
    put(
        context,
        {"group_id": "a", "priority": 9},
        {"group_id": "a", "priority": 1},
        {"group_id": "a", "priority": 9},
        {"group_id": "b", "priority": 9},
        {"priority": 1},
        {"priority": 9},
    )
    picky, other = Reader(context, HIGH, "picky"), Reader(context, name="other")
    assert picky.take() == [1, 4, 6]
    assert picky.take() == []
    put(context, {"group_id": "a", "priority": 9})
    assert picky.take() == []
    picky.subscriber.close()
    assert other.take(1, keep=True) == [2]
    again = Reader(context, HIGH, "again")
    assert again.take() == [], "the other consumer has not acknowledged it"
    other.subscriber.close()  # its claim is released
    assert again.take() == []
    again.subscriber.close()
    third = Reader(context, name="third")
    assert third.take(1) == [2]
    third.subscriber.close()
    assert Reader(context, HIGH, "last").take() == [3, 7]


def test_refused_message_blocks_until_it_expires(context: Context) -> None:
    """T10, C12: a consumer that has been refusing it notices."""
    put(
        context,
        {"group_id": "a", "priority": 1, "time_to_live": "1 h"},
        {"group_id": "a", "priority": 9},
        {"priority": 1, "time_to_live": "2 h"},
    )
    reader = Reader(context, HIGH)
    assert reader.take() == []
    assert reader.take() == []
    reader.now_ms += 3_600_001
    assert reader.take() == [2]


def test_delayed_message_blocks_until_it_expires(context: Context) -> None:
    """T10, C12: it expires before its delivery time, and a consumer that knows it as delayed notices."""
    put(context, {"group_id": "a", "delay": "3 h", "time_to_live": "1 h"}, {"group_id": "a"}, {"delay": "2 h"})
    reader = Reader(context)
    assert reader.take() == []
    assert reader.take() == []
    reader.now_ms += 3_600_001
    assert reader.take() == [2]
    reader.now_ms += 3_600_000
    assert reader.take() == [3]


def test_file_that_statistics_refuse_blocks_too(context: Context) -> None:
    """T10, C7: a file of which nothing matches is not skipped if it has units of order."""
    put(context, {"group_id": "a", "priority": 1}, {"group_id": "a", "priority": 9}, {"group_id": "b", "priority": 9})
    assert Reader(context, HIGH).take() == [3]


def test_subscription_finishes_what_its_selector_refuses(context: Context) -> None:
    """T10, C10: so it blocks nothing there; a delayed message that matches does."""
    context.consumer("prices", subscription="s", selector=HIGH).close()
    put(
        context,
        {"group_id": "a", "priority": 1},
        {"group_id": "a", "priority": 9},
        {"group_id": "a", "priority": 1, "delay": "1 h"},
        {"group_id": "a", "priority": 9},
        {"group_id": "a", "priority": 9, "delay": "1 h"},
        {"group_id": "a", "priority": 9},
        where="prices",
    )
    reader = Reader(context, HIGH, where=("prices", "s"))
    assert reader.take() == [2, 4]
    reader.now_ms += 3_600_000
    assert reader.take() == [5, 6]


def test_sorted_destination_blocks_too() -> None:
    """T10, T15: the keys order units among each other, never the messages of one."""
    keyed: dict[str, Any] = {"kind": "queue", "destination_keys": ("JMSPriority descending",)}
    with memory_domain(orders=keyed) as root, connect(root, housekeeping=False) as context:
        put(
            context,
            {"group_id": "a", "priority": 1, "delay": "1 h"},
            {"group_id": "a", "priority": 9},
            {"group_id": "b", "priority": 1},
            {"priority": 5},
        )
        reader = Reader(context)
        assert reader.take() == [3, 4]
        reader.now_ms += 3_600_000
        assert reader.take() == [1, 2]


def test_message_of_a_replaced_file_is_not_overtaken(context: Context) -> None:
    """T10, C13: compaction has replaced the first file of a unit; it is looked up before the later ones are read."""
    put(context, {"group_id": "a", "delay": "1 h"}, *[{"group_id": "a"} for n in range(7)], {"group_id": "b"})
    stale = Domain(context.root).log("orders")
    first = stale.refresh().member_files(0).files[0].path
    assert compact(domain_of(context).log("orders")).compacted_files == 9
    os.unlink(f"{stale.storage.uri}/{first}")
    found = scan(stale, 0, Ranges.of((1, 9)), Question(blocked=BlockedUnits(), now_ms=now_ms()))
    assert (found.picks, found.gone) == (Ranges.of((9, 9)), Ranges.of())


@pytest.mark.parametrize("seed", range(6))
def test_plans_in_pieces_keep_every_unit_in_order(context: Context, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """T10: random delays, selectors and clocks, plans that read few headers. What comes is what plain Python says."""
    chance = random.Random(seed)
    monkeypatch.setattr(planner, "MAX_ROWS_READ", chance.choice([3, 10, 1000]))
    rows: list[dict[str, Any]] = [
        {
            "group_id": chance.choice(["a", "b", "c", None]),
            "priority": chance.randint(0, 9),
            "delay": f"{chance.choice([0, 0, 0, 10, 20, 30])} min",
        }
        for _ in range(60)
    ]
    began_ms = now_ms()
    for begin in range(0, 60, 6):
        context.producer("orders").send_many([{"text": "x", **row} for row in rows[begin : begin + 6]])
    left = dict(enumerate(rows, 1))
    picky, every = Reader(context, HIGH, "picky"), Reader(context, name="every")
    for minutes in (0, 5, 11, 21, 31):
        for reader, least in ((picky, 7), (every, 0)):
            reader.now_ms = began_ms + minutes * 60_000 + 30_000
            expected, stuck = [], set()
            for n, row in left.items():
                late = int(row["delay"].split()[0]) > minutes
                if late or row["priority"] < least:
                    stuck.add(row["group_id"])
                elif row["group_id"] is None or row["group_id"] not in stuck:
                    expected.append(n)
            assert sorted(reader.take()) == expected
            for n in expected:
                del left[n]
    assert not left


DEFAULTS = {
    "named": {"kind": "distributed-queue", "members": 4, "default_unit_of_order": "all"},
    "generated": {"kind": "distributed-queue", "members": 4, "default_unit_of_order": ".System-generated"},
}


def test_default_unit_is_that_of_every_message_without_one() -> None:
    """T10: in single sends, chunks and tables; one member and one consumer at a time for all of them."""
    with memory_domain(**DEFAULTS) as root, connect(root, housekeeping=False) as opened:
        one, two = opened.producer("named"), opened.producer("named")
        assert one.send(text="0").group_id == "all"
        assert one.send(text="1", group_id="own").group_id == "own"
        two.send_many([{"text": str(n)} for n in range(2, 5)])
        two.send_many([{"text": str(n)} for n in range(5, 200)])
        found = {(m.text, m.group_id) for m in opened.browser("named")}
        assert found == {(str(n), "own" if n == 1 else "all") for n in range(200)}
        assert len({m.member for m in opened.browser("named") if m.group_id == "all"}) == 1
        with opened.consumer("named", prefetch=1) as first, opened.consumer("named", prefetch=1) as second:
            held = next(m for m in iter(lambda: first.receive(5), None) if m.group_id == "all")
            assert held.text == "0"
            others = [m.group_id for m in iter(lambda: second.receive(0.3), None)]
            assert "all" not in others


def test_generated_default_unit_belongs_to_a_producer() -> None:
    """T10: a producer keeps its unit, whatever method sends; another one has another."""
    with memory_domain(**DEFAULTS) as root, connect(root, housekeeping=False) as opened:
        units = []
        for _ in range(2):
            producer = opened.producer("generated")
            sent = producer.send(text="a")
            producer.send_many([{"text": str(n)} for n in range(150)])
            with_unit = [m for m in opened.browser("generated") if m.group_id == sent.group_id]
            assert len(with_unit) == 151
            assert len({m.member for m in with_unit}) == 1
            units.append(sent.group_id)
        assert units[0] != units[1]


def of_factory(unit: str) -> ConnectionFactory:
    return ConnectionFactory(default_unit_of_order=unit)


def test_default_unit_of_a_connection_factory_comes_before_the_destinations() -> None:
    """T10: in single sends, chunks, tables and transactions; a message's own unit comes first. A connection without one has the
    destination's."""
    with memory_domain(**DEFAULTS, plain="queue") as root:
        for name, others in (("named", "all"), ("plain", None)):
            with (
                connect(root, housekeeping=False, connection_factory=of_factory("ours")) as context,
                connect(root, housekeeping=False) as other,
                context.transacted_session() as session,
            ):
                producer = context.producer(name)
                assert producer.send(text="0").group_id == "ours"
                assert producer.send(text="1", group_id="own").group_id == "own"
                producer.send_many([{"text": str(n)} for n in range(2, 5)])
                producer.send_many([{"text": str(n)} for n in range(5, 200)])
                producer.send_table(pa.table({"text": ["200"]}))
                session.producer(name).send(text="201")
                session.commit()
                assert other.producer(name).send(text="202").group_id == others
                found = {(m.text, m.group_id) for m in other.browser(name)}
                units = {1: "own", 202: others}
                assert found == {(str(n), units.get(n, "ours")) for n in range(203)}


def test_generated_unit_of_a_connection_factory_belongs_to_a_producer() -> None:
    """T10: as that of a destination."""
    with memory_domain(plain="queue") as root:
        factory = of_factory(".System-generated")
        with connect(root, housekeeping=False, connection_factory=factory) as context:
            first, second = context.producer("plain"), context.producer("plain")
            units = [producer.send(text="x").group_id for producer in (first, first, second)]
            assert units[0] == units[1] != units[2]
            assert None not in units


def test_destinations_without_units_of_order_ignore_that_of_a_factory() -> None:
    """T10, T12, D5: one that forwards, and one that handles units of work."""
    queues = {
        "forwards": {"kind": "distributed-queue", "members": 2, "forward_delay_ms": 1000},
        "works": {"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"},
    }
    with (
        memory_domain(**queues) as root,
        connect(root, housekeeping=False, connection_factory=of_factory("ours")) as context,
    ):
        for name in queues:
            assert context.producer(name).send(text="x").group_id is None
            context.producer(name).send_many([{"text": "x"}] * 150)
            assert {m.group_id for m in context.browser(name)} == {None}


def test_tasks_of_spark_give_the_unit_of_their_connection_factory() -> None:
    """T10, C2: to what has none."""
    with memory_domain(plain="queue") as root:
        domain = Domain(root)
        log = domain.log("plain")
        writer = MessageWriter(log.storage, log.refresh().destination, 0, unit="ours")
        writer.write(pa.RecordBatch.from_pydict({"text": ["a", "b"], "JMSXGroupID": [None, "own"]}))
        send(log, writer.close(), log.snapshot.route_id)
        with connect(root, housekeeping=False) as context:
            assert [m.group_id for m in context.browser("plain")] == ["ours", "own"]


def test_default_unit_of_order_and_units_of_work_exclude_each_other() -> None:
    """T10, T12."""
    with pytest.raises(ModuleFileError, match="defaultUnitOfOrder is given"):
        Destination("q", "queue", default_unit_of_order="u", unit_of_work_handling_policy="SingleMessageDelivery")
