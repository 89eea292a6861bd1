"""What one consumer has claimed, by stage of delivery, and how that reaches the record sets.

    prefetched   claimed, not yet shown to the application               released as it was, also when it expires
    held         on its way to a coroutine, which may be cancelled       released as it was
    delivered    shown to the application, not acknowledged              released flagged and counted
    finished     acknowledged by the application, not yet in the store   never released
    aside        cannot be decoded, on its way to the set-aside queue        –
    returning    released by the application, not yet in the store       with or without the flag

The application acknowledges and releases in memory: `Delivery` has plain values without I/O, which the consumer's lock guards.
`AcknowledgementWriter` writes both through the consumer's subscriber, in as few store writes as possible. An administrator may have
the record set open at that moment; then the messages stay in `Delivery` until it is closed. In a transacted session,
`TransactedDelivery` pledges the delivered messages, then acknowledges or returns them.

Features: C7, C8, C11, C15, T9, T10, T16, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from spark_jms.claims.batches.acknowledgement import Parts
from spark_jms.claims.batches.units_of_order import HeldBack, told
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.client.messages.columns import item_bytes
from spark_jms.client.messages.message import Message
from spark_jms.core.destinations.destination import is_temporary
from spark_jms.core.destinations.subscriptions import record_server
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import advised_maximum
from spark_jms.core.records.stored_form import member_record
from spark_jms.core.transactions.transaction import TransactionOrigin
from spark_jms.core.transactions.transfer import Ticket
from spark_jms.errors import MemberUnavailableError, own_copy
from spark_jms.store import OutcomeUnknownError, StoreError
from spark_jms.store.ledger.group_commit import Drain, GroupCommit, finish

Key = tuple[int, int]  # member, sequence
log = logging.getLogger("spark_jms")
GATHER_S = 0.0005  # a write waits so long for what other threads acknowledge
_MAX_PAUSE_S = 0.02  # between two attempts at a record that another consumer holds
LOOK_EVERY_S = 0.2  # for messages that are held back
WARN_EVERY_S = 60.0  # of one consumer: beside another one, other messages hold back others all the time


@dataclass(frozen=True)
class ConsumerStatistics:
    """Counts since the consumer was created, or its statistics were reset; `prefetched`, `unacknowledged` and `returning` are
    current values, and `pending_high` the most that were prefetched or unacknowledged at once. `bytes` counts bodies and
    properties of what was received."""

    received: int = 0
    bytes: int = 0
    redelivered: int = 0  # of the received ones
    acknowledged: int = 0
    expired: int = 0
    returned: int = 0
    listener_failures: int = 0
    prefetched: int = 0
    unacknowledged: int = 0
    returning: int = 0
    pending_high: int = 0
    set_aside: int = 0  # messages that cannot be decoded
    messages_maximum: int = 0  # claimed at a time at most; -1: no limit
    advised_maximum: int | None = None  # 2 * interval + 1, by the calls of acknowledge() so far; None before the first


@dataclass(frozen=True)
class Return:
    """Messages of one claim and member on their way back to the queue. `delay_ms` None: the destination's."""

    claim: str
    member: int
    picks: Ranges
    delivered: bool
    delay_ms: int | None = None


@dataclass(frozen=True)
class Aside:
    """A claimed message that cannot be decoded, or a unit of work with one, on its way aside: sequence -> reason."""

    claim: str
    member: int
    reasons: Mapping[int, str]

    @property
    def told(self) -> str:
        return "; ".join(f"message {sequence} ({reason})" for sequence, reason in sorted(self.reasons.items()))


def parts_of(claims: Mapping[Key, str]) -> Parts:
    """Group single messages by claim and member."""
    numbers: dict[str, dict[int, list[int]]] = {}
    for (member, sequence), claim in claims.items():
        numbers.setdefault(claim, {}).setdefault(member, []).append(sequence)
    return {c: {m: Ranges.from_numbers(n) for m, n in members.items()} for c, members in numbers.items()}


def keys_of(message: Message) -> list[Key]:
    """Of a message, or of all messages of a unit of work."""
    return [(part.member, part.sequence) for part in message.unit_of_work or (message,)]


