"""What an application receives with: the consumer, and the thread of its listener.

    acknowledge   a message is acknowledged
    -----------   -------------------------
    client        by message.acknowledge() of any message: it acknowledges everything that this consumer has delivered so far,
                  before and after that message, as Jakarta Messaging has it (the default)
    individual    by message.acknowledge(), alone: what most applications mean
    auto          when the application asks for the next message or ends in an orderly way, or the listener returns: one store
                  write a message
    dups-ok       as auto, but written at most a second or `prefetch` messages later: many times faster, and these
                  messages come again, flagged, when the process dies

"auto" and "dups-ok" are for one receiving thread: its next receive acknowledges what it received before, and so does an orderly
end: `close()`, or a `with` block (of the consumer, its context, its pool) that no exception leaves. An exception that leaves the
block gives the message back: it comes again, flagged. So does a process that ends without one of these.

A consumer claims `prefetch` messages at a time, and no other consumer gets them until it acknowledges or releases them.
A slow consumer should keep `prefetch` small (1 at the least); a fast one gains by a larger value. One that acknowledges N
messages at a time gains by 2 * N + 1: `statistics().advised_maximum`. No consumer waits for
another one of its member.

Features: C7, C8, C9, C11, T9, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import inspect
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Protocol, get_args

from spark_jms.claims.records.subscriptions import Sharing
from spark_jms.client.messages.message import (
    Closable,
    ExceptionListener,
    Message,
    MessageListener,
    OwningProcess,
    seconds_of,
)
from spark_jms.client.receiving.delivery import ConsumerStatistics
from spark_jms.client.receiving.last_user import ReceivingTask
from spark_jms.client.receiving.receiver import AUTOMATIC, AcknowledgeMode, Receiver
from spark_jms.client.sending.tracing import traced_process, traced_receive
from spark_jms.errors import (
    CommitConflictError,
    ConsumerClosedException,
    IllegalStateException,
    MemberUnavailableError,
    OptionError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.settings.connection_factory import FACTORY_KEYS
from spark_jms.settings.refused import refusal_of
from spark_jms.settings.types import DurationLike
from spark_jms.store import StoreBusyError

log = logging.getLogger("spark_jms")
StartingPosition = str | datetime | Mapping[str, Any]
MODES: tuple[AcknowledgeMode, ...] = get_args(AcknowledgeMode)
_TRANSIENT = (  # a retry may succeed
    MemberUnavailableError,
    CommitConflictError,
    StoreBusyError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
_IDLE_S = 1.0


@dataclass(frozen=True)
class GivenConsumer:
    """What `Context.consumer` is given, but for the acknowledge mode."""

    destination: str
    selector: str | None
    subscription: str | None
    durable: bool | None
    sharing: Sharing
    starting_position: StartingPosition | None
    prefetch: int | None
    members: int | Iterable[int] | None
    pin: bool | None
    listener: MessageListener | None
    exception_listener: ExceptionListener | None
    fail_on_data_loss: bool


class Consumer(Closable):
    """Made by `Context.consumer`. Thread-safe, but several threads see the messages in no particular order.

    Any method may raise ConsumerClosedException: the consumer was fenced, other consumers get its unacknowledged
    messages, and it can only be closed. Closing releases at once what is not acknowledged, and it is delivered again, flagged
    if it was delivered. In the modes "auto" and "dups-ok" it first acknowledges what was delivered, unless an exception
    leaves the `with` block.

    `name` is how `jmsq claims` and the store call it, `mode` its acknowledge mode.
    """

    def __init__(
        self, receiver: Receiver, listener: ListenerThread | None, on_close: Callable[[Consumer], None]
    ) -> None:
        self.destination, self.name = receiver.destination, receiver.name
        self.mode, self.prefetch = receiver.mode, receiver.prefetch
        self.outlived = receiver.outlived  # its queue or durable subscription keeps messages while it has no consumer
        self._receiver, self._listener, self._on_close = receiver, listener, on_close
        self._process = OwningProcess()

    # -- receiving ------------------------------------------------------------------------------------------------
    def receive(self, timeout: DurationLike | None = None) -> Message | None:
        """The next message, or None if none arrives within `timeout` (None waits for ever, 0 does not wait) or the
        consumer is closed meanwhile."""
        if self._listener is not None:
            raise IllegalStateException(
                "this consumer delivers its messages to a listener: create another consumer to receive"
            )
        timeout_s = _seconds("timeout", timeout)
        return traced_receive(self.destination, lambda: self._receiver.next_message(timeout_s))

    def messages(self, idle_timeout: DurationLike | None = None) -> Iterator[Message]:
        """Messages as they arrive, until none has arrived for `idle_timeout` (None waits for ever) or the consumer is
        closed. `for message in consumer` is the same without a time-out."""
        return self._messages(_seconds("idle_timeout", idle_timeout))

    def _messages(self, idle_s: float | None) -> Iterator[Message]:
        while not self._receiver.closing:
            message = self.receive(idle_s)
            if message is None:
                return
            yield message

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def recover(self) -> None:
        """Release everything delivered and not acknowledged: it is delivered again, flagged and counted, to this or another
        consumer, after the destination's redelivery delay."""
        self._receiver.recover()

    # -- the end --------------------------------------------------------------------------------------------------
    def statistics(self) -> ConsumerStatistics:
        """Counts of messages and bytes. Raises IllegalStateException in a forked child."""
        self._process.check()
        return self._receiver.statistics(self._listener.failures if self._listener else 0)

    def reset_statistics(self) -> None:
        """Count from 0 again; the high mark begins with what is pending now."""
        self._process.check()
        if self._listener is not None:
            self._listener.failures = 0
        self._receiver.reset_statistics()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, by the application or by an end that the consumer met."""
        return self._receiver.closing

    def close(self) -> None:
        """Release everything at once; in the modes "auto" and "dups-ok", first acknowledge what was received. It does that also while
        an exception is on its way (in a `finally`): call `recover()` before, or use a `with` block.

        Raises the error that prevents the acknowledgement (the messages are delivered again), and the one that ended the listener,
        unless an exception listener got it. In these modes a listener that closes its own consumer has its message acknowledged
        when it returns."""
        self._end(orderly=True)

    def _end(self, *, orderly: bool) -> None:
        if self._process.is_parent:
            return
        self._receiver.stop()
        if self._listener is not None and self._listener.is_current and self.mode in AUTOMATIC:
            self._listener.then(partial(self._release, orderly=True))
            return
        self._end_now(orderly=orderly)

    def _end_now(self, *, orderly: bool) -> None:
        self._receiver.stop()
        if self._listener is not None:
            self._listener.join()
        self._release(orderly=orderly)
        if self._listener is not None:
            self._listener.raise_unreported()

    def _release(self, *, orderly: bool) -> None:
        try:
            self._receiver.close(orderly=orderly)
        finally:
            self._on_close(self)

    def __repr__(self) -> str:
        if self._process.is_parent:
            return f"<Consumer {self.name} of {self.destination}: of the parent process>"
        now = self.statistics()
        return (
            f"<Consumer {self.name} of {self.destination}: {'closed, ' if self.closed else ''}{self.mode}, "
            f"{now.received:,} received, {now.unacknowledged:,} unacknowledged>"
        )


def end_with_context(consumer: Consumer, *, orderly: bool) -> None:
    """Before its context ends. A listener that closes the context gets its message again: nothing could acknowledge it later."""
    handling = consumer._listener is not None and consumer._listener.is_current
    consumer._end_now(orderly=orderly and not handling)


def put_to_rest(consumer: Consumer, *, orderly: bool) -> bool:
    """Release everything, as its end does, and keep no member from other consumers until the next `receive`. False: that is
    not possible, and the consumer can only be closed."""
    return consumer._receiver.rest(orderly=orderly)


def is_usable(consumer: Consumer) -> bool:
    """Whether an idle consumer can be used again."""
    return consumer._receiver.usable


def lost(consumer: Consumer, *, asks: bool) -> Exception | None:
    """Why it can only be closed, also if no call has met that yet; None: it is well, or its exception listener learns of it. With
    `asks`, asks its store."""
    if consumer._listener is not None and consumer._listener.reports:
        return None
    return consumer._receiver.lost(asks=asks)


class InterruptibleReceive:
    """One `receive`, which another thread may interrupt: then it returns None unless it has a message already. The message is the
    application's once `shows` says so: until then no end and no later receive acknowledges it."""

    def __init__(self, consumer: Consumer, timeout: DurationLike | None) -> None:
        self._receiver, self._timeout_s = consumer._receiver, _seconds("timeout", timeout)
        self._interrupted = threading.Event()

    def __call__(self) -> Message | None:
        receiver = self._receiver
        return traced_receive(receiver.destination, lambda: receiver.next_message(self._timeout_s, self._interrupted))

    def shows(self, message: Message, task: ReceivingTask | None) -> bool:
        """False: its consumer has released it meanwhile. `task`: in which the application has it, if that is known."""
        if task is not None:
            self._receiver.last_user.received_by(task)
        return self._receiver.show(message)

    def interrupt(self) -> None:
        self._interrupted.set()
        self._receiver.wake()


