"""The record set against a naive model: every message is in exactly one state (C5, C8, C9)."""

from __future__ import annotations

from dataclasses import fields, replace

import pyarrow.compute as pc
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.records.endings import EXPIRED, EXPIRER, SELECTOR_REFUSED, SKIPPED, Stamp, kind_of
from spark_jms.core.records.journal import PlannedChange, replayed
from spark_jms.core.records.life_cycle import MAX_OUTBOX, MAX_OUTBOX_BYTES, Acknowledgement, Outbox
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import TRANSITIONS, Claim, MessageEvent, MessageState, delay_end_ms
from spark_jms.core.records.stored_form import (
    NEW_RECORD,
    changed_objects,
    followed,
    followed_change,
    from_objects,
    to_objects,
)
from spark_jms.core.transactions.transaction import Pledge
from spark_jms.core.transactions.transfer import Intent, StagedFile, Ticket, TransferTarget
from spark_jms.errors import ConsumerClosedException, FormatVersionError, IllegalStateException, RecordSetError

LAST = 40
CONSUMERS = ["a", "b", "c"]


def claim(key: str, consumer: str, session: str, picks: Ranges, *, replayable: bool = True) -> Claim:
    return Claim(key, consumer, session, picks, 0, replayable)


def stored_bytes(state: RecordSet) -> int:
    return sum(len(key) + len(value) for key, value in to_objects(state).items())


TARGET = TransferTarget("elsewhere", "id", (StagedFile("m0-x.parquet", 0, 1, 10, 0, "{}"),))


