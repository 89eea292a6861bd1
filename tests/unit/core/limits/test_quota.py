"""The pure quota: the theory at the top of core/quota.py (T1, T2)."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_jms.core.limits.quota import (
    ABANDONED_MS,
    FIFO,
    PATIENCE,
    PREEMPTIVE,
    RESERVED_S,
    TRANSITIONS,
    WAITING_S,
    Limit,
    MessageUsage,
    Observation,
    OpenRequest,
    QuotaRequestEvent,
    QuotaRequestState,
    QuotaState,
    QuotaWatch,
    Request,
)
from spark_jms.log.limits.quota_ledger import _DELETE_EVERY, KEPT, LEDGERS, QuotaLedger, _encode
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing.memory_storage import MemoryStorage

NAMES = st.sampled_from(["orders", "prices"])
NEEDS = st.builds(MessageUsage, st.integers(1, 4), st.integers(0, 40))


class Senders(RuleBasedStateMachine):
    """Senders of two destinations beside a model of their logs: what each has committed and finished, and its fence."""

    @initialize(
        policy=st.sampled_from([FIFO, PREEMPTIVE]),
        messages=st.sampled_from([4, 6, -1, 0]),
        size=st.sampled_from([-1, 60]),
    )
    def begin(self, policy: str, messages: int, size: int) -> None:
        self.limit = Limit(messages, size, policy=policy)
        self.state, self.ids, self.now, self.watch = QuotaState(), 0, 0, QuotaWatch()
        self.held = {"orders": MessageUsage(), "prices": MessageUsage()}
        self.logs: dict[str, dict[int, int]] = {"orders": {}, "prices": {}}  # slot -> its newest transaction
        self.grants: list[OpenRequest] = []  # reserved, and not committed yet: also by senders that sleep
        self.wanting: list[Request] = []

    def entry(self, state: QuotaState) -> None:
        assert state.number == self.state.number + 1
        self.state = state

    def looked(self, destination: str) -> QuotaState:
        seen = Observation(self.held[destination], dict(self.logs[destination]))
        return self.state.successor().observe({destination: seen})

    def end(self, one: OpenRequest) -> bool:
        """A commit with the transaction of the reservation. False: the log has it, or a later one."""
        log = self.logs[one.request.destination]
        if log.get(one.slot, 0) >= one.number:
            return False
        log[one.slot] = one.number
        return True

    @rule(destination=NAMES, need=NEEDS)
    def send(self, destination: str, need: MessageUsage) -> None:
        self.ids += 1
        self.wanting.append(Request(f"r{self.ids}", destination, need, "a sender"))
        self.attempt(self.wanting[-1])

    @precondition(lambda self: self.wanting)
    @rule(data=st.data())
    def try_again(self, data: st.DataObject) -> None:
        self.attempt(data.draw(st.sampled_from(self.wanting)))

    def attempt(self, request: Request) -> None:
        draft = self.looked(request.destination).lapse(self.old())
        own = [one for one in draft.waiting if one.request.destination == request.destination]
        before = [one for one in own if one.request.id != request.id]
        known = draft.find(request.id)
        granted = draft.grant(request, self.limit, self.now + 5)
        if granted is not None:
            number = known.number if known is not None else granted.number
            overtaken = [one for one in before if one.number <= number]
            assert self.limit.policy == PREEMPTIVE or not overtaken, "none is overtaken"
            self.entry(granted)
            self.wanting.remove(request)
            made = granted.find(request.id)
            assert made is not None
            self.grants.append(made)
        else:
            self.entry(draft.wait(request, self.now + 6))

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), need=NEEDS)
    def complete_for_another(self, data: st.DataObject, need: MessageUsage) -> None:
        """Another process ends what the sender of a reservation has decided, and may need more room by now."""
        one = data.draw(st.sampled_from(self.grants))
        draft = self.looked(one.request.destination).lapse(self.old())
        known, request = draft.find(one.request.id), dataclasses.replace(one.request, need=need)
        granted = draft.grant(request, self.limit, self.now + 5)
        if known is not None and not known.waits and draft.has_reserved(request):
            assert granted is not None, "what is reserved waits for no other request"
        after = draft.wait(request, self.now + 6) if granted is None else granted
        self.entry(after)
        if granted is not None:
            made = after.find(request.id)
            assert made is not None
            self.grants[self.grants.index(one)] = made  # the transaction's ticket lets one of the two commit

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Sooner or later: a sender may sleep before."""
        one = data.draw(st.sampled_from(self.grants))
        self.grants.remove(one)
        if self.end(one):
            self.held[one.request.destination] += one.request.need

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), dies=st.booleans())
    def give_back(self, data: st.DataObject, dies: bool) -> None:
        one = data.draw(st.sampled_from(self.grants))
        self.grants.remove(one)
        if not dies:
            self.entry(self.looked(one.request.destination).withdraw(one.request, one.number))

    @rule(destination=NAMES)
    def look(self, destination: str) -> None:
        self.entry(self.looked(destination))

    @precondition(lambda self: self.wanting)
    @rule(data=st.data(), dies=st.booleans())
    def give_up(self, data: st.DataObject, dies: bool) -> None:
        request = data.draw(st.sampled_from(self.wanting))
        self.wanting.remove(request)
        if not dies:
            self.entry(self.looked(request.destination).withdraw(request))

    @rule(destination=NAMES, part=st.integers(0, 10))
    def finish(self, destination: str, part: int) -> None:
        held = self.held[destination]
        self.held[destination] = MessageUsage(held.messages * part // 10, held.bytes * part // 10)

    @rule(ms=st.integers(1, 10))
    def pass_time(self, ms: int) -> None:
        self.now += ms

    def old(self) -> frozenset[OpenRequest]:
        """As a process sees it that has looked all the time."""
        self.watch = self.watch.after(self.state.requests, self.now)
        return self.watch.old(self.now, 0)

    @precondition(lambda self: any(not one.waits for one in self.old()))
    @rule()
    def end_old(self) -> None:
        one = next(one for one in self.old() if not one.waits)
        self.end(one)
        self.entry(self.looked(one.request.destination))

    @invariant()
    def used_and_reserved_are_within_the_maximum(self) -> None:
        if not hasattr(self, "state"):
            return
        state, nothing = self.state, MessageUsage()
        assert state.used + state.reserved == nothing or self.limit.allows(state.used + state.reserved)
        coming = (
            one.request.need for one in self.grants if self.logs[one.request.destination].get(one.slot, 0) < one.number
        )
        real = sum(coming, sum(self.held.values(), nothing))
        assert real == nothing or self.limit.allows(real), "what is in the tables, and what may still come"
        for name in self.held:
            assert len(set(state.slots(name))) == len(state.slots(name)), "no two reservations end each other"
        assert QuotaState.from_json(state.to_json()) == state


TestSenders = Senders.TestCase
TestSenders.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSenders.__doc__ = "T1: used + reserved is within the maximum after every entry, FIFO is exact, whatever senders do."


def room_for(state: QuotaState, held: dict[str, int], request: Request, limit: Limit) -> QuotaState:
    """The state after the request was granted, and its messages sent, or after it has registered or renewed."""
    seen = {name: Observation(MessageUsage(messages, 0)) for name, messages in held.items()}
    draft = state.successor().observe(seen)
    granted = draft.grant(request, limit, 0)
    if granted is None:
        return draft.wait(request, 0)
    held[request.destination] += request.need.messages
    return granted.withdraw(request, granted.requests[-1].number)


@given(st.integers(1, 12), st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 3))
def test_small_sends_to_one_destination_starve_no_large_one_to_another(
    large: int, small: list[int], destinations: int
) -> None:
    """T1, T2: with FIFO a request is granted after a bounded number of grants to others, although they take each bit of room first."""
    limit, names = Limit(12), ["orders", *(f"prices{k}" for k in range(destinations))]
    state, held, granted = QuotaState(), dict.fromkeys(names, 0), 0
    held["prices0"] = limit.messages
    waits = Request("large", "orders", MessageUsage(large, 0), "a sender")
    state = room_for(state, held, waits, limit)
    for step in itertools.count():
        for name in names[1:]:
            held[name] = max(held[name] - 1, 0)  # its consumer has finished one
        for name, need in itertools.product(names[1:], small):
            before = held[name]
            state = room_for(state, held, Request(f"{name}.{need}", name, MessageUsage(need, 0), "a sender"), limit)
            granted += held[name] > before
        state = room_for(state, held, waits, limit)
        if held["orders"]:
            break
        assert step < PATIENCE + limit.messages * (1 + len(small)), "granted once all room is free"
    assert granted <= PATIENCE + limit.messages
    assert sum(held.values()) <= limit.messages


