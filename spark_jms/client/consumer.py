"""Receiving without Spark: claim a few messages, hand them out one by one, acknowledge, give back (C7, C8, C9, C11).

    mode          a message is acknowledged
    ----          -------------------------
    client        by message.acknowledge(), with all that this consumer delivered before it (the default)
    individual    by message.acknowledge(), alone
    auto          when the next message is asked for, or the listener returns
    dups-ok       as auto, but written down at most a second or `prefetch` messages later

"auto" and "dups-ok" are for one receiving thread: its next receive says that it is done with what it got before.

A consumer claims `prefetch` messages at a time. They are nobody else's until it is done with them, so a slow consumer
should keep `prefetch` small (1 at the least); a fast one gains by more. Several consumers of one member take turns with
its record, at most about 0.1 s each; a consumer that has the record to itself never waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from spark_jms.claims.fetch import fetch
from spark_jms.claims.subscriber import Subscriber
from spark_jms.client.delivery import ConsumerStatistics, Delivery, Key, Return, parts_of
from spark_jms.client.encoding import from_batch
from spark_jms.client.message import Message
from spark_jms.core.batch import Batch, Limits
from spark_jms.errors import (
    ClosedError,
    ConsumerClosedException,
    IllegalStateException,
    JmsqError,
    MemberUnavailableError,
)
from spark_jms.log.storage import now_ms

if TYPE_CHECKING:
    from spark_jms.client.listener import Listening

MODES = ("client", "individual", "auto", "dups-ok")
DEFAULT_PREFETCH = 10
MAX_PREFETCH = 10_000
HAND_OVER_TIMEOUT_S = 15.0  # for a record that is needed to acknowledge or to give back
CLOSE_TIMEOUT_S = 5.0
_REPLAN_S = 0.1  # what no file tells of: delays that end, consumers that die
_LOOK_S = 0.01  # between two looks at the store
_BOUNDARY_S = 0.02  # between two hand-overs of a consumer that works from its prefetched messages
_LAZY_S = 1.0


def pause_s(idle_s: float) -> float:
    """How long to sleep between two looks for news: short when there was something lately, 50 ms after a minute."""
    return 0.002 if idle_s < 1 else min(0.05, max(0.005, idle_s / 1200))


@dataclass(frozen=True, slots=True)
class _Receipt:
    consumer: Consumer
    generation: int

    def acknowledge(self, message: Message) -> None:
        self.consumer._acknowledge(message, self.generation)


class Consumer:
    """Made by `Context.consumer`. Thread-safe, though the order of messages is then the threads' own affair.

    Any method may raise ConsumerClosedException: this consumer was fenced out, its unacknowledged messages go to
    others, and it can only be closed. Closing acknowledges nothing: what was delivered and not acknowledged goes back
    at once and is delivered again, flagged.
    """

    def __init__(self, subscriber: Subscriber, acknowledge: str, prefetch: int, check: Callable[[], None],
                 closed: Callable[[Consumer], None]) -> None:  # fmt: skip
        self.destination, self.name = subscriber.destination, subscriber.consumer
        self.mode, self.prefetch = acknowledge, prefetch
        self._subscriber, self._table = subscriber, subscriber.table
        self._check_context, self._on_close = check, closed
        # Taken in this order; `_lock` guards the books and is never held while anything is asked of the store.
        self._claiming, self._writing, self._lock = threading.RLock(), threading.RLock(), threading.RLock()
        self._closing = threading.Event()
        self._closed = False
        self._books = Delivery()
        self._failure: JmsqError | None = None
        self._seen_version = -1
        self._boundary_s = self._stored_s = time.monotonic()
        self.listening: Listening | None = None

    # -- receiving ------------------------------------------------------------------------------------------------
    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None when there was none within `timeout_s` (None waits for ever, 0 does not wait) or when
        the consumer was closed meanwhile."""
        if self.listening is not None:
            raise IllegalStateException(
                "this consumer has a listener, which gets its messages: create another consumer"
            )
        self._check()
        return self.next_message(timeout_s)

    def __iter__(self) -> Iterator[Message]:
        """Messages for ever, until the consumer is closed."""
        while not self._closing.is_set():
            message = self.receive()
            if message is None:
                return
            yield message

    def next_message(self, timeout_s: float | None) -> Message | None:
        """`receive`, also for the listener."""
        started = time.monotonic()
        deadline = None if timeout_s is None else started + timeout_s
        try:
            self._settle_previous()
            while not self._closing.is_set():
                message = self._take()
                if message is not None or not self._wait(started, deadline):
                    return message
        except ClosedError:
            if not self._closing.is_set():
                raise
        return None

    def _take(self) -> Message | None:
        self._check()
        with self._lock:
            message = self._books.take(now_ms())
        if message is not None:
            if time.monotonic() - self._boundary_s >= _BOUNDARY_S:
                self._boundary()
            return message
        with self._claiming:
            with self._lock:
                message = self._books.take(now_ms())
            if message is not None or self._closing.is_set():
                return message
            self._claim()
            with self._lock:
                return self._books.take(now_ms())

    def _claim(self) -> None:
        """Claim and read the next messages, if there are any."""
        self._boundary_s = time.monotonic()
        self._write(0)
        self._seen_version = self._table.snapshot.version
        try:
            limits = Limits(max_messages=self.prefetch)
            batch = self._subscriber.next_batch(Batch(self.name), limits)
            while batch is None and self._subscriber.looks_on() and not self._closing.is_set():
                batch = self._subscriber.next_batch(Batch(self.name), limits)
        except ConsumerClosedException as error:
            raise self._fail(error) from None
        if batch is None:
            return
        messages: list[Message] = []
        try:
            receipt = _Receipt(self, self._books.generation)
            for member, pick in sorted(batch.members.items()):
                for rows in fetch(self._table, self.destination, member, pick.picks, pick.redelivered,
                                  fail_on_data_loss=self._subscriber.settings.fail_on_data_loss):  # fmt: skip
                    messages += from_batch(rows, receipt)
        except BaseException:
            with self._lock:
                self._books.returning += [
                    Return(batch.claim, m, pick.picks, False) for m, pick in batch.members.items()
                ]
            self._write(0)
            raise
        with self._lock:
            self._books.add(messages, batch.claim)
            if len(messages) < batch.count:  # gone, and allowed to be: done with
                read = {(m.member, m.sequence) for m in messages}
                claimed = ((m, int(n)) for m, pick in batch.members.items() for n in pick.picks.numbers())
                self._books.finished.update({key: batch.claim for key in claimed if key not in read})

    def _wait(self, started: float, deadline: float | None) -> bool:
        """True when it is worth while to look for messages again; False when time is up."""
        replan = time.monotonic() + _REPLAN_S
        look = 0.0
        while True:
            now = time.monotonic()
            pause = pause_s(now - started)
            if deadline is not None:
                if now >= deadline:
                    return False
                pause = min(pause, deadline - now)
            if self._closing.wait(pause):
                return False
            now = time.monotonic()
            if now >= replan or self._table.snapshot.version != self._seen_version or self._table.has_news():
                return True
            if now >= look:
                look = now + _LOOK_S
                self._check()
                if self._boundary() or self._subscriber.wants_records():
                    return True

    # -- acknowledging --------------------------------------------------------------------------------------------
    def _acknowledge(self, message: Message, generation: int) -> None:
        self._check()
        if self.mode in ("auto", "dups-ok"):
            return
        key = (message.member, message.sequence)
        with self._lock:
            if self.mode == "individual" and generation != self._books.generation and key not in self._books.delivered:
                raise IllegalStateException(
                    f"message {message.message_id} was given back by recover() after it was delivered: it comes again, "
                    "and only that delivery can be acknowledged"
                )
            self._books.finish([key] if self.mode == "individual" else None)
        self._write(HAND_OVER_TIMEOUT_S)

    def _settle_previous(self) -> None:
        """The modes that acknowledge by themselves: what was delivered before is done now."""
        if self.mode not in ("auto", "dups-ok"):
            return
        with self._lock:
            self._books.finish()
            count = len(self._books.finished)
        lazy = self.mode == "dups-ok" and count < self.prefetch and time.monotonic() - self._stored_s < _LAZY_S
        if count and not lazy:
            self._write(HAND_OVER_TIMEOUT_S)

    def settle_listened(self) -> None:
        """The listener has returned."""
        self._settle_previous()

    def recover(self) -> None:
        """Deliver again all that was delivered and not acknowledged, flagged and counted. Others may get some of it."""
        self._check()
        with self._lock:
            self._books.give_back(delivered=True)
        self._write(HAND_OVER_TIMEOUT_S)

    def release(self, message: Message) -> None:
        """Deliver this one message again, flagged and counted, before those that come after it."""
        with self._lock:
            self._books.give_back(delivered=False, keys=[(message.member, message.sequence)])
        self._write(HAND_OVER_TIMEOUT_S)

    # -- the books to the store -----------------------------------------------------------------------------------
    def _write(self, timeout_s: float) -> None:
        """Carry what is finished and what goes back to the store. A record in other hands is waited for, but not longer
        than `timeout_s`, then MemberUnavailableError; with 0, what cannot be written now is written later."""
        deadline = time.monotonic() + timeout_s
        pause = 0.001
        while True:
            if self._try_write():
                return
            if timeout_s == 0:
                return
            if time.monotonic() >= deadline:
                raise MemberUnavailableError(
                    f"{self.destination}: a member's record is in another consumer's hands and was not handed over "
                    f"within {timeout_s:.0f} s: what is acknowledged will be written when it comes; see who holds it "
                    "with `jmsq claims`"
                )
            time.sleep(pause)  # not the closing event: close itself waits here
            pause = min(pause * 2, 0.02)
            self._boundary()

    def _try_write(self) -> bool:
        """True when nothing is left to write."""
        with self._writing:
            with self._lock:
                finished, returning = dict(self._books.finished), list(self._books.returning)
            try:
                self._write_finished(finished)
                self._write_returning(returning)
            except ConsumerClosedException as error:
                raise self._fail(error) from None
            with self._lock:
                return not (self._books.finished.keys() & finished.keys()) and not self._books.returning

    def _write_finished(self, finished: dict[Key, str]) -> None:
        if not finished:
            return
        left = self._subscriber.acknowledge_all(parts_of(finished))
        with self._lock:
            self._books.stored(
                (m, s) for (m, s), claim in finished.items() if m not in left.get(claim, {}) or s not in left[claim][m]
            )
            self._stored_s = time.monotonic()

    def _write_returning(self, returning: list[Return]) -> None:
        for item in returning:
            if self._subscriber.release(item.claim, {item.member: item.picks}, delivered=item.delivered):
                with self._lock:
                    self._books.returning.remove(item)

    # -- boundaries -----------------------------------------------------------------------------------------------
    def _boundary(self) -> int:
        self._boundary_s = time.monotonic()
        try:
            return self._subscriber.boundary()
        except ConsumerClosedException as error:
            raise self._fail(error) from None

    def tend(self) -> None:
        """Several times a second, from the context's thread: hand over what others wait for, write what is late."""
        if self._failure is not None or self._closing.is_set():
            return
        try:
            self._boundary()
            late = time.monotonic() - self._stored_s >= _LAZY_S
            if self._books.returning or (late and self._books.finished):
                self._write(0)
        except (ConsumerClosedException, ClosedError):
            return  # kept by _fail for the next call

    def tick(self) -> None:
        """Once a second, from the context's thread: acknowledgements go to their table."""
        if self._failure is not None or self._closing.is_set():
            return
        try:
            self._subscriber.tick()
        except ConsumerClosedException as error:
            self._fail(error)

    def _fail(self, error: JmsqError) -> JmsqError:
        if self._failure is None:
            self._failure = error
        return error

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"consumer {self.name} of {self.destination} is closed: create a new one")
        if self._failure is not None:
            raise type(self._failure)(str(self._failure)) from self._failure
        self._check_context()

    # -- the end --------------------------------------------------------------------------------------------------
    def statistics(self) -> ConsumerStatistics:
        with self._lock:
            return self._books.statistics(self.listening.failures if self.listening else 0)

    def close(self) -> None:
        """Give everything back, at once. Raises what made the listener end, if nobody has been told."""
        self._closing.set()
        if self.listening is not None:
            self.listening.join()
        with self._claiming, self._lock:
            if self._closed:
                return
            self._closed = True
            self._books.give_back(delivered=True)
        try:
            if self._failure is None:
                self._write(CLOSE_TIMEOUT_S)
                self._subscriber.tick()
        except (ConsumerClosedException, ClosedError, MemberUnavailableError):
            pass  # the end of the session frees the rest: it comes again, flagged
        finally:
            self._subscriber.close()
            self._on_close(self)
        if self.listening is not None:
            self.listening.raise_untold()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
