"""Consumers that share record sets: all may change them, none waits for another (C9)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.claims.batches.batch import BatchMaker, ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.records import members, shared
from spark_jms.claims.records.shared import PlanOutdatedError, change_record_sets
from spark_jms.claims.servers.stores import opened_records, opened_state, operations, read_state, record_of, store_of
from spark_jms.client import Context, Message
from spark_jms.client.receiving import receiver
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.records.journal import PlannedChange
from spark_jms.core.records.record_set import Noted, RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.stored_form import to_objects
from spark_jms.errors import ConsumerClosedException, MemberUnavailableError
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import Handle, MemoryStore, RecordHeldError, RecordView, RuleCall, Store
from spark_jms.store.ledger.rules import RULES
from spark_jms.testing import memory_domain
from spark_jms.testing.domain import PATIENCE, wait_until
from spark_jms.testing.inside import domain_of, members_of, records_of


@pytest.fixture(params=["memory", "file", "sqlite"])
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    store = request.param
    if store == "sqlite":
        store = f"jdbc:sqlite:///{request.getfixturevalue('tmp_path')}/store.db"
    spread = {"kind": "distributed-queue", "members": 2}
    with memory_domain(store, orders="queue", spread=spread) as root, connect(root, housekeeping=False) as opened:
        yield opened


def consumer(context: Context, name: str, *, query: bool = False, destination: str = "orders") -> Subscriber:
    settings = ConsumerSettings(replayable=query)
    return Subscriber(Domain(context.root), records_of(context), destination, "-", name, settings)


def send(context: Context, count: int, destination: str = "orders", unit: str | None = None) -> None:
    context.producer(destination).send_many({"text": str(n), "group_id": unit} for n in range(1, count + 1))


def received_in_a_wait(
    context: Context, monkeypatch: pytest.MonkeyPatch, **in_place: Callable[[Subscriber], bool]
) -> Message | None:
    """By a consumer that looks, but does not plan for time alone, with these in place of the subscriber's methods once it waits."""
    monkeypatch.setattr(receiver, "_REPLAN_S", 600.0)
    with context.consumer("orders", acknowledge="auto", prefetch=1) as own:
        assert own.receive(0) is None
        for name, method in in_place.items():
            monkeypatch.setattr(Subscriber, name, method)
        return own.receive(4 * PATIENCE)


def taken(one: Subscriber, count: int) -> Ranges:
    batch = one.next_batch(Batch(one.consumer), Limits(max_messages=count))
    return batch.members[0].picks if batch else Ranges.of()


def test_all_consumers_of_one_member_have_messages_at_once(context: Context) -> None:
    """C9: each claims while the others hold theirs, acknowledges while others claim, and none hands anything over."""
    send(context, 30)
    ones = [consumer(context, name) for name in "abc"]
    batches = [one.next_batch(Batch(one.consumer), Limits(max_messages=5)) for one in ones]
    assert [batch.members[0].picks for batch in batches if batch] == [
        Ranges.of((1, 5)),
        Ranges.of((6, 10)),
        Ranges.of((11, 15)),
    ]
    for one, batch in zip(ones, batches, strict=True):
        assert batch is not None
        assert one.acknowledge({batch.claim: {0: batch.members[0].picks}}) == {}
    assert taken(ones[2], 5) == Ranges.of((16, 20))
    assert ones[0].backlog() == {0: 15}
    for one in ones:
        one.close()


def test_consumer_does_not_ask_again_for_what_a_clearing_has_refused(context: Context) -> None:
    """C9, C14: its subscription was dropped while it began. It looks at the record set as it is now, and is told that its claim is
    gone; else it would ask for the same until its time is up, and say that another session has the record set open."""
    send(context, 2)
    one = consumer(context, "a")
    batch = one.next_batch(Batch("a"), Limits(max_messages=2))
    assert batch is not None
    name = record_of(domain_of(context).log("orders").refresh(), "-", 0)
    with opened_records(records_of(context), {name: "orders/-/0"}, 5, "test") as records:
        records.change({name: records.states[name].cleared()})
    parts = {batch.claim: {0: batch.members[0].picks}}
    assert one.acknowledge(parts) == parts  # planned on what it knew
    with pytest.raises(ConsumerClosedException):
        one.acknowledge(parts)
    one.close()