class Model(RuleBasedStateMachine):
    """Three consumers, each with at most one live session, that make every possible change to one record set."""

    def __init__(self) -> None:
        super().__init__()
        self.state = RecordSet(journal=())
        self.objects: dict[str, bytes] = {}  # as a store has them, from changes alone
        self.written: RecordSet | None = None
        self.stored: list[dict[str, bytes]] = []
        self.followed = NEW_RECORD
        self.where: dict[int, str] = dict.fromkeys(range(1, LAST + 1), "available")
        self.deliveries: dict[int, int] = dict.fromkeys(range(1, LAST + 1), 0)  # shown, or perhaps shown
        self.shown: dict[int, int] = dict.fromkeys(range(1, LAST + 1), 0)
        self.alone: set[int] = set()
        self.orders: dict[str, list[list[int]] | None] = {}  # claim -> what its consumer shows at a time
        self.not_before: dict[int, int] = {}
        self.sessions: dict[str, str] = {}
        self.dead: set[str] = set()
        self.now = 1000
        self.serial = 0
        self.replayable: dict[str, bool] = {}
        self.doubt: dict[str, int] = {}
        self.expired = 0

    def claims_of(self, consumer: str) -> list[str]:
        return [c.id for c in self.state.claims.values() if c.consumer == consumer]

    @rule(consumer=st.sampled_from(CONSUMERS))
    def start(self, consumer: str) -> None:
        self.write_changes()
        if consumer in self.sessions:
            self.dead.add(self.sessions[consumer])
        self.serial += 1
        self.sessions[consumer] = f"s{self.serial}"
        self.state = self.state.attach(consumer, self.sessions[consumer])
        for key in self.claims_of(consumer):
            self.doubt.pop(key, None)

    @rule(consumer=st.sampled_from(CONSUMERS))
    def die(self, consumer: str) -> None:
        self.write_changes()
        if consumer in self.sessions:
            self.dead.add(self.sessions.pop(consumer))

    @precondition(lambda self: self.sessions)
    @rule(
        data=st.data(), count=st.integers(1, 9), skip=st.integers(0, 5), replayable=st.booleans(), sorts=st.booleans()
    )
    def pick(self, data: st.DataObject, count: int, skip: int, replayable: bool, sorts: bool) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.sessions)))
        available = self.state.available(1, LAST)
        picks = (available - available.take(skip)).take(count)
        assert set(available.numbers().tolist()) == {n for n, place in self.where.items() if place == "available"}
        if not picks:
            return
        self.serial += 1
        key = f"c{self.serial}"
        redelivered = self.state.redelivered(picks)
        for n in picks.numbers().tolist():
            assert self.deliveries[n] + 1 == next((k for k, r in redelivered.items() if n in r), 1)
            self.where[n] = key
            self.not_before.pop(n, None)
        made = claim(key, consumer, self.sessions[consumer], picks, replayable=replayable)
        self.orders[key] = None
        if sorts:
            shuffled = data.draw(st.permutations(picks.numbers().tolist()))
            at_a_time, known = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 4))
            groups = [shuffled[at : at + at_a_time] for at in range(0, len(shuffled), at_a_time)][:known]
            self.orders[key] = groups
            made = replace(made, order=tuple(Ranges.from_numbers(group) for group in groups))
        self.state = self.state.claim(made)
        self.replayable[key] = replayable

    @precondition(lambda self: self.state.claims)
    @rule(data=st.data(), part=st.booleans())
    def acknowledge(self, data: st.DataObject, part: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.state.claims)))
        held = self.state.claims[key]
        session = self.sessions.get(held.consumer, "s-dead")
        chosen = held.picks.take(2) if part else None
        if not self.state.speaks_for(held.consumer, session):
            with pytest.raises(ConsumerClosedException):
                self.state.acknowledge(held.consumer, session, key, 1, self.now, chosen)
            return
        before = self.state
        self.state = self.state.acknowledge(held.consumer, session, key, 1, self.now, chosen)
        assert self.state.outbox[-1].picks == (chosen or held.picks)
        for n in (chosen or held.picks).numbers().tolist():
            self.where[n] = "done"
        again = self.state.acknowledge(held.consumer, session, key, 1, self.now, chosen or held.picks)
        assert again == self.state
        assert again != before

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.sessions)))
        gone = set(self.claims_of(consumer))
        self.state = self.state.drop(consumer)
        for n, place in self.where.items():
            if place in gone:
                self.where[n] = "available"

    @precondition(lambda self: self.state.claims)
    @rule(data=st.data(), delivered=st.booleans(), part=st.booleans(), delay=st.sampled_from([0, 40, 5000]))
    def release(self, data: st.DataObject, delivered: bool, part: bool, delay: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.state.claims)))
        picks = self.state.claims[key].picks
        chosen = picks.take(1) if part else picks
        until = delay_end_ms(self.now, delay)
        assert self.now + delay <= until <= self.now + delay + 100 or until == delay == 0
        self.state = self.state.release(key, chosen, delivered=delivered, until_ms=until)
        self.give_back(chosen, delivered, until)

    def give_back(self, picks: Ranges, delivered: bool, until: int = 0, shown: set[int] | None = None) -> None:
        for n in picks.numbers().tolist():
            self.where[n] = "available"
            self.deliveries[n] += delivered
            if delivered and (shown is None or n in shown):
                self.shown[n] += 1
                if until:
                    self.not_before[n] = until
            if delivered and shown is None:
                self.alone.discard(n)
            elif delivered:
                self.alone.add(n)

    def shown_first(self, key: str, picks: Ranges) -> set[int] | None:
        """Of a claim whose session is dead; None: all of it."""
        left, groups = set(picks.numbers().tolist()), self.orders[key]
        if self.replayable[key]:
            return None
        if groups is None:
            return {min(left)}
        return next((found for group in groups if (found := left & set(group))), set())

    @rule(passed=st.integers(0, 80), delay=st.sampled_from([0, 500]))
    def sweep(self, passed: int, delay: int) -> None:
        self.now += passed
        self.not_before = {n: until for n, until in self.not_before.items() if until > self.now}
        live = set(self.sessions.values())
        for key, held in list(self.state.claims.items()):
            if held.session in live:
                continue
            if not self.replayable[key] or self.now - self.doubt.setdefault(key, self.now) >= 60:
                self.give_back(held.picks, True, delay_end_ms(self.now, delay), self.shown_first(key, held.picks))
        self.state = self.state.sweep(live, self.now, 60, delay)
        assert self.state.sweep(live, self.now, 60, delay) is self.state

    @rule(low=st.integers(1, LAST), size=st.integers(0, 3), expires=st.booleans())
    def skip(self, low: int, size: int, expires: bool) -> None:
        """T6: a message that expires is counted, whether it was looked at before or not."""
        chosen = Ranges.of((low, min(low + size, LAST)))
        ended = Ranges.from_numbers([n for n in chosen.numbers().tolist() if self.where[n] == "available"])
        position, stamp = self.state.position, Stamp(1, self.now)
        if expires:
            self.state = self.state.expire(chosen, "expired-log", stamp)
        else:
            self.state = self.state.skip(chosen, SELECTOR_REFUSED, stamp)
        assert self.state.position == position + bool(ended)
        if ended:
            row = self.state.outbox[-1]
            assert (row.position, row.picks, row.messages) == (position + 1, ended, ended.count)
            assert kind_of(row.consumer) == (EXPIRED if expires else SKIPPED)
        for n in chosen.numbers().tolist():
            if self.where[n] == "available":
                self.where[n] = "done"
                self.expired += expires

    @rule(limit=st.integers(-1, 3), discard=st.booleans())
    def enforce_limit(self, limit: int, discard: bool) -> None:
        """C8: beyond the limit is what was shown more often and is neither claimed nor moving, delayed or not."""
        beyond = self.state.beyond_limit(limit)
        assert set(beyond.numbers().tolist()) == {
            n for n, place in self.where.items() if place == "available" and 0 <= limit < self.shown[n]
        }
        if discard and beyond:
            position = self.state.position
            self.state = self.state.discard(beyond, "limit", "why", 1, self.now)
            assert self.state.outbox[-1] == Acknowledgement(position + 1, "limit", "why", beyond, 1, self.now)
            for n in beyond.numbers().tolist():
                self.where[n] = "done"

    @precondition(lambda self: self.state.claims)
    @rule(data=st.data(), part=st.booleans(), expires=st.booleans())
    def move(self, data: st.DataObject, part: bool, expires: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.state.claims)))
        held = self.state.claims[key]
        ticket = self.state.ticket("0" * 16)
        if ticket is None or held.in_doubt_since_ms:
            return
        chosen = held.picks.take(2) if part else held.picks
        mover = EXPIRER if expires else held.consumer
        intent = Intent(ticket, chosen, (TARGET,), mover, f"transfer {ticket}", "why", self.now)
        self.state = self.state.move(key, intent)
        for n in chosen.numbers().tolist():
            self.where[n] = f"moving {ticket.slot}"

    @precondition(lambda self: self.state.intents)
    @rule(data=st.data(), arrives=st.booleans())
    def end_of_transfer(self, data: st.DataObject, arrives: bool) -> None:
        slot = data.draw(st.sampled_from(sorted(self.state.intents)))
        picks = self.state.intents[slot].picks
        if arrives:
            self.expired += picks.count if self.state.intents[slot].consumer == EXPIRER else 0
            self.state = self.state.moved(self.state.intents[slot].ticket, 1, self.now)
            assert self.state.outbox[-1].picks == picks
            for n in picks.numbers().tolist():
                self.where[n] = "done"
        else:
            self.state = self.state.returned(self.state.intents[slot].ticket)
            self.give_back(picks, True)

    @rule()
    def reload(self) -> None:
        assert from_objects(to_objects(self.state), "x") == self.state

    @rule()
    def write_changes(self) -> None:
        """Also from the journal alone, and read by one who knows what was there before, or what a write that failed has left."""
        assert self.state.journal is not None
        change = PlannedChange.from_bytes(PlannedChange({"x": self.state.journal}, self.dead).to_bytes())
        sessions = {*self.dead, *self.sessions.values()}
        newest = replace(self.written or RecordSet(), journal=None)
        assert replayed(newest, change.journals["x"], sessions, change.dead) == self.state
        self.state, before = replace(self.state, journal=()), dict(self.objects)
        changes = changed_objects(self.written, self.state)
        for key, value in changes.items():
            if value is None:
                del self.objects[key]
            else:
                self.objects[key] = value
        self.written = self.state
        made = followed_change(self.followed, self.state, changes)
        assert (made.objects, made.state) == (self.objects, self.state)
        assert (made.state.journal, made.state.life.is_on) == (None, False)
        assert made.claims == followed(self.followed, dict(self.objects), "x").claims
        assert followed(made, before, "x").state == from_objects(before, "x")
        for other in (*self.stored[:3], *self.stored[-3:]):  # whatever came between
            assert followed(made, other, "x").state == from_objects(other, "x")
        self.stored.append(before)
        assert from_objects(self.objects, "x") == self.state
        self.followed = followed(self.followed, dict(self.objects), "x")
        assert self.followed.state == self.state
        back = followed(self.followed, before, "x")
        assert back.state == from_objects(before, "x")
        assert followed(back, dict(self.objects), "x").state == self.state
        assert not changed_objects(self.state, self.state)
        assert self.objects.keys() == to_objects(self.state).keys()

    @rule(position=st.integers(0, 60))
    def table_has(self, position: int) -> None:
        self.state = self.state.delivered_to_table(position)
        assert all(a.position > position for a in self.state.outbox)

    @invariant()
    def what_is_known_is_so(self) -> None:
        """A change keeps the fields, and what was computed of those that it leaves as they are."""
        again = replace(self.state)
        assert (again.claimed, again.moving) == (self.state.claimed, self.state.moving)
        assert (
            vars(again).keys() == vars(self.state).keys() == {f.name for f in fields(RecordSet)} | {"claimed", "moving"}
        )

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        done = {n for n in range(1, LAST + 1) if self.state.is_done(Ranges.of((n, n)))}
        claimed = {n: c.id for c in self.state.claims.values() for n in c.picks.numbers().tolist()}
        claimed |= {n: f"moving {slot}" for slot, i in self.state.intents.items() for n in i.picks.numbers().tolist()}
        for n, place in self.where.items():
            assert (n in done) == (place == "done")
            assert claimed.get(n) == (place if place not in ("done", "available") else None)
        assert not self.state.done or self.state.done.first > self.state.floor + 1
        assert self.state.expired == self.expired
        assert self.state.claimed.count + self.state.moving.count == len(claimed)
        late = {n: until for until, ranges in self.state.delays.items() for n in ranges.all().numbers().tolist()}
        assert late == {n: until for n, until in self.not_before.items() if self.where[n] == "available"}
        assert set(self.state.waiting.numbers().tolist()) == set(late)
        alone = set(self.state.deliveries.alone.all().numbers().tolist())
        assert alone == {n for n in self.alone if self.where[n] != "done"}