class Delivery:
    """The stages of the table above. Not thread-safe."""

    def __init__(self) -> None:
        self.prefetched: deque[tuple[Message, str]] = deque()
        self.held: dict[Key, str] = {}
        self.delivered: dict[Key, str] = {}
        self.finished: dict[Key, str] = {}
        self.returning: list[Return] = []
        self.aside: list[Aside] = []
        self.generation = 0  # increases each time delivered messages are released
        self.reset()

    def reset(self) -> None:
        """Count from 0 again."""
        self.received = self.redelivered = self.acknowledged = self.expired = self.returned = self.set_aside = 0
        self._acknowledged_at_once = self._calls = 0  # messages and calls of the application's acknowledge()
        self._bytes, self._pending_high = 0, self.claimed

    @property
    def claimed(self) -> int:
        """Messages that the application has and has not acknowledged, or would get next."""
        return self._unseen + len(self.delivered)

    @property
    def _unseen(self) -> int:
        return sum(len(keys_of(message)) for message, _ in self.prefetched) + len(self.held)

    def add(self, messages: Iterable[Message], claim: str) -> None:
        self.prefetched.extend((message, claim) for message in messages)
        self._pending_high = max(self._pending_high, self.claimed)

    def take(self, now_ms: int) -> Message | None:
        """The next prefetched message, shown to the application."""
        found = self._next(now_ms)
        if found is None:
            return None
        message, claim = found
        self._deliver(message, dict.fromkeys(keys_of(message), claim))
        return message

    def hold(self, now_ms: int) -> Message | None:
        """The next prefetched message."""
        found = self._next(now_ms)
        if found is None:
            return None
        message, claim = found
        self.held.update(dict.fromkeys(keys_of(message), claim))
        return message

    def show(self, message: Message) -> bool:
        """The application has this held message. False: it was released meanwhile, and the application must not get it."""
        keys = keys_of(message)
        if keys[0] not in self.held:
            return False
        self._deliver(message, {key: self.held.pop(key) for key in keys})
        return True

    def _next(self, now_ms: int) -> tuple[Message, str] | None:
        """With its claim. A message that has expired since it was claimed is released: the next plan expires it."""
        while self.prefetched:
            message, claim = self.prefetched.popleft()
            if not 0 < message.expiration_ms <= now_ms:
                return message, claim
            keys = keys_of(message)
            self._return(dict.fromkeys(keys, claim), flagged=False)
            self.returned -= len(keys)
            self.expired += len(keys)
        return None

    def _deliver(self, message: Message, claims: Mapping[Key, str]) -> None:
        self.delivered.update(claims)
        self.received += len(claims)
        self._bytes += sum(map(item_bytes, message.unit_of_work or (message,)))
        self.redelivered += len(claims) * message.redelivered

    def acknowledge(self, keys: Iterable[Key] | None = None) -> None:
        """A call of the application acknowledged these delivered messages, or all of them."""
        before = len(self.finished)
        self.finish(keys)
        if (count := len(self.finished) - before) > 0:
            self._acknowledged_at_once += count
            self._calls += 1

    def finish(self, keys: Iterable[Key] | None = None) -> None:
        """The application acknowledged these delivered messages, or all of them."""
        for key in list(self.delivered) if keys is None else keys:
            if key in self.delivered:
                self.finished[key] = self.delivered.pop(key)

    def stored(self, keys: Iterable[Key]) -> None:
        """The store has these acknowledgements."""
        for key in keys:
            if self.finished.pop(key, None) is not None:
                self.acknowledged += 1

    def pledge(self, keys: Iterable[Key]) -> None:
        """These delivered messages belong to a transaction from now on."""
        for key in keys:
            self.delivered.pop(key, None)

    def end_pledge(self, count: int, *, committed: bool) -> None:
        """The transaction is decided."""
        if committed:
            self.acknowledged += count
        else:
            self.returned += count
            self.generation += 1

    def give_back(self, *, delivered: bool, keys: Iterable[Key] | None = None, delay_ms: int | None = None) -> None:
        """Release everything that the application has not seen, and of the delivered messages `keys`, or, if `delivered`, all of
        them."""
        chosen = list(self.delivered) if delivered else [key for key in keys or () if key in self.delivered]
        self._release(chosen, delay_ms)
        unseen = self.held | {key: claim for message, claim in self.prefetched for key in keys_of(message)}
        self.held.clear()
        self.prefetched.clear()
        self._return(unseen, flagged=False)

    def give_up(self, keys: Iterable[Key], claim: str) -> None:
        """Release these claimed messages, which the application will not see from this claim. They do not count as returned."""
        for _, members in parts_of(dict.fromkeys(keys, claim)).items():
            self.returning += [Return(claim, member, picks, False) for member, picks in members.items()]

    def give_back_parts(self, parts: Parts) -> None:
        """Release these messages, which the application has seen and which belonged to a transaction that was rolled back."""
        self.returning += [
            Return(claim, member, picks, True) for claim, members in parts.items() for member, picks in members.items()
        ]

    def reject(self, keys: Iterable[Key], delay_ms: int | None, *, unit: bool) -> None:
        """Release one delivered message, or a unit of work. What is prefetched stays if the message waits, unless it belongs
        to a unit of order: then no later message of the unit may be delivered before it."""
        if delay_ms and not unit:
            self._release(keys, delay_ms)
        else:
            self.give_back(delivered=False, keys=keys, delay_ms=delay_ms)

    def _release(self, keys: Iterable[Key], delay_ms: int | None) -> None:
        seen = {key: self.delivered.pop(key) for key in keys}
        if seen:
            self.generation += 1
        self._return(seen, flagged=True, delay_ms=delay_ms)

    def _return(self, claims: Mapping[Key, str], *, flagged: bool, delay_ms: int | None = None) -> None:
        self.returned += len(claims)
        for claim, members in parts_of(claims).items():
            self.returning += [Return(claim, member, picks, flagged, delay_ms) for member, picks in members.items()]

    def statistics(self, listener_failures: int, messages_maximum: int) -> ConsumerStatistics:
        return ConsumerStatistics(
            received=self.received,
            bytes=self._bytes,
            redelivered=self.redelivered,
            acknowledged=self.acknowledged,
            expired=self.expired,
            returned=self.returned,
            listener_failures=listener_failures,
            prefetched=self._unseen,
            unacknowledged=len(self.delivered),
            returning=sum(item.picks.count for item in self.returning),
            pending_high=self._pending_high,
            set_aside=self.set_aside,
            messages_maximum=messages_maximum,
            advised_maximum=advised_maximum(self._acknowledged_at_once, self._calls),
        )