@pytest.mark.parametrize("fails", ["plan", "acknowledgement"])
def test_record_set_that_was_opened_in_line_is_closed_after_an_error(
    context: Context, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """C9: what a consumer waited for, while another session had it open for long, is open to all again when its plan fails, or
    its claim was revoked meanwhile."""
    monkeypatch.setattr(members, "SHORT_S", 0.0)
    monkeypatch.setattr(members, "LINE_S", 10.0 * PATIENCE)
    send(context, 2)
    store, one = records_of(context), consumer(context, "a")
    batch = one.next_batch(Batch("a"), Limits(max_messages=1))
    assert batch is not None
    parts = {batch.claim: {0: batch.members[0].picks}}
    name = record_of(domain_of(context).log("orders").refresh(), "-", 0)
    session = store.connect("test")
    handle = session.open(name)
    state = opened_state(handle)
    handle.commit(operations(state, state.revoke(batch.claim)))
    assert taken(one, 1) == Ranges.of()  # it goes on without the record set, and waits for it the next time
    if fails == "plan":
        monkeypatch.setattr(BatchMaker, "_up_to_date", raise_storage_error)

    def plan() -> None:
        if fails == "plan":
            one.next_batch(Batch("a"), Limits(max_messages=1))
        else:
            one.acknowledge(parts)

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(plan)
        wait_until(handle.waiters)
        handle.close()
        with pytest.raises((OSError, ConsumerClosedException)):
            done.result()
    session.open(name, timeout_ms=0).close()
    session.close()
    one.close()


@pytest.mark.parametrize("ends", ["whole acknowledgement", "release"])
def test_record_set_that_was_opened_in_line_and_not_changed_is_closed(
    context: Context, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """C9: all or nothing is asked of two record sets, and another session keeps the second one. Nothing is changed, and the first, for
    which the consumer waited, is open to all again: to that session, too."""
    monkeypatch.setattr(members, "SHORT_S", 0.0)
    monkeypatch.setattr(members, "LINE_S", 10.0 * PATIENCE)
    for unit in "abcdefgh":
        send(context, 1, "spread", unit)
    store, one = records_of(context), consumer(context, "a", destination="spread")
    batch = one.next_batch(Batch("a"), Limits())
    assert batch is not None
    parts = {member: batch.members[member].picks for member in (0, 1)}
    snapshot = domain_of(context).log("spread").refresh()
    session = store.connect("test")
    first, second = (session.open(record_of(snapshot, "-", member)) for member in (0, 1))
    assert one.next_batch(Batch("a"), Limits()) is None  # it waits for them the next time

    def ask() -> object:
        if ends == "release":
            return one.release(batch.claim, parts, delivered=True)
        return one.acknowledge({batch.claim: parts}, whole=True)

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(ask)
        wait_until(first.waiters)
        monkeypatch.setattr(members, "LINE_S", 0.0)
        first.close()
        assert done.result() in (False, {batch.claim: parts})
    session.open(first.name, timeout_ms=0).close()
    second.close()
    assert ask() in (True, {})
    session.close()
    one.close()


def raise_storage_error(*arguments: object) -> None:
    raise OSError("the storage does not answer")


def test_threads_receive_each_message_once(context: Context) -> None:
    """C8, C9: 8 consumers of one process."""
    send(context, 120)
    got, lock = list[str](), threading.Lock()

    def work() -> None:
        with context.consumer("orders", acknowledge="individual") as own:
            while (message := own.receive(0.5 * PATIENCE)) is not None:
                assert not message.redelivered
                message.acknowledge()
                with lock:
                    got.append(message.text or "")

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work) for _ in range(8)]:
            done.result()
    assert sorted(got, key=int) == [str(n) for n in range(1, 121)]


