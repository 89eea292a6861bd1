"""Asynchronous sends of one context: one thread sends what producers have queued, and then calls their listeners.

    a send is   until                                                      it is in            counted by
    ---------   -----                                                      --------            ----------
    queued      the thread has taken up to BATCH of them                   `_queue`            `_unsent`, `_outstanding`
    taken       each destination has committed its share in one shipment   `_taken`            `_unsent`, `_outstanding`
    sent        its listener has returned; also when sending failed        `_sent`             `_outstanding`
    complete    –                                                          –                   –

An interrupt (Ctrl-C) of the application's thread between queueing a send and counting it makes it count all sends again.

The thread sends in the order of the queue and calls the listeners in that order too, so both keep the order of each producer.
While a batch is committed the application queues the next one: the slower a commit, the more sends share the next. With
`linger_s` the oldest one in the queue waits so long for others, unless there are BATCH or half of MAX_BYTES, or a call waits for
sends.

    waits for                                         who
    ---------                                         ---
    fewer than MAX_MESSAGES and MAX_BYTES that are    an asynchronous send, except from a listener. A message of more bytes
    outstanding                                       goes alone. A coroutine's send has waited before (aio/blocking_calls.py)
    the producer's own sends to be sent               its blocking sends, so that its messages keep their order
    the producer's, or all, to be complete            closing it, or the context

A listener runs in this thread. Closing waits for the listener, so it is refused there. A blocking send there sends the queue
first, in the same thread.

The thread is a daemon: when the interpreter exits without closing the context, what is not complete may or may not be sent. A
forked child has none of the parent's sends, and cannot send asynchronously by the parent's context.

Here is also what a producer says of its sends, asynchronous or not: the result of a call, and its counts.

Features: C11, M1, T11, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from spark_jms.client.messages.message import Message
from spark_jms.client.sending.flow_control import NOT_SLOWED, FlowStatistics
from spark_jms.client.sending.shared_send import OutgoingMessages, Part, SharedSender
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.errors import (
    ClosedError,
    CommitOutcomeUnknownError,
    ForkedProcessError,
    IllegalStateException,
    OptionError,
    own_copy,
)
from spark_jms.store.processes import abandon_in_child

log = logging.getLogger("spark_jms")
MAX_MESSAGES = 5_000
MAX_BYTES = 32 * 2**20
BATCH = 1_000


class CompletionListener(Protocol):
    """JMS's interface. A thread of the context calls one of the two for each message, once its send is decided."""

    def on_completion(self, message: Message, /) -> object:
        """The message is in the table. It has its id, member and sequence."""

    def on_exception(self, message: Message, error: Exception, /) -> object:
        """The message was not sent, except after a CommitOutcomeUnknownError. It has no id."""


@dataclass(frozen=True)
class Completion:
    """A CompletionListener of two functions."""

    on_completion: Callable[[Message], object]
    on_exception: Callable[[Message, Exception], object]


@dataclass(frozen=True)
class ProducerStatistics:
    """Counts since the producer was created, or its statistics were reset. `bytes` counts bodies and properties; `commits`
    those that hold messages of this producer, and perhaps of others."""

    messages: int = 0
    commits: int = 0
    bytes: int = 0
    duplicates: int = 0  # calls whose transaction was in the log already, and messages whose number was
    outstanding: int = 0  # asynchronous and one-way sends that are not complete now
    one_way: int = 0  # one-way sends whose messages are in the table
    deleted: int = 0  # one-way sends whose messages are not, and will not be
    flow: FlowStatistics = NOT_SLOWED

    def counted(self, messages: int, commits: int, size: int, duplicates: int) -> ProducerStatistics:
        """With what one more call has sent."""
        return replace(
            self,
            messages=self.messages + messages,
            commits=self.commits + commits,
            bytes=self.bytes + size,
            duplicates=self.duplicates + duplicates,
        )


@dataclass(frozen=True)
class SendReport:
    """The result of `send_many`. `duplicate`: the transaction was in the log already, and nothing was sent. `duplicates`: messages
    that were not sent because the table has their numbers."""

    messages: int
    commits: int
    sequences: Mapping[int, Ranges] = field(default_factory=dict)
    duplicate: bool = False
    duplicates: int = 0

    def with_next(self, other: SendReport) -> SendReport:
        """The report of both."""
        sequences = {member: self.sequences.get(member, EMPTY) | ranges for member, ranges in other.sequences.items()}
        return SendReport(
            self.messages + other.messages,
            self.commits + other.commits,
            {**self.sequences, **sequences},
            duplicates=self.duplicates + other.duplicates,
        )