def test_transitions_are_those_of_the_theory() -> None:
    """T1: a request ends absent, and nothing happens to one that is absent but its registration or grant."""
    of_absent = {event for (state, event) in TRANSITIONS if state is QuotaRequestState.ABSENT}
    assert of_absent == {QuotaRequestEvent.REGISTER, QuotaRequestEvent.GRANT}
    assert {state for state, _ in TRANSITIONS} == set(QuotaRequestState)
    assert {event for _, event in TRANSITIONS} == set(QuotaRequestEvent)


def test_repeated_batch_takes_over_its_reservation() -> None:
    """T1: its room counts once; the earlier attempt cannot withdraw it any more."""
    request = Request("sink/q/7", "orders", MessageUsage(6, 0), "query q, batch 7")
    first = QuotaState().successor().grant(request, Limit(10), 100)
    assert first is not None
    second = first.successor().grant(request, Limit(10), 200)
    assert second is not None
    assert second.reserved.messages == 6
    assert second.withdraw(request, first.number) == second
    assert second.withdraw(request, second.number).requests == ()


@given(st.integers(1, 60))
def test_ledger_keeps_a_bounded_tail(entries: int) -> None:
    """T1: the newest entries, each linked to the one before."""
    storage = MemoryStorage()
    ledger = QuotaLedger(storage, "small")
    for _ in range(entries):
        before = ledger.read()
        assert ledger.append(before, before.state.successor(), 0, "x") is not None
    kept = QuotaLedger(storage, "small").history()
    assert [one.number for one in kept] == list(range(kept[0].number, entries + 1))
    assert min(entries, KEPT + 1) <= len(kept) <= KEPT + _DELETE_EVERY
    assert all(a.mark == b.previous for a, b in itertools.pairwise(kept))