class _LeaderInterruptedError(StoreError):
    """The thread that wrote for several was interrupted."""


def _nothing(_: object) -> bool:
    raise AssertionError("the leader gives the result")


class AcknowledgementWriter:
    """Writes acknowledgements and releases. Thread-safe. A caller waits for the write that serves it. The thread that leads the
    write takes `lock`, which guards `delivery` and is never held during a store call. Every method may raise
    ConsumerClosedException."""

    def __init__(self, subscriber: Subscriber, delivery: Delivery, lock: threading.RLock) -> None:
        self._subscriber, self._delivery, self._lock = subscriber, delivery, lock
        self._group = GroupCommit(self._lead, _LeaderInterruptedError, GATHER_S)
        self.written_s = time.monotonic()

    def write(self, timeout_s: float) -> None:
        """Write everything. Waits up to `timeout_s` for record sets that other sessions have opened, then raises
        MemberUnavailableError; with 0, whatever cannot be written now stays for the next call."""
        deadline = time.monotonic() + timeout_s
        pause = 0.001
        while not self._try_write():
            if timeout_s == 0:
                return
            if time.monotonic() >= deadline:
                raise MemberUnavailableError(
                    f"{self._subscriber.destination}: another session has had a member's record set open for {timeout_s:.0f} s: "
                    "acknowledgements are written when it closes it; see who it is with `jmsq claims`"
                )
            time.sleep(pause)  # close() waits here too, so the closing event must not end the pause
            pause = min(pause * 2, _MAX_PAUSE_S)

    def _try_write(self) -> bool:
        """True when everything is written that was finished and returned by the time of the call. Threads that acknowledge
        at the same time share one store write."""
        while True:
            try:
                return self._group.write(_nothing)
            except _LeaderInterruptedError:  # another thread led: what it has not written is still in `Delivery`
                continue

    def _lead(self, drain: Drain) -> None:
        requests = drain()
        try:
            try:
                written = self._write_all()
            except OutcomeUnknownError:  # what the store has counts: what is done there stays as it is
                written = self._write_all()
                self._subscriber.check_session()  # else others may have done it
        except Exception as error:  # noqa: BLE001 - it is raised in each caller
            for request in requests:
                request.error = error if len(requests) == 1 else own_copy(error)
        else:
            for request in requests:
                request.result = written
        finish(requests, None)

    def _write_all(self) -> bool:
        with self._lock:
            finished, returning = dict(self._delivery.finished), list(self._delivery.returning)
        written = self._write_finished(finished)
        return self._write_returning(returning) and written

    def _write_finished(self, finished: dict[Key, str]) -> bool:
        if not finished:
            return True
        left = self._subscriber.acknowledge(parts_of(finished))
        self.wrote([key for key, claim in finished.items() if key[0] not in left.get(claim, ())])
        return not left

    def wrote(self, keys: Iterable[Key]) -> None:
        """The store has these acknowledgements."""
        with self._lock:
            self._delivery.stored(keys)
            self.written_s = time.monotonic()

    def _write_returning(self, returning: list[Return]) -> bool:
        written = True
        for item in returning:
            parts = {item.member: item.picks}
            if self._subscriber.release(item.claim, parts, delivered=item.delivered, delay_ms=item.delay_ms):
                with self._lock:
                    self._delivery.returning.remove(item)
            else:
                written = False
        return written