@dataclass(eq=False)
class AsynchronousSend:
    """One message of one producer, which `outgoing.producer` names. `complete` takes its part or its error, and calls the
    application's listener. `check` raises when the producer is closed. `waits`: for room. `decided` takes the error, or None, before
    the send counts as sent."""

    shared: SharedSender
    outgoing: OutgoingMessages
    bytes: int
    complete: Callable[[Part | Exception], object]
    check: Callable[[], object]
    waits: bool = True
    decided: Callable[[Exception | None], object] | None = None
    outcome: Part | Exception | None = None


class AsynchronousSender:
    """The queue of a context, and the thread that sends it. Thread-safe."""

    def __init__(self, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES, linger_s: float = 0) -> None:
        self.max_messages, self.max_bytes, self._linger_s = max_messages, max_bytes, linger_s
        self.failures = 0  # of listeners
        self._thread: threading.Thread | None = None
        self._abandoned = False
        self._reset()
        abandon_in_child(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._work, self._room, self._changed = (threading.Condition(self._lock) for _ in range(3))
        self._queue: deque[AsynchronousSend] = deque()
        self._oldest_s = 0.0  # when the queue was empty last
        self.waiting_calls = 0  # for room, or until sends are sent or complete
        self._taken: list[AsynchronousSend] = []
        self._sent: deque[AsynchronousSend] = deque()
        self._outstanding: Counter[str] = Counter()  # producer -> sends that are not complete
        self._unsent: Counter[str] = Counter()
        self._messages = self._bytes = 0  # of all that are outstanding
        self._closed = False

    # -- the application's threads --------------------------------------------------------------------------------
    def submit(self, send: AsynchronousSend) -> None:
        """Waits while too much is outstanding. Raises ClosedError, and ForkedProcessError in a forked child."""
        with self._lock:
            while send.waits and self._is_full(send.bytes) and not self.in_listener:
                send.check()
                with self._waiting_call():
                    self._room.wait()
            send.check()
            if self._abandoned:
                raise ForkedProcessError()
            if self._closed:
                raise ClosedError("this context is closed: connect again")
            if self._thread is None or not self._thread.is_alive():  # an interrupt may have left it without a start
                self._thread = threading.Thread(target=self._run, name="jmsq-asynchronous-sends", daemon=True)
                self._thread.start()
            try:
                if not self._queue:
                    self._oldest_s = time.monotonic()
                self._queue.append(send)
                self._outstanding[send.outgoing.producer] += 1
                self._unsent[send.outgoing.producer] += 1
                self._messages += 1
                self._bytes += send.bytes
                if len(self._queue) == 1 or self._is_batch:
                    self._work.notify()
            except BaseException:
                self._count_again()
                raise

    def _count_again(self) -> None:
        unsent = [*self._queue, *self._taken]
        outstanding = [*unsent, *self._sent]
        self._unsent = Counter(send.outgoing.producer for send in unsent)
        self._outstanding = Counter(send.outgoing.producer for send in outstanding)
        self._messages, self._bytes = len(outstanding), sum(send.bytes for send in outstanding)
        self._work.notify()

    def outstanding(self, producer: str) -> int:
        return self._outstanding[producer]

    def wait_until_sent(self, producer: str) -> None:
        """Then the producer may send in another way, and its messages stay in order."""
        if not self._unsent[producer]:
            return
        if self.in_listener:
            while self._unsent[producer]:
                self._send_batch()
            return
        self._wait_for(lambda: not self._unsent[producer])

    def wait_until_complete(self, producer: str) -> None:
        with self._lock:
            self._room.notify_all()  # a send that waits for room finds its producer closed
        self._wait_for(lambda: not self._outstanding[producer])

    def _wait_for(self, is_over: Callable[[], bool]) -> None:
        with self._lock, self._waiting_call():
            self._changed.wait_for(is_over)

    @contextmanager
    def _waiting_call(self) -> Iterator[None]:
        """What is queued goes at once. With the lock."""
        self.waiting_calls += 1
        try:
            self._work.notify()
            yield
        finally:
            self.waiting_calls -= 1

    def refuse_in_listener(self, call: str) -> None:
        """Raises IllegalStateException: `call` waits for all listeners, also for the one that makes it."""
        if self.in_listener:
            raise IllegalStateException(
                f"{call} was called by a completion listener, whose return it waits for: call it from another thread"
            )

    def close(self) -> None:
        """Once every send is complete."""
        with self._lock, self._waiting_call():
            self._changed.wait_for(lambda: not self._messages)
            self._closed = True
            self._work.notify()
            self._room.notify_all()
        if self._thread is not None and self._thread.is_alive() and not self._abandoned:
            self._thread.join()

    def abandon(self) -> None:
        """In a forked child, where the parent's thread does not run."""
        self._reset()
        self._abandoned, self._thread = True, None

    @property
    def in_listener(self) -> bool:
        return threading.current_thread() is self._thread

    @property
    def _is_batch(self) -> bool:
        """It gains nothing by others. By half of the bytes, or coroutines would wait for room while it waits for more."""
        return len(self._queue) >= BATCH or 2 * self._bytes >= self.max_bytes

    def _is_full(self, size: int) -> bool:
        if self._closed or self._abandoned or not self._messages:
            return False
        return self._messages >= self.max_messages or self._bytes + size > self.max_bytes

    # -- the thread -----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            with self._lock:
                self._work.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                left_s = self._oldest_s + self._linger_s - time.monotonic()
                if left_s > 0:
                    self._work.wait_for(lambda: self.waiting_calls or self._is_batch, left_s)
            self._send_batch()
            while self._sent:
                self._complete(self._sent[0])

    def _send_batch(self) -> None:
        try:
            self._take()
            self._ship()
        except BaseException as error:  # noqa: BLE001 - as MemoryError: the thread of all asynchronous sends must not end
            for send in self._taken:
                send.outcome = send.outcome or _unknown(error)
        with self._lock:
            unsent = self._unsent - Counter(send.outgoing.producer for send in self._taken)
            self._sent += self._taken
            self._unsent, self._taken = unsent, []
            self._changed.notify_all()

    def _take(self) -> None:
        """Each send is in `_queue` or in `_taken`, wherever this ends."""
        with self._lock:
            while self._queue and len(self._taken) < BATCH:
                self._taken.append(self._queue[0])
                self._queue.popleft()

    def _ship(self) -> None:
        by_destination: dict[SharedSender, list[AsynchronousSend]] = {}
        for send in self._taken:
            by_destination.setdefault(send.shared, []).append(send)
        for shared, sends in by_destination.items():
            _send(shared, sends)

    def _complete(self, send: AsynchronousSend) -> None:
        assert send.outcome is not None
        try:
            send.complete(send.outcome)
        except BaseException as error:
            self.failures += 1
            log.warning("a completion listener raised; the next ones are called", exc_info=error)
        producer = send.outgoing.producer
        with self._lock:
            self._sent.popleft()
            self._outstanding[producer] -= 1
            self._messages -= 1
            self._bytes -= send.bytes
            if not self._outstanding[producer]:
                del self._outstanding[producer]
                self._changed.notify_all()
            if 2 * self._messages <= self.max_messages and 2 * self._bytes <= self.max_bytes:
                self._room.notify_all()  # at half, so that many sends follow each other, not one


def check_completion(listener: CompletionListener) -> None:
    """Raises OptionError."""
    for name in ("on_completion", "on_exception"):
        if not callable(getattr(listener, name, None)):
            raise OptionError(
                f"completion is {listener!r}, which has no method {name}: give an object with on_completion(message) and "
                "on_exception(message, error), or Completion(…, …) of two functions"
            )


def _send(shared: SharedSender, sends: list[AsynchronousSend]) -> None:
    try:
        outcomes = shared.send_all([send.outgoing for send in sends])
    except Exception as error:  # noqa: BLE001 - each listener gets it
        outcomes = [own_copy(error) for _ in sends]
    except BaseException as error:  # noqa: BLE001 - the thread of all asynchronous sends must not end
        outcomes = [_unknown(error) for _ in sends]
    for send, outcome in zip(sends, outcomes, strict=True):
        send.outcome = outcome
        if send.decided is not None:
            send.decided(outcome if isinstance(outcome, Exception) else None)


def _unknown(error: BaseException) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(
        f"an asynchronous send was interrupted by {error!r}, so its commit may be in the log"
    )