Model.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


class TestRecordSet(Model.TestCase):
    """C5, C8, C9: available, claimed and done never overlap and lose no message, under any order of changes."""


def test_returning_consumer_keeps_its_claim() -> None:
    """C9: a consumer in a new session acknowledges the claim in doubt that its old session made."""
    state = RecordSet().attach("q", "s1").claim(claim("k", "q", "s1", Ranges.of((1, 5))))
    state = state.sweep(set(), 0, 60_000)
    assert state.claims["k"].in_doubt_since_ms == 0 or state.claims["k"].picks.count == 5
    back = state.attach("q", "s2")
    assert back.acknowledge("q", "s2", "k", 2, 10).floor == 5
    with pytest.raises(ConsumerClosedException, match="revoked or taken over"):
        back.acknowledge("q", "s1", "k", 2, 10)


def test_revoked_claim_is_redelivered_and_refused() -> None:
    """C8, C9: after the in-doubt timeout the messages are available and flagged, and the old claim acknowledges nothing."""
    state = RecordSet().attach("q", "s1").claim(claim("k", "q", "s1", Ranges.of((1, 5))))
    state = state.sweep({"s2"}, 1000, 60_000)
    assert not state.available(1, 5)
    state = state.sweep({"s2"}, 61_000, 60_000)
    assert state.available(1, 5) == Ranges.of((1, 5))
    assert state.redelivered(Ranges.of((1, 9))) == {2: Ranges.of((1, 5))}
    with pytest.raises(ConsumerClosedException):
        state.attach("q", "s3").acknowledge("q", "s3", "k", 3, 0)


