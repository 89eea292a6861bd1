"""What an application receives with.

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
messages at a time gains by 2 * N + 1: `statistics().advised_maximum`. Several consumers of
one member take turns with its record, at most about 0.1 s each; a consumer that has the record to itself never waits.

Features: C7, C8, C9, C11, T9, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import get_args

from spark_jms.client.closing import ClosedAtTheEnd, OwningProcess
from spark_jms.client.delivery import ConsumerStatistics
from spark_jms.client.durations import seconds_of
from spark_jms.client.listener import ListenerThread
from spark_jms.client.message import Message
from spark_jms.client.receiver import AUTOMATIC, AcknowledgeMode, Receiver
from spark_jms.client.tracing import traced_receive
from spark_jms.errors import IllegalStateException
from spark_jms.settings.duration import DurationLike

MODES: tuple[AcknowledgeMode, ...] = get_args(AcknowledgeMode)


class Consumer(ClosedAtTheEnd):
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


class InterruptibleReceive:
    """One `receive`, which another thread may interrupt: then it returns None unless it has a message already. The message is the
    application's once `shows` says so: until then no end and no later receive acknowledges it."""

    def __init__(self, consumer: Consumer, timeout: DurationLike | None) -> None:
        self._receiver, self._timeout_s = consumer._receiver, _seconds("timeout", timeout)
        self._interrupted = threading.Event()

    def __call__(self) -> Message | None:
        receiver = self._receiver
        return traced_receive(receiver.destination, lambda: receiver.next_message(self._timeout_s, self._interrupted))

    def shows(self, message: Message) -> bool:
        """False: its consumer has released it meanwhile."""
        return self._receiver.show(message)

    def interrupt(self) -> None:
        self._interrupted.set()
        self._receiver.wake()


def _seconds(name: str, duration: DurationLike | None) -> float | None:
    return None if duration is None else seconds_of(name, duration)
