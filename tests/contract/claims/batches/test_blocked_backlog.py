"""A blocked backlog is read once, and what becomes free is found at once, whatever frees it (T10, C9, C12)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.batches import planner
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.messages import scan
from spark_jms.claims.records.members import Members
from spark_jms.client import Context
from spark_jms.core.ordering.units_of_order import slot_of
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages import data_files
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import StoreError
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, members_of, records_of
from tests.harness.messages.sequence_reader import Reader, put

HIGH = "JMSPriority > 6"


@pytest.fixture
def context() -> Iterator[Context]:
    with (
        memory_domain(
            orders="queue", prices="topic", target="queue", moving={"kind": "distributed-queue", "members": 1}
        ) as root,
        connect(root, housekeeping=False) as opened,
    ):
        yield opened


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many headers each look at a file has read."""
    seen: list[int] = []
    read_stored = data_files.read_stored

    def counting(storage: Any, file: Any, part: Any, *rest: Any) -> Any:
        seen.append(part.count)
        return read_stored(storage, file, part, *rest)

    monkeypatch.setattr(scan, "read_stored", counting)
    return seen


def blocked_backlog(context: Context) -> None:
    """1 is the first of unit a, 2..11 are behind it, 12 is of unit b, 13 of none."""
    put(context, {"group_id": "a"})
    context.producer("orders").send_many([{"text": "x", "group_id": "a"}] * 10)
    put(context, {"group_id": "b"}, {})


BEHIND = [*range(2, 12)]
End = Callable[[Reader, Reader], None]


def acknowledged(other: Reader, reader: Reader) -> None:
    other.subscriber.acknowledge(other.parts())


def returned(other: Reader, reader: Reader) -> None:
    for claim, parts in other.parts().items():
        other.subscriber.release(claim, parts, delivered=False)


def redelivered_later(other: Reader, reader: Reader) -> None:
    for claim, parts in other.parts().items():
        other.subscriber.release(claim, parts, delivered=True, delay_ms=3_600_000)
    assert reader.take() == []
    reader.now_ms += 3_700_000


def died(other: Reader, reader: Reader) -> None:
    other.subscriber.close()


@pytest.mark.parametrize(("end", "first"), [(acknowledged, []), (returned, [1]), (redelivered_later, [1]), (died, [1])])
def test_messages_behind_a_claim_are_read_once(context: Context, read: list[int], end: End, first: list[int]) -> None:
    """T10, C9: until the claim has ended; then they come in order, behind what the other consumer has not finished."""
    blocked_backlog(context)
    other, reader = Reader(context, name="other"), Reader(context)
    assert other.take(1, keep=True) == [1]
    assert reader.take() == [12, 13]
    read.clear()
    for n in range(14, 18):
        put(context, {"group_id": "a" if n % 2 else "c"})
        assert reader.take() == ([] if n % 2 else [n])
    assert sum(read) <= 12, "each of the new ones, by plan and claim, and none of the others"
    read.clear()
    assert reader.take() == []
    assert read == []
    end(other, reader)
    assert reader.take() == [*first, *BEHIND, 15, 17]


def test_unit_that_consumers_have_by_turns_is_read_once(context: Context, read: list[int]) -> None:
    """T10, C9: it is free for a moment, and the other one has it again."""
    blocked_backlog(context)
    other, reader = Reader(context, name="other"), Reader(context)
    assert other.take(1, keep=True) == [1]
    assert reader.take() == [12, 13]
    acknowledged(other, reader)
    assert reader.take(1, keep=True) == [2]
    assert other.take() == []
    acknowledged(reader, other)
    other.kept.clear()
    assert other.take(1, keep=True) == [3]
    read.clear()
    assert reader.take() == []
    assert sum(read) <= 1, "the claimed one"
    acknowledged(other, reader)
    assert reader.take() == BEHIND[2:]


@pytest.mark.parametrize("commits", [True, False])
def test_messages_behind_a_transaction_come_when_it_ends(context: Context, commits: bool) -> None:
    """T10, T4: its messages are pledged, not claimed."""
    blocked_backlog(context)
    with context.transacted_session() as session:
        message = session.consumer("orders", prefetch=1).receive(5)
        assert message is not None
        reader = Reader(context)
        assert reader.take() == [12, 13]
        assert reader.take() == []
        if commits:
            session.commit()
        else:
            session.rollback()
            session.close()
        assert reader.take() == ([] if commits else [1]) + BEHIND