def test_claim_waits_as_long_as_its_own_consumer_wished() -> None:
    """C9: a consumer with a time-out of 0 revokes no claim of another one; its own claim is revoked at once."""
    state = RecordSet().attach("q", "s1").attach("hasty", "s2")
    state = state.claim(replace(claim("k", "q", "s1", Ranges.of((1, 2))), in_doubt_timeout_ms=60_000))
    state = state.claim(replace(claim("h", "hasty", "s2", Ranges.of((3, 4))), in_doubt_timeout_ms=0))
    state = from_objects(to_objects(state), "x").sweep(set(), 1000, 0)
    assert set(state.claims) == {"k"}
    assert state.sweep(set(), 60_999, 0).claims.keys() == {"k"}
    assert not state.sweep(set(), 61_000, 10**9).claims


def test_client_claim_is_revoked_at_once() -> None:
    """C9: a plain client never replays a claim, so its messages become available when it dies."""
    state = RecordSet().attach("c", "s1").claim(claim("k", "c", "s1", Ranges.of((1, 2)), replayable=False))
    assert state.sweep(set(), 5, 60_000).redelivered(Ranges.of((1, 2))) == {2: Ranges.of((1, 2))}


def test_consumers_without_claims_are_forgotten() -> None:
    """C9: the state does not grow with the number of past clients."""
    state = RecordSet()
    for i in range(100):
        state = state.attach(f"c{i}", f"s{i}")
    assert state.sweep({"s99"}, 0, 0).consumers == {"c99": "s99"}