def test_ledger_accepts_no_entry_of_a_process_that_slept() -> None:
    """T1: its number is free again, because the entry was deleted; also behind another stray entry."""
    storage = MemoryStorage()
    sleeper, second, awake = (QuotaLedger(storage, "small") for _ in range(3))
    for ledger in (sleeper, second):
        entry = ledger.read()
    assert awake.append(entry, entry.state.successor(), 0, "x")
    known = sleeper.read()
    assert second.read() == known
    for _ in range(KEPT + 2 * _DELETE_EVERY):
        before = awake.read()
        assert awake.append(before, before.state.successor(), 0, "x")
    newest = awake.read()
    stray = dataclasses.replace(known.state.successor())
    assert sleeper.append(known, stray, 0, "stray") is None
    assert second.append(known, stray, 0, "stray") is None
    assert sleeper.read() == second.read() == newest
    assert sleeper.append(newest, newest.state.successor(), 0, "x") is not None


def test_entry_behind_the_stray_of_a_killed_process_is_a_stray() -> None:
    """T1: that has the number of the entry which the sleeper knows, but another mark."""
    storage = MemoryStorage()
    sleeper, awake = QuotaLedger(storage, "small"), QuotaLedger(storage, "small")
    append(awake, 2)
    known = sleeper.read()
    append(awake, KEPT + 2 * _DELETE_EVERY)
    assert storage.create(f"{LEDGERS}/small/{2:012d}", _encode(dataclasses.replace(known, mark="another")))
    assert sleeper.append(known, known.state.successor(), 0, "stray") is None
    assert sleeper.read() == awake.read()


def test_of_two_entries_with_one_number_one_counts() -> None:
    """T1: compare-and-append is all that senders share."""
    storage = MemoryStorage()
    one, other = QuotaLedger(storage, "small"), QuotaLedger(storage, "small")
    start, same = one.read(), other.read()
    assert one.append(start, start.state.successor(), 0, "one") is not None
    assert other.append(same, same.state.successor(), 0, "other") is None
    assert other.read().what == "one"


