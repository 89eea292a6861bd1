"""The one-way sends of one producer: which go, how many since the last that waited, and what became of them.

A one-way send is an asynchronous send whose CompletionListener is this object. The rules are in spark_jms/core/one_way.py.

Features: T11 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading

from spark_jms.client.encoding import check_properties
from spark_jms.client.listener import ExceptionListener
from spark_jms.client.message import Message
from spark_jms.core.destination import Destination
from spark_jms.core.one_way import TRANSITIONS, OneWayCase, OneWayEvent, OneWayRule, OneWayState, two_way_reason
from spark_jms.core.unit_of_work import UNIT
from spark_jms.errors import ClosedError, DestinationPausedError, ServerDownError
from spark_jms.store.errors import ResourceAllocationException

log = logging.getLogger("spark_jms")
_DELETES = (ResourceAllocationException, DestinationPausedError, ServerDownError)


class OneWaySends:
    """Thread-safe."""

    def __init__(self, rule: OneWayRule, exception_listener: ExceptionListener | None) -> None:
        self._rule, self._exception_listener = rule, exception_listener
        self._lock = threading.Lock()
        self._state = OneWayState.OPEN
        self._since = self._lost = 0  # one-way sends since the last two-way one, and those of them that were not sent
        self._failure: Exception | None = None
        self._untold = False
        self.sent = self.deleted = 0

    def takes(self, message: Message, destination: Destination) -> bool:
        """Whether this send is one-way. Then it counts towards the window. Raises MessageFormatError for bad properties."""
        check_properties(message.properties)
        unit = message.properties.get(UNIT)
        case = OneWayCase(self._rule, destination, message.delivery_mode, message.group_id, unit)
        with self._lock:
            if self._since + 1 >= self._rule.factory.one_way_send_window_size or self._state is not OneWayState.OPEN:
                return False
            if two_way_reason(case) is not None:
                return False
            self._since += 1
            return True

    def waited(self) -> None:
        """A two-way send has succeeded, and all before it are decided."""
        with self._lock:
            self._since = self._lost = 0
            self._state = TRANSITIONS[self._state, OneWayEvent.WAITED]

    def decided(self, error: Exception | None) -> None:
        """A one-way send is; None: the message is in the table. A two-way send that waited for it finds the failure."""
        event = OneWayEvent.DELETED if isinstance(error, _DELETES) else OneWayEvent.FAILED
        with self._lock:
            if error is None:
                self.sent += 1
                return
            self.deleted += 1
            self._lost += 1
            before, self._state = self._state, TRANSITIONS[self._state, event]
            if self._state is OneWayState.CLOSED and before is not OneWayState.CLOSED:
                self._failure, self._untold = error, self._exception_listener is None

    def on_completion(self, message: Message, /) -> None:
        """`decided` has counted it."""

    def on_exception(self, message: Message, error: Exception, /) -> None:
        if error is self._failure:
            log.warning("%s: a one-way send failed, and its producer is closed", message.destination, exc_info=error)
            if self._exception_listener is not None:
                self._exception_listener(error)

    def reset_statistics(self) -> None:
        with self._lock:
            self.sent = self.deleted = 0

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        """Raises ClosedError after a failure."""
        if self._failure is not None:
            self._untold = False
            raise ClosedError(
                f"this producer was closed because a one-way send failed, and {self._lost:,} one-way message(s) since its last "
                f"two-way send were not sent: create a new one. The error was: {self._failure}"
            ) from self._failure

    def raise_untold(self) -> None:
        """For `close`: a failure that neither an exception listener nor a send has told."""
        if self._untold:
            self.check()