def test_outbox_is_bounded_in_rows() -> None:
    """C5: while the table cannot be written, rows are folded and no message is forgotten."""
    state = RecordSet().attach("c", "s")
    for i in range(MAX_OUTBOX + 50):
        state = state.claim(claim(f"k{i}", "c", "s", Ranges.of((i + 1, i + 1)))).acknowledge("c", "s", f"k{i}", 1, i)
    assert len(state.outbox) == MAX_OUTBOX
    covered = EMPTY
    for row in state.outbox:
        assert isinstance(row, Acknowledgement)
        covered = covered | row.picks
    assert covered == Ranges.of((1, MAX_OUTBOX + 50))


def test_outbox_is_bounded_in_bytes() -> None:
    """C5: scattered acknowledgements are folded until they fit; then the outbox is full. The stored state stays far below
    the 16 MiB that a store accepts."""
    state, at = RecordSet().attach("c", "s"), 1
    while not state.outbox.is_full:
        picks = Ranges.from_numbers(range(at, at + 40_000, 2))
        state, at = state.claim(claim(f"k{at}", "c", "s", picks)), at + 40_000
        state = state.acknowledge("c", "s", next(iter(state.claims)), 1, at)
        assert sum(row.bytes for row in state.outbox) <= MAX_OUTBOX_BYTES or len(state.outbox) == 1
    assert union(row.picks for row in state.outbox).count == (at - 1) // 2
    assert stored_bytes(state) < 2 * MAX_OUTBOX_BYTES
    assert not state.delivered_to_table(state.position).outbox.is_full


def test_outbox_row_is_no_larger_than_counted() -> None:
    """C5: the bound holds for the stored size."""
    for count in (1, 10, 1000, 20_000):
        for step in (3, 2**33):
            picks = Ranges.from_numbers(range(1, 1 + step * count, step))
            row = Acknowledgement(2**62, "query-0123456789ab", "1-0123456789abcdef", picks, 2**40, 2**42, 2**62)
            assert stored_bytes(RecordSet(outbox=Outbox([row]))) - stored_bytes(RecordSet()) <= row.bytes


GOOD = to_objects(
    RecordSet().attach("c", "s").claim(claim("k", "c", "s", Ranges.of((2, 4), (9, 9)))).acknowledge("c", "s", "k", 1, 0)
)


@pytest.mark.parametrize("key", ["head", "done/0", "outbox/1", "claim/x", "intent/0", "deliveries/1/0", "deliveries/1"])
@pytest.mark.parametrize("bad", [b"", b"{}", b"[1]", b'{"v":2}', b"\xff"])
def test_damaged_state_raises_record_set_error(key: str, bad: bytes) -> None:
    """C16: the error of an unreadable state names the record set."""
    with pytest.raises(RecordSetError, match="orders/-/0"):
        from_objects({**GOOD, key: bad}, "orders/-/0")


def test_state_without_its_head_is_refused() -> None:
    """C16: objects without a head are damage, not a new record set; a newer version is named."""
    with pytest.raises(RecordSetError, match="orders/-/0"):
        from_objects({key: value for key, value in GOOD.items() if key != "head"}, "orders/-/0")
    with pytest.raises(FormatVersionError, match="version 9"):
        from_objects({"head": b'{"v":9}'}, "orders/-/0")