class TransactedDelivery:
    """The delivered messages of one consumer of a transacted session. The session's lock guards it; `lock` guards `delivery` and is
    never held during a store call."""

    def __init__(self, subscriber: Subscriber, delivery: Delivery, lock: threading.RLock) -> None:
        self._subscriber, self._delivery, self._lock = subscriber, delivery, lock
        self._pledged: dict[Key, str] = {}
        self._left: Parts = {}  # of them: perhaps not pledged yet

    @property
    def dies_with_context(self) -> bool:
        """The record sets are in this process's memory: nothing of them is to be recovered."""
        return is_temporary(self._subscriber.destination)

    def delivered(self) -> dict[Key, str]:
        """What the application has received since the last commit or rollback, with its claims."""
        with self._lock:
            return dict(self._delivery.delivered)

    def origins(self, keys: Mapping[Key, str]) -> list[TransactionOrigin]:
        subscriber, declared = self._subscriber, self._subscriber.table.snapshot.destination
        return [
            TransactionOrigin(
                record_server(declared, subscriber.subscription, member),
                member_record(subscriber.table_id, subscriber.subscription, member),
                subscriber.destination,
                subscriber.subscription,
                member,
            )
            for member in sorted({member for member, _ in keys})
        ]

    def acknowledge_whole(self, keys: Mapping[Key, str]) -> bool:
        """In one write, or not at all: False when they are on several servers, or another session has opened a record set."""
        if self._subscriber.acknowledge(parts_of(keys), whole=True):
            return False
        with self._lock:
            self._delivery.pledge(keys)
            self._delivery.end_pledge(len(keys), committed=True)
        return True

    def pledge(self, keys: Mapping[Key, str], ticket: Ticket, coordinator: str, timeout_s: float) -> None:
        """Raises MemberUnavailableError when another session has a record set open for so long, or a server does not answer,
        and ConsumerClosedException. Then some of them may be pledged."""
        deadline, pause = time.monotonic() + timeout_s, 0.001
        self._pledged, self._left = dict(keys), parts_of(keys)
        with self._lock:
            self._delivery.pledge(keys)  # they belong to the transaction, even if the next steps fail
        while True:
            self._left = self._subscriber.pledge(self._left, ticket, coordinator)
            if not self._left:
                return
            if time.monotonic() >= deadline:
                raise MemberUnavailableError(
                    f"{self._subscriber.destination}: another session has had a member's record set open for {timeout_s:.0f} s; "
                    "see who it is with `jmsq claims`"
                )
            time.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_S)

    def end(self, ticket: Ticket, *, committed: bool, complete: bool = True) -> None:
        """The transaction is decided. Where another consumer holds the record by now, that one acknowledges or returns them. What
        was not pledged when the transaction was rolled back is on its way back. `complete` False: a target follows, and the pledges
        stay until it has its messages."""
        keys, left = self._pledged, self._left
        self._pledged, self._left = {}, {}
        if not keys:
            return
        with self._lock:
            self._delivery.end_pledge(len(keys), committed=committed)
            self._delivery.give_back_parts(left)
        if complete:
            self._subscriber.end_pledges({member for member, _ in keys}, ticket, committed=committed)

    def acknowledge(self, keys: Mapping[Key, str]) -> None:
        """Of a temporary destination, whose record sets this process has to itself."""
        with self._lock:
            self._delivery.pledge(keys)
            self._delivery.end_pledge(len(keys), committed=True)
        self._subscriber.acknowledge(parts_of(keys))


class HeldBackWarning:
    """The warning that messages which the consumer's selector takes wait behind others of their units of order. It names each
    blocker once, and comes at most once a minute. Not thread-safe: one thread receives."""

    def __init__(self, subscriber: Subscriber, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._subscriber, self._clock_s = subscriber, clock_s
        self._look_s = self._warn_s = float("-inf")  # not before
        self._known: set[tuple[int, int]] = set()  # member and sequence of refused messages

    def look(self) -> None:
        now_s = self._clock_s()
        if self._subscriber.settings.selector is None or now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_EVERY_S
        found = self._subscriber.held_back()
        blockers = {(one.member, one.refused) for one in found}
        if blockers - self._known and now_s >= self._warn_s:
            self._warn_s, self._known = now_s + WARN_EVERY_S, blockers
            self.warn(found)

    def warn(self, found: list[HeldBack]) -> None:
        log.warning("%s: %s", self._subscriber.destination, told(found))