# -- the listener ------------------------------------------------------------------------------------------------------
class MessageSource(Protocol):
    """What the listener's thread needs of a consumer."""

    destination: str
    name: str

    def next_message(self, timeout_s: float | None) -> Message | None: ...

    def release(self, message: Message) -> None: ...

    def acknowledge_delivered(self) -> None: ...


class ListenerThread:
    """Takes messages from a consumer and calls the application's listener with each, one at a time, in a thread of its own.

    the listener returns     auto, dups-ok: the consumer acknowledges the message, also when it is being closed, by another thread or
                             by the listener itself
    the listener raises      the consumer releases the message and delivers it again, flagged, before the later ones; the
                             exception listener gets the error; the thread pauses for 10 ms, longer after each failure in a
                             row, at most 1 s, and continues. SystemExit ends it as an error of the consumer does
    the consumer is closed   the exception listener gets a ConsumerClosedException with the reason as its cause, and the
    by an error              thread ends. Without an exception listener, `close` raises it
    """

    def __init__(
        self, consumer: MessageSource, listener: MessageListener, exception_listener: ExceptionListener | None
    ) -> None:
        self._consumer, self._listener, self._exception_listener = consumer, listener, exception_listener
        self._unreported: Exception | None = None
        self._stop = threading.Event()
        self._then: Callable[[], None] | None = None
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name=f"jmsq-listener {consumer.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait until the listener has returned from the current message. The listener itself may call this."""
        self._stop.set()
        if not self.is_current:
            self._thread.join()

    @property
    def reports(self) -> bool:
        """An exception listener gets its errors."""
        return self._exception_listener is not None

    @property
    def is_current(self) -> bool:
        """The listener itself asks."""
        return threading.current_thread() is self._thread

    def then(self, close: Callable[[], None]) -> None:
        """End after the current message, and call `close` then."""
        self._stop.set()
        self._then = close

    def raise_unreported(self) -> None:
        """Raise the error that ended the thread, unless an exception listener got it."""
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            self._deliver()
        except BaseException as error:  # noqa: BLE001 - the thread ends here: the exception listener or close() reports it
            self._ended_by(error)
        finally:
            if self._then is not None:
                self._end_with(self._then)

    def _deliver(self) -> None:
        failures_in_a_row = 0
        while not self._stop.is_set():
            failures_in_a_row = 0 if self._deliver_one() else failures_in_a_row + 1
            if failures_in_a_row:
                self._stop.wait(min(1.0, 0.01 * 2 ** min(failures_in_a_row, 8)))

    def _end_with(self, close: Callable[[], None]) -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - as above
            self._ended_by(error)

    def _ended_by(self, error: BaseException) -> None:
        reason = str(error) if isinstance(error, Exception) else repr(error)
        closed = ConsumerClosedException(
            f"consumer {self._consumer.name} of {self._consumer.destination} has ended: {reason}"
        )
        closed.__cause__ = error
        self._unreported = closed
        if self._exception_listener is not None:
            self._exception_listener(closed)
            self._unreported = None

    def _deliver_one(self) -> bool:
        """Deliver a message if one is available; False after a failure that a retry may cure."""
        try:
            message = self._consumer.next_message(_IDLE_S)
        except _TRANSIENT as error:
            self._report(error, "receiving failed and will be retried")
            return False
        except Exception:
            if self._stop.is_set():  # the consumer is being closed, and delivers nothing more
                return True
            raise
        if message is None:
            return True
        try:
            with traced_process(self._consumer.destination, message):
                self._listener(message)
        except Exception as error:  # noqa: BLE001 - any error of the application: the message is delivered again
            self.failures += 1
            self._report(error, f"the listener raised; message {message.message_id} will be delivered again")
            self._release(message)
            return False
        except BaseException:  # SystemExit: the handler has not ended well
            self._release(message)
            raise
        self._consumer.acknowledge_delivered()
        return True

    def _release(self, message: Message) -> None:
        with suppress(*_TRANSIENT):  # the message returns to the queue with the next write
            self._consumer.release(message)

    def _report(self, error: Exception, what: str) -> None:
        if self._exception_listener is not None:
            self._exception_listener(error)
        else:
            log.warning("%s: %s", self._consumer.destination, what, exc_info=error)


