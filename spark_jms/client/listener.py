"""A listener: the consumer's messages, one by one, in a thread of its own (C11).

the listener returns     auto, dups-ok: the message is acknowledged
the listener raises      the message goes back and comes again, flagged, before those behind it; the exception
                         listener is told; the thread goes on after a pause that grows from 10 ms to 1 s
the consumer is lost     the exception listener gets a ConsumerClosedException, its cause is what happened; the
                         thread ends. Without an exception listener, `close` raises it
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_jms.client.message import Message
from spark_jms.errors import CommitConflictError, ConsumerClosedException, MemberUnavailableError
from spark_jms.store import StoreBusyError

if TYPE_CHECKING:
    from spark_jms.client.consumer import Consumer

log = logging.getLogger("spark_jms")
MessageListener = Callable[[Message], object]
ExceptionListener = Callable[[Exception], object]
_PASSING = (MemberUnavailableError, CommitConflictError, StoreBusyError)  # may go well the next time
_IDLE_S = 1.0


class Listening:
    def __init__(self, consumer: Consumer, listener: MessageListener, told: ExceptionListener | None) -> None:
        self._consumer, self._listener, self._told = consumer, listener, told
        self._untold: Exception | None = None
        self._stop = threading.Event()
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name=f"jmsq-listener {consumer.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for the message in hand; the listener itself may close its consumer."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def raise_untold(self) -> None:
        error, self._untold = self._untold, None
        if error is not None:
            raise error

    def _run(self) -> None:
        try:
            in_a_row = 0
            while not self._stop.is_set():
                in_a_row = 0 if self._one() else in_a_row + 1
                if in_a_row:
                    self._stop.wait(min(1.0, 0.01 * 2 ** min(in_a_row, 8)))
        except Exception as error:  # noqa: BLE001 - this is the thread's end: the exception listener or close() tells
            if self._stop.is_set():
                return
            who = f"consumer {self._consumer.name} of {self._consumer.destination}"
            lost = ConsumerClosedException(f"{who} has ended: {error}")
            lost.__cause__ = error
            self._untold = lost
            if self._told is not None:
                self._told(lost)
                self._untold = None

    def _one(self) -> bool:
        """Deliver a message if there is one; False when that went wrong in a way that can go well the next time."""
        try:
            message = self._consumer.next_message(_IDLE_S)
        except _PASSING as error:
            self._tell(error, "that will be tried again")
            return False
        if message is None:
            return True
        try:
            self._listener(message)
        except Exception as error:  # noqa: BLE001 - whatever the application raises: the message comes again
            self.failures += 1
            self._tell(error, f"the listener raised; message {message.message_id} will be delivered again")
            with suppress(*_PASSING):  # then it goes back as soon as the record is handed over
                self._consumer.release(message)
            return False
        self._consumer.settle_listened()
        return True

    def _tell(self, error: Exception, what: str) -> None:
        if self._told is not None:
            self._told(error)
        else:
            log.warning("%s: %s (%r)", self._consumer.destination, what, error)