def test_acknowledgement_writes_only_what_changed() -> None:
    """C18: with ten thousand scattered finished messages and a claim of a thousand, one acknowledgement writes the head,
    one row and one chunk."""
    state = RecordSet().attach("c", "s").skip(Ranges.from_numbers(range(300_000, 320_000, 2)))
    state = state.claim(claim("k", "c", "s", Ranges.from_numbers(range(1_000_001, 1_002_001, 2))))
    after = state.acknowledge("c", "s", "k", 1, 0, Ranges.of((1_000_003, 1_000_003)))
    assert set(changed_objects(state, after)) == {"head", "outbox/1", "done/3"}
    assert from_objects({**to_objects(state), **changed_objects(state, after)}, "x") == after  # type: ignore[dict-item]


def test_acknowledgement_that_was_not_written_stays_in_its_claim() -> None:
    """C9, C8: of those that share a store's write, the later ones have read what the earlier ones did. When the write fails, a
    message that was acknowledged in it is claimed still, not available, and comes again flagged."""
    before = RecordSet().attach("c", "s").claim(claim("k", "c", "s", Ranges.of((1, 3))))
    after = before.acknowledge("c", "s", "k", 1, 5, Ranges.of((1, 1)))
    stored = to_objects(before)
    written = {**stored, **{key: value for key, value in changed_objects(before, after).items() if value is not None}}
    newer = followed(followed(NEW_RECORD, stored, "x"), written, "x")
    assert newer.state.claims["k"].picks == Ranges.of((2, 3))
    undone = followed(newer, stored, "x")
    assert undone.state.claims["k"].picks == Ranges.of((1, 3))
    assert followed(undone, written, "x").state == newer.state


def test_claim_of_a_delayed_message_ends_its_delay_in_the_store() -> None:
    """C8: also when nothing else of its chunk changes."""
    state = RecordSet().attach("a", "s1").claim(claim("c1", "a", "s1", Ranges.of((1, 1)), replayable=False))
    delayed = state.release("c1", Ranges.of((1, 1)), delivered=True, until_ms=1100)
    claimed = delayed.claim(claim("c2", "a", "s1", Ranges.of((1, 1)), replayable=False))
    objects = to_objects(delayed)
    for key, value in changed_objects(delayed, claimed).items():
        if value is None:
            del objects[key]
        else:
            objects[key] = value
    assert from_objects(objects, "x") == claimed
    assert not from_objects(objects, "x").delays


def test_record_of_ten_million_scattered_messages_is_small() -> None:
    """C18: at most 3 MB at any density, 1 MB where 95 % are done, and 64 KiB for an acknowledgement."""
    for density, limit in ((0.5, 3_000_000), (0.95, 1_000_000)):
        done = pc.indices_nonzero(pc.less(pc.random(10_000_000, initializer=3), density))
        state = RecordSet().attach("c", "s").skip(Ranges.from_numbers(pc.add(done, 2)))
        assert stored_bytes(state) <= limit
        window = next(state.available_windows(1, 10_000_000))
        after = state.claim(claim("k", "c", "s", window.take(1))).acknowledge("c", "s", "k", 1, 0)
        assert sum(len(value or b"") for value in changed_objects(state, after).values()) <= 65_536


# -- transfers ----------------------------------------------------------------------------------------------------------
def moving() -> RecordSet:
    state = RecordSet().attach("c", "s").claim(claim("k", "c", "s", Ranges.of((1, 4))))
    ticket = state.ticket("a" * 16)
    assert ticket is not None
    return state.move("k", Intent(ticket, Ranges.of((2, 3)), (TARGET,), "c", "transfer", "why", 0))


def test_moving_messages_are_left_alone() -> None:
    """C18: neither a dead session, a revocation, a drop, a purge nor another claim touches a moving message."""
    state = moving()
    for after in (
        state.sweep(set(), 10**9, 0),
        state.drop("c"),
        state.release("k", delivered=True),
        state.skip(Ranges.of((1, 40))),
        state.attach("c", "later"),
        state.acknowledge("c", "s", "k", 1, 0),
    ):
        assert after.moving == Ranges.of((2, 3))
        assert not after.is_done(Ranges.of((2, 2)))
        assert not after.available(1, 40) & Ranges.of((2, 3))
        with pytest.raises(AssertionError, match="not available"):
            after.claim(claim("new", "c", "s", Ranges.of((3, 3))))