def test_a_message_wakes_few_of_many_that_wait(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9, C11: of the consumers that wait, those plan whose turn it is; all would be 8 + 7 + ... + 1 plans."""
    plans, lock = list[str](), threading.Lock()
    prepare = BatchMaker.prepare

    def counted(self: BatchMaker, *arguments: Any) -> Any:
        with lock:
            plans.append(threading.current_thread().name)
        return prepare(self, *arguments)

    def work() -> str | None:
        with context.consumer("orders", acknowledge="auto", prefetch=1) as own:
            message = own.receive(60 * PATIENCE)
            return message and message.text

    def state() -> RecordSet:
        snapshot = domain_of(context).log("orders").refresh()
        return read_state(records_of(context), record_of(snapshot, "-", 0))

    monkeypatch.setattr(receiver, "_REPLAN_S", 600.0)
    monkeypatch.setattr(receiver, "_TURN_S", 0.2 * PATIENCE)  # longer than a busy machine takes for a plan
    with ThreadPoolExecutor(8) as threads:
        working = [threads.submit(work) for _ in range(8)]
        wait_until(lambda: len(state().consumers) == 8)
        time.sleep(0.2 * PATIENCE)  # the last of them begins to wait
        monkeypatch.setattr(BatchMaker, "prepare", counted)
        for number in range(1, 9):
            send(context, 1)
            wait_until(lambda number=number: state().floor == number)
        assert [one.result() for one in working] == ["1"] * 8
    assert len(plans) < 20


def test_message_that_comes_behind_a_look_wakes_its_consumer(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9, C11: another thread reads the log's new version after this consumer's look, and before the consumer notes which it saw."""
    available, is_due, found = Subscriber.has_available, Subscriber.is_due, list[bool]()

    def waits(self: Subscriber) -> bool:
        if self.table.snapshot.last_sequence(0) == 0:
            send(context, 1)
        return is_due(self)

    def looked(self: Subscriber) -> bool:
        if not found:
            assert taken(other, 1) == Ranges.of((1, 1))
        found.append(available(self))
        if len(found) == 1:
            with connect(context.root, housekeeping=False) as elsewhere:
                send(elsewhere, 2)
            self.table.refresh()
        return found[-1]

    other = consumer(context, "other")
    message = received_in_a_wait(context, monkeypatch, has_available=looked, is_due=waits)
    other.close()
    assert message is not None
    assert (message.text, message.sequence, found[0]) == ("1", 2, False)


def test_message_that_is_returned_behind_a_look_wakes_its_consumer(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9, C11: no number of the log's version keeps a consumer from looking whether others have changed a record set."""
    available, is_due, batches, found = Subscriber.has_available, Subscriber.is_due, list[Batch](), list[bool]()

    def waits(self: Subscriber) -> bool:
        if self.consumer == "other":
            return is_due(self)
        if self.table.snapshot.last_sequence(0) == 0:
            send(context, 1)
        elif found == [False]:
            (batch,) = batches
            other.release(batch.claim, {0: batch.members[0].picks}, delivered=True)
            found.append(True)
        return is_due(self)

    def looked(self: Subscriber) -> bool:
        if not batches:
            batch = other.next_batch(Batch(other.consumer), Limits(max_messages=1))
            assert batch is not None
            batches.append(batch)
            found.append(available(self))
            return found[0]
        return available(self)

    begun = time.monotonic()
    monkeypatch.setattr(receiver, "time", SimpleNamespace(monotonic=lambda: time.monotonic() - begun - 1_000_000))
    other = consumer(context, "other")
    message = received_in_a_wait(context, monkeypatch, has_available=looked, is_due=waits)
    other.close()
    assert message is not None
    assert (message.text, message.delivery_count, found) == ("1", 2, [False, True])


def test_consumer_that_was_overtaken_plans_again_soon(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9: it does not wait for what tells it of new messages, because those that it may have are not new."""
    plans, prepare = list[str](), BatchMaker.prepare

    def overtaken(self: BatchMaker, *arguments: Any) -> Any:
        plans.append("overtaken")
        if len(plans) <= 5:
            raise PlanOutdatedError("others were faster")
        return prepare(self, *arguments)

    monkeypatch.setattr(receiver, "_REPLAN_S", 600.0)
    with context.consumer("orders", acknowledge="auto", prefetch=1) as own:
        own.receive(0)
        send(context, 1)
        monkeypatch.setattr(BatchMaker, "prepare", overtaken)
        message = own.receive(5 * PATIENCE)
    assert message is not None
    assert message.text == "1"


def test_messages_of_a_unit_go_to_one_consumer_at_a_time(context: Context) -> None:
    """C12: in order, whichever consumer gets them next."""
    send(context, 6, unit="u")
    first, second = consumer(context, "first"), consumer(context, "second")
    batch = first.next_batch(Batch("first"), Limits(max_messages=2))
    assert batch is not None
    assert not taken(second, 2)
    first.acknowledge({batch.claim: {0: Ranges.of((1, 1))}})
    assert not taken(second, 2)  # 2 is claimed still
    first.acknowledge({batch.claim: {0: Ranges.of((2, 2))}})
    assert taken(second, 2) == Ranges.of((3, 4))
    assert not taken(first, 2)
    first.close()
    second.close()


def test_dead_consumer_loses_its_claim_and_its_session() -> None:
    """C8, C9: what it had comes flagged, and it can acknowledge nothing any more."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        send(context, 4)
        first, second = consumer(context, "first"), consumer(context, "second")
        batch = first.next_batch(Batch("first"), Limits(max_messages=2))
        assert batch is not None
        store = store_of(records_of(context), HOME)
        assert isinstance(store, MemoryStore)
        store.crash(members_of(first).session)
        again = second.next_batch(Batch("second"), Limits(max_messages=9))
        assert again is not None
        assert again.members[0].picks == Ranges.of((1, 1))  # its consumer was shown it and died: it comes alone
        assert again.members[0].redelivered == {2: Ranges.of((1, 1))}
        with pytest.raises(ConsumerClosedException):
            first.acknowledge({batch.claim: {0: batch.members[0].picks}})
        first.close()
        second.close()


def test_both_records_of_a_query_are_claimed_or_none(context: Context) -> None:
    """C5, C9: its progress is written in the same change, by its session alone."""
    for name in ("spread", "spread"):
        send(context, 4, name)
    query = consumer(context, "q", query=True, destination="spread")
    first = query.next_batch(Batch("q"), Limits(max_messages=4))
    assert first is not None
    assert first.members.keys() == {0, 1}
    second = query.next_batch(first, Limits(max_messages=4))
    assert second is not None
    assert sum(query.backlog().values()) == 4
    assert query.resume(second) == {}
    query.close()
    again = consumer(context, "q", query=True, destination="spread")
    assert again.resume(second) == {}
    assert again.next_batch(second, Limits()) is None
    assert sum(again.backlog().values()) == 0
    again.close()


def test_administrators_and_earlier_releases_have_a_record_to_themselves(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: a consumer that shares waits until they have closed it, for a limited time, and says why it does not go on."""
    send(context, 6)
    one = consumer(context, "one")
    batch = one.next_batch(Batch("one"), Limits(max_messages=2))
    assert batch is not None
    own = {batch.claim: {0: batch.members[0].picks}}
    session = store_of(records_of(context), HOME).connect("jmsq purge")
    handle = session.open(members_of(one).record(0))
    assert one.acknowledge(own) == own  # to be tried again
    monkeypatch.setattr(members, "CHANGE_S", 0.3)
    with pytest.raises(MemberUnavailableError, match="another session has had"):
        members_of(one).commit({0: members_of(one).attached_state(0).start_at(1)})
    closes = threading.Timer(0.3, handle.close)
    closes.start()
    wait_until(lambda: not one.acknowledge(own))
    closes.join()
    handle = session.open(members_of(one).record(0))
    assert one.next_batch(Batch("one"), Limits(max_messages=2)) is None
    assert one.acknowledge(own) == own  # to be tried again
    handle.close()
    assert taken(one, 2) == Ranges.of((3, 4))
    one.close()
    session.close()


class ConsumerOfEarlierRelease:
    """Has the record set to itself, and hands it over at a boundary to the session that waits in line."""

    def __init__(self, store: Store, record: str) -> None:
        self._session, self._record = store.connect("orders/- old"), record
        self._handle: Handle | None = None

    def receive(self, count: int) -> list[int]:
        """Take and acknowledge."""
        try:
            self._handle = self._handle or self._session.open(self._record, timeout_ms=0)
        except RecordHeldError:
            return []
        before = opened_state(self._handle)
        picks = before.available(1, 150).take(count)
        if not picks:
            return []
        session = self._session.session_id
        claim = Claim(f"old-{picks.first}", "old", session, picks, 0, replayable=False)
        after = before.attach("old", session).claim(claim).acknowledge("old", session, claim.id, 1, 0)
        self._handle.commit(operations(before, after))
        return picks.numbers().to_pylist()

    def boundary(self) -> None:
        if self._handle is not None and self._handle.waiters():
            self._handle.close()
            self._handle = None

    def close(self) -> None:
        self._session.close()


def test_a_consumer_that_hands_over_works_beside_those_that_share(context: Context) -> None:
    """C9, C16: consumers of both releases on one member, until everything is received once."""
    send(context, 150)
    new = [consumer(context, name) for name in "ab"]
    old = ConsumerOfEarlierRelease(store_of(records_of(context), HOME), members_of(new[0]).record(0))
    got: dict[str, list[int]] = {"a": [], "b": [], "old": []}
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            got["old"] += old.receive(2)
            time.sleep(0.02)
            old.boundary()

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(work)
        try:
            end = time.monotonic() + 60 * PATIENCE
            while sum(map(len, got.values())) < 150:
                assert time.monotonic() < end, got
                for one in new:
                    batch = one.next_batch(Batch(one.consumer), Limits(max_messages=2))
                    if batch is not None:
                        picks = batch.members[0].picks
                        got[one.consumer] += picks.numbers().to_pylist()
                        wait_until(
                            lambda one=one, batch=batch, picks=picks: not one.acknowledge({batch.claim: {0: picks}})
                        )
        finally:
            stop.set()
        done.result()
    assert sorted(number for numbers in got.values() for number in numbers) == list(range(1, 151))
    assert got["old"]
    assert got["a"] or got["b"]
    for one in (*new, old):
        one.close()


# -- the rule ----------------------------------------------------------------------------------------------------------
def test_every_process_that_serves_a_store_has_the_rule() -> None:
    """S6: by its name, also one that knows nothing of messages until it is asked."""
    assert RULES["record-sets"] in (change_record_sets, "spark_jms.claims.records.shared:change_record_sets")
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        session = store_of(records_of(context), HOME).connect()
        plan = RecordSet(journal=()).start_at(3)
        call = RuleCall(shared.RULE, PlannedChange({"members/x/-/0": plan.journal or ()}).to_bytes())
        assert session.change(["members/x/-/0"], call) == b""
        view = session.look(["members/x/-/0"])["members/x/-/0"]
        assert view.objects == to_objects(RecordSet().start_at(3))
        session.close()


def test_the_rule_ends_whom_the_plan_found_dead_and_whom_the_store_still_knows() -> None:
    """C9: ids of sessions that have gone by themselves are nothing to end."""
    state = RecordSet().attach("a", "s1")
    plan = RecordSet(journal=()).start_at(1)
    change = PlannedChange({"r": plan.journal or ()}, ["s1", "s2"])
    result = change_record_sets(change.to_bytes(), {"r": RecordView(1, to_objects(state))}, frozenset({"s1", "s3"}))
    assert set(result.ended) == {"s1"}
    assert result.answer == b""


def test_the_rule_decides_nothing_when_a_part_of_it_is_refused() -> None:
    """C8: two members, and on one the claim is not the consumer's any more."""
    fine = RecordSet(journal=()).start_at(1)
    known = RecordSet(journal=()).attach("a", "s1")
    gone = known.attach("a", "s1")
    journal = (*(gone.journal or ()), *_acknowledged())
    change = PlannedChange({"fine": fine.journal or (), "gone": journal})
    views = {"fine": RecordView(0, {}), "gone": RecordView(0, {})}
    result = change_record_sets(change.to_bytes(), views, frozenset({"s1"}))
    assert not result.operations
    with pytest.raises(ConsumerClosedException, match="revoked or taken over"):
        shared.raise_refusal(result.answer)


def _acknowledged() -> tuple[Noted, ...]:
    return (Noted("acknowledge", ("a", "s1", "c1", 1, 0, Ranges.of((1, 1))), {}),)
