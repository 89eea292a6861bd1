"""A listener: the consumer calls it with its messages, one at a time, in a thread of its own.

the listener returns     auto, dups-ok: the consumer acknowledges the message, also when it is being closed, by another thread or
                         by the listener itself
the listener raises      the consumer releases the message and delivers it again, flagged, before the later ones; the
                         exception listener gets the error; the thread pauses for 10 ms, longer after each failure in a
                         row, at most 1 s, and continues. SystemExit ends it as an error of the consumer does
the consumer is closed   the exception listener gets a ConsumerClosedException with the reason as its cause, and the
by an error              thread ends. Without an exception listener, `close` raises it

Features: C11 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from spark_jms.client.message import Message
from spark_jms.client.tracing import traced_process
from spark_jms.errors import (
    CommitConflictError,
    ConsumerClosedException,
    MemberUnavailableError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.store import StoreBusyError

log = logging.getLogger("spark_jms")
MessageListener = Callable[[Message], object]
ExceptionListener = Callable[[Exception], object]
_TRANSIENT = (  # a retry may succeed
    MemberUnavailableError,
    CommitConflictError,
    StoreBusyError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
_IDLE_S = 1.0


class MessageSource(Protocol):
    """What the listener's thread needs of a consumer."""

    destination: str
    name: str

    def next_message(self, timeout_s: float | None) -> Message | None: ...

    def release(self, message: Message) -> None: ...

    def acknowledge_delivered(self) -> None: ...


class ListenerThread:
    """Takes messages from a consumer and calls the application's listener with each."""

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
        with suppress(*_TRANSIENT):  # the message returns to the queue as soon as the record is handed over
            self._consumer.release(message)

    def _report(self, error: Exception, what: str) -> None:
        if self._exception_listener is not None:
            self._exception_listener(error)
        else:
            log.warning("%s: %s", self._consumer.destination, what, exc_info=error)