def test_messages_behind_one_that_moves_away_come(context: Context) -> None:
    """T10, C18."""
    put(context, {"group_id": "a", "delay": "1 h"})
    put(context, {"group_id": "a"}, {"group_id": "a"}, {"group_id": "b"})
    reader = Reader(context)
    assert reader.take() == [4]
    assert reader.take() == []
    order = MoveOrder("orders", "target", limit=1)
    assert move(domain_of(context), records_of(context), order, wait_s=5).moved == 1
    assert reader.take() == [2, 3]


def test_blocked_message_expires_in_its_second(context: Context, read: list[int]) -> None:
    """T10, C12: while others are blocked, and again while its unit is free."""
    rows = [{"text": "x", "group_id": "a", "time_to_live": f"{seconds} s"} for seconds in (600, 600, 7_200)]
    put(context, {"group_id": "a"})
    context.producer("orders").send_many([*rows, {"text": "x", "group_id": "a"}])
    other, reader = Reader(context, name="other"), Reader(context)
    assert other.take(1, keep=True) == [1]
    assert reader.take() == []
    read.clear()
    reader.now_ms += 300_000
    assert reader.take() == []
    assert read == []
    reader.now_ms += 301_000
    assert reader.take() == []
    assert reader.subscriber.backlog() == {0: 3}
    acknowledged(other, reader)
    assert reader.take() == [4, 5]


def test_messages_behind_a_moved_slot_come_when_the_old_member_is_done(context: Context) -> None:
    """T10, D1: a consumer of the new member has seen them wait."""
    units = [f"unit {n}" for n in range(60)]
    context.producer("moving").send_many([{"text": "old", "group_id": unit} for unit in units])
    apply(context.root, {"destinations": {"moving": {"kind": "distributed-queue", "members": 2}}})
    context.producer("moving").send_many([{"text": "new", "group_id": unit} for unit in units])
    owners = Domain(context.root).log("moving").refresh().destination.slot_map.owners
    moved = sum(owners[slot_of(unit)] == 1 for unit in units)

    def consumer(member: int) -> Subscriber:
        settings = ConsumerSettings(replayable=False, members=frozenset([member]))
        return Subscriber(Domain(context.root), records_of(context), "moving", "-", f"m{member}", settings)

    old, new = consumer(0), consumer(1)
    for _ in range(2):
        assert new.next_batch(Batch("m1"), Limits()) is None
    batch = old.next_batch(Batch("m0"), Limits())
    assert batch is not None
    old.acknowledge({batch.claim: {0: batch.members[0].picks}})
    old.next_batch(Batch("m0"), Limits())
    found = new.next_batch(Batch("m1"), Limits())
    assert found is not None
    assert found.count == moved > 0


def test_blocked_messages_come_in_the_order_of_priorities(context: Context) -> None:
    """T10, T15: a sorted destination looks at everything that is free, whenever it became so."""
    keyed: dict[str, Any] = {"kind": "queue", "destination_keys": ("JMSPriority descending",)}
    with memory_domain(orders=keyed) as root, connect(root, housekeeping=False) as sorted_:
        put(
            sorted_,
            {"group_id": "a", "priority": 9},
            {"group_id": "a", "priority": 5},
            {"priority": 1},
            {"group_id": "a", "priority": 9},
        )
        other, reader = Reader(sorted_, name="other"), Reader(sorted_)
        assert other.take(1, keep=True) == [1]
        assert reader.take(1) == [3]
        put(sorted_, {"priority": 2}, {"priority": 7})
        acknowledged(other, reader)
        assert [reader.take(1) for _ in range(4)] == [[6], [2], [4], [5]]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Reader], None]:
    """A plan of a consumer, of which nothing is written."""

    def commit(self: Members, *rest: Any, **named: Any) -> None:
        raise StoreError("the disk is full")

    def plan(reader: Reader) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Members, "commit", commit)
            with pytest.raises(StoreError, match="the disk is full"):
                reader.take()

    return plan