def test_request_is_old_when_it_was_seen_unchanged_for_long_enough() -> None:
    """T1: whatever the clock of its sender says; a renewed one is another one, and so is one that was seen again after an absence."""
    limit = Limit(1)
    request, late = Request("a", "orders", MessageUsage(1, 0), "a"), Request("b", "orders", MessageUsage(1, 0), "b")
    granted = QuotaState().successor().grant(request, limit, until_ms=0)
    assert granted is not None
    state = granted.successor().wait(late, until_ms=10**15)
    reserved, waits = state.find("a"), state.find("b")
    watch = QuotaWatch().after(state.requests, 100)
    assert watch.old(100 + RESERVED_S - 0.01, 0) == frozenset()
    assert watch.old(100 + RESERVED_S, 0) == {reserved}
    watch = watch.after(state.requests, 100 + RESERVED_S)
    assert watch.old(100 + WAITING_S, 0) == {reserved, waits}
    renewed = state.successor().wait(late, until_ms=10**15)  # its clock went back
    assert renewed.find("b") != waits
    watch = watch.after(renewed.requests, 104)
    assert watch.old(100 + WAITING_S, 0) == {reserved}
    assert watch.after((), 105).after(renewed.requests, 106).old(106, 0) == frozenset()


def test_request_is_old_at_once_when_it_was_abandoned_long_ago() -> None:
    """T1: else a program that ends at once, as `jmsq send`, would wait behind a dead sender for ever."""
    request = Request("a", "orders", MessageUsage(1, 0), "a")
    state = QuotaState().successor().wait(request, until_ms=1_000)
    watch = QuotaWatch().after(state.requests, 0)
    assert watch.old(0, 1_000 + ABANDONED_MS) == frozenset()
    assert watch.old(0, 1_000 + ABANDONED_MS + 1) == set(state.requests)


def test_numbers_of_a_new_ledger_are_above_those_that_the_log_knows() -> None:
    """T1: also when the clock of the host where it begins is behind."""
    request = Request("a", "orders", MessageUsage(1, 0), "a")
    state = QuotaState().successor(now_ms=50).observe({"orders": Observation(MessageUsage(), highest=1_000)})
    granted = state.grant(request, Limit(5), 0)
    assert granted is not None
    assert [one.number for one in granted.requests] == [1_001]


def test_ledger_that_begins_again_accepts_no_entry_of_before() -> None:
    """T1: neither that of a process that slept meanwhile, nor that of one that was killed behind its entry."""
    storage = MemoryStorage()
    sleeper, awake = QuotaLedger(storage, "small"), QuotaLedger(storage, "small")
    for _ in range(9):
        before = awake.read()
        assert awake.append(before, before.state.successor(), 0, "x")
    known = sleeper.read()
    again = QuotaLedger(storage, "small")
    again.delete()
    assert again.append(again.read(), QuotaState().successor(), 0, "again")
    assert sleeper.append(known, known.state.successor(), 0, "stray") is None
    assert sleeper.read().what == "again"
    killed = _encode(dataclasses.replace(known, state=known.state.successor()))
    storage.create(f"{LEDGERS}/small/{10:012d}", killed)
    for number in range(2, 15):
        before = again.read()
        made = again.append(before, before.state.successor(), 0, "y")
        if made is None:  # the stray was in the way, and is deleted
            before = again.read()
            assert again.append(before, before.state.successor(), 0, "y")
        assert QuotaLedger(storage, "small").read().number == number


def test_ledger_deletes_unfinished_files_of_killed_processes() -> None:
    """T1: long after they were written, by the storage's clock."""
    storage = MemoryStorage()
    storage.put(f"{LEDGERS}/small/.000000000001.aa", b"{")
    ledger = QuotaLedger(storage, "small")
    append(ledger, _DELETE_EVERY)
    assert len(list(storage.list(f"{LEDGERS}/small"))) == _DELETE_EVERY, "it may still be written"
    storage.files.contents[f"{LEDGERS}/small/.000000000001.aa"] = b"{", now_ms() - 120_000
    append(ledger, _DELETE_EVERY)
    assert not [info for info in storage.list(f"{LEDGERS}/small") if "/." in info.path]


def append(ledger: QuotaLedger, count: int) -> None:
    for _ in range(count):
        before = ledger.follow()
        assert ledger.append(before, before.state.successor(), 0, "x")