def test_tickets_never_repeat_within_a_life() -> None:
    """C18: a slot has one open intent, its numbers rise, and a new life has a new nonce."""
    state = moving()
    ticket = state.ticket("unused")
    assert ticket is not None
    assert (ticket.nonce, ticket.slot, ticket.number) == ("a" * 16, 1, 1)
    later = state.moved(state.intents[0].ticket, 1, 0).ticket("unused")
    assert later is not None
    assert (later.slot, later.number) == (0, 2)
    fresh = state.renewed("b" * 16).ticket("unused")
    assert fresh is not None
    assert (fresh.nonce, fresh.slot, fresh.number) == ("b" * 16, 1, 1)
    with pytest.raises(AssertionError, match="slot 0"):
        state.move("k", Intent(state.intents[0].ticket, Ranges.of((1, 1)), (TARGET,), "c", "t", "", 0))


# -- the table ----------------------------------------------------------------------------------------------------------
def test_transition_table_drives_every_change() -> None:
    """C8, C9: a change follows its row of the table; a change without a row is refused. DONE is final."""
    available = RecordSet().attach("q", "s")
    claimed = available.claim(claim("k", "q", "s", Ranges.of((2, 4))))
    doubted = claimed.sweep(set(), 5, 60)
    held = {MessageState.CLAIMED: claimed, MessageState.IN_DOUBT: doubted}

    def state_of(after: RecordSet) -> MessageState:
        if after.claims:
            return after.claims["k"].state
        return MessageState.DONE if after.is_done(Ranges.of((2, 4))) else MessageState.AVAILABLE

    assert {state: state_of(before) for state, before in held.items()} == {state: state for state in held}
    for state, before in held.items():
        for event in MessageEvent:
            transition = TRANSITIONS.get((state, event))
            if transition is None:
                with pytest.raises(IllegalStateException):
                    before._move(before.claims["k"], Ranges.of((2, 4)), event, 7)
                continue
            after = before._move(before.claims["k"], Ranges.of((2, 4)), event, 7)
            if event in (MessageEvent.MOVE, MessageEvent.PLEDGE):
                assert not after.claims  # the caller enters the intent or the pledge: see below
                continue
            assert state_of(after) == transition.to
            assert bool(after.redelivered(Ranges.of((2, 4)))) == transition.redelivers
    assert not [event for state, event in TRANSITIONS if state is MessageState.DONE]
    for event in MessageEvent:  # of moving messages
        transition = TRANSITIONS.get((MessageState.MOVING, event))
        before, picks = moving(), Ranges.of((2, 3))
        if transition is None:
            with pytest.raises(IllegalStateException):
                before._end(before.intents[0], event)
            continue
        ended = before._end(before.intents[0], event)
        assert ended.is_done(picks) == (transition.to is MessageState.DONE)
        assert bool(ended.available(1, 4) & picks) == (transition.to is MessageState.AVAILABLE)
        assert bool(ended.redelivered(picks)) == transition.redelivers
    for event in MessageEvent:  # of pledged messages
        transition = TRANSITIONS.get((MessageState.PLEDGED, event))
        pledge = Pledge(Ticket("a" * 16, 0, 1), "transactions/0", Ranges.of((2, 4)), "q", "k", 0)
        pledged = claimed.pledge("s", pledge)
        if transition is None:
            with pytest.raises(IllegalStateException):
                pledged._end_pledge(pledge, event, 7)
            continue
        ended = pledged._end_pledge(pledge, event, 7)
        assert (state_of(ended), ended.pledges) == (transition.to, {})
        assert bool(ended.redelivered(Ranges.of((2, 4)))) == transition.redelivers
    assert state_of(available.skip(Ranges.of((2, 4)))) == TRANSITIONS[MessageState.AVAILABLE, MessageEvent.SKIP].to
    expired = available.expire(Ranges.of((2, 4)), "expired-log", Stamp(1, 0))
    assert state_of(expired) == TRANSITIONS[MessageState.AVAILABLE, MessageEvent.EXPIRE].to
