"""What one consumer has claimed, by stage of delivery.

    prefetched   claimed, not yet shown to the application               released as it was, also when it expires
    held         on its way to a coroutine, which may be cancelled       released as it was
    delivered    shown to the application, not acknowledged              released flagged and counted
    finished     acknowledged by the application, not yet in the store   never released
    aside        cannot be decoded, on its way to the set-aside queue        –
    returning    released by the application, not yet in the store       with or without the flag

Plain values without I/O. The consumer's lock guards them.

Features: C8, C11, T9, T16, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_jms.claims.acknowledger import Parts
from spark_jms.client.columns import item_bytes
from spark_jms.client.message import Message
from spark_jms.core.pipeline import advised_maximum
from spark_jms.core.ranges import Ranges

Key = tuple[int, int]  # member, sequence


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
        self._bytes, self._pending_high = 0, self._pending

    @property
    def _pending(self) -> int:
        return self._unseen + len(self.delivered)

    @property
    def _unseen(self) -> int:
        return sum(len(keys_of(message)) for message, _ in self.prefetched) + len(self.held)

    def add(self, messages: Iterable[Message], claim: str) -> None:
        self.prefetched.extend((message, claim) for message in messages)
        self._pending_high = max(self._pending_high, self._pending)

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