def test_refused_message_that_was_not_finished_is_looked_at_again(
    context: Context, full_disk: Callable[[Reader], None]
) -> None:
    """C7, C10: a topic's subscription finishes what its selector refuses, when that is written."""
    context.consumer("prices", subscription="s", selector=HIGH).close()
    put(context, {"priority": 1}, {"priority": 9}, where="prices")
    reader = Reader(context, HIGH, where=("prices", "s"))
    full_disk(reader)
    assert reader.take() == [2]
    assert reader.subscriber.backlog() == {0: 0}


def test_message_whose_acknowledgement_was_not_written_is_looked_at_again(
    context: Context, full_disk: Callable[[Reader], None]
) -> None:
    """C9: it was acknowledged in the write of the next plan."""
    put(context, {}, {})
    reader = Reader(context)
    assert reader.take(1, keep=True) == [1]
    members_of(reader.subscriber).finish(reader.parts())
    full_disk(reader)
    members_of(reader.subscriber).finish({})
    returned(reader, reader)
    assert reader.take() == [1, 2]


class World:
    """A queue, a consumer that claims and returns as it likes, and one that takes all it can have: the same one all the time, or a
    new one each time, which remembers nothing."""

    def __init__(self, context: Context, seed: int, *, lives_long: bool) -> None:
        self.context, self.chance, self.lives_long = context, random.Random(seed), lives_long
        self.minutes, self.began_ms = 0, now_ms()
        self.selector = self.chance.choice([None, HIGH])
        self.other, self.reader = Reader(context, name="other"), self.new_reader()

    def new_reader(self) -> Reader:
        return Reader(self.context, self.selector)

    def send(self) -> None:
        rows = [
            {
                "text": "x",
                "group_id": self.chance.choice(["a", "b", "c", None]),
                "priority": self.chance.choice([1, 9, 9]),
                "delay": f"{self.chance.choice([0, 0, 0, 20])} min",
                **self.chance.choice([{}, {}, {"time_to_live": "30 min"}]),
            }
            for _ in range(self.chance.randint(1, 5))
        ]
        self.context.producer("orders").send_many(rows)

    def claim(self) -> None:
        self.at_this_time(self.other).take(self.chance.randint(1, 4), keep=True)

    def acknowledge(self) -> None:
        self.other.subscriber.acknowledge(self.other.parts())
        self.other.kept.clear()

    def give_back(self) -> None:
        delay_ms = self.chance.choice([0, 10 * 60_000])
        for claim, parts in self.other.parts().items():
            self.at_this_time(self.other).subscriber.release(claim, parts, delivered=bool(delay_ms), delay_ms=delay_ms)
        self.other.kept.clear()

    def die(self) -> None:
        self.other.subscriber.close()
        self.other = Reader(self.context, name="other")

    def wait(self) -> None:
        self.minutes += self.chance.choice([1, 4, 15])

    def at_this_time(self, reader: Reader) -> Reader:
        reader.now_ms = self.began_ms + self.minutes * 60_000 + 30_000
        return reader

    def taken(self) -> list[int]:
        if not self.lives_long:
            self.reader.subscriber.close()
            self.reader = self.new_reader()
        return self.at_this_time(self.reader).take()

    def run(self) -> list[list[int]]:
        steps, got = [self.send, self.claim, self.acknowledge, self.give_back, self.die, self.wait], list[list[int]]()
        for _ in range(40):
            self.chance.choices(steps, [5, 4, 3, 2, 1, 2])[0]()
            got.append(sorted(self.taken()))
        self.other.subscriber.close()
        self.minutes += 10_000
        got.append(sorted(self.taken()))
        self.reader.subscriber.close()
        self.selector = None
        self.reader = self.new_reader()
        got.append(sorted(self.taken()))
        assert self.reader.subscriber.backlog() == {0: 0}
        return got


@pytest.mark.parametrize("rows_read", [5, 200_000])
@pytest.mark.parametrize("seed", range(8))
def test_consumer_that_remembers_finds_what_a_new_one_finds(
    monkeypatch: pytest.MonkeyPatch, seed: int, rows_read: int
) -> None:
    """T10, C7, C9, C12: at every moment, whatever others claim, return, finish and leave."""
    monkeypatch.setattr(planner, "MAX_ROWS_READ", rows_read)
    found = []
    for lives_long in (True, False):
        with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
            found.append(World(context, seed, lives_long=lives_long).run())
    assert found[0] == found[1]
    assert sum(map(len, found[0])) > 5