# -- what `Context.consumer` is given ----------------------------------------------------------------------------------
def check_batch(transaction_batch: object, listener: object) -> None:
    """Raises OptionError."""
    if transaction_batch is None:
        return
    if type(transaction_batch) is not int or transaction_batch < 1:
        raise OptionError(f"transaction_batch is {transaction_batch!r}, but must be a whole number, 1 or more")
    if listener is None:
        raise OptionError("transaction_batch needs a listener: without one, call commit() of the session")


def check_resource(name: object, connect: object) -> None:
    """Raises OptionError."""
    if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.isprintable():
        raise OptionError(f"the name of a last resource is {name!r}, but must be text of 1 to 100 characters")
    if not callable(connect):
        raise OptionError(f"connect is {connect!r}, but must be a function that gives a connection")


def check_mode(acknowledge: object) -> None:
    """Raises OptionError."""
    if acknowledge not in MODES:
        reason = refusal_of(acknowledge) if isinstance(acknowledge, str) else None
        because = f": that mode is refused, because {reason}" if reason else ""
        raise OptionError(f"acknowledge is {acknowledge!r}, but must be one of {', '.join(MODES)}{because}")


def check_prefetch(prefetch: object) -> None:
    """Raises OptionError."""
    maximum = FACTORY_KEYS["messagesMaximum"].type
    if prefetch is not None and not maximum.fits(prefetch):
        raise OptionError(f"prefetch is {prefetch!r}, but must be {maximum.allowed}")


def check_listeners(listener: object, exception_listener: object) -> None:
    """Raises OptionError."""
    check_listener("listener", listener)
    check_listener("exception_listener", exception_listener)
    if exception_listener is not None and listener is None:
        raise OptionError("an exception_listener needs a listener: without one, receive() raises the errors")


def check_listener(name: str, given: object) -> None:
    """Raises OptionError."""
    if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
        raise OptionError(f"{name} is {given!r}, but must be a function of one argument that is not async")


def starting_position_option(given: StartingPosition | None) -> str | None:
    """As the option startingPosition has it. Raises OptionError."""
    if given is None or isinstance(given, str):
        return given
    try:
        return json.dumps({"time": given.isoformat()} if isinstance(given, datetime) else given)
    except (TypeError, ValueError):
        raise OptionError(
            f'starting_position is {given!r}, but must be "latest", "earliest", a datetime, {{"sequence": 17}} or '
            '{"sequence": {0: 17, 2: 5}} by member'
        ) from None


def named_members(log: DeltaLog, members: int | Iterable[int] | None) -> frozenset[int] | None:
    """None: all. Raises OptionError."""
    if members is None:
        return None
    named = frozenset([members] if isinstance(members, int) else members)
    there = log.snapshot.destination.member_ids
    if not named or not all(type(m) is int and m in there for m in named):
        shown = f"{there[0]} to {there[-1]}" if isinstance(there, range) else ", ".join(map(str, there))
        raise OptionError(f"members is {members!r}, but {log.name} has the members {shown}: name some of them")
    return named


def _seconds(name: str, duration: DurationLike | None) -> float | None:
    return None if duration is None else seconds_of(name, duration)
