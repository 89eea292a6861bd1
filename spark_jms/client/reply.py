"""Replies to received messages, each to its JMSReplyTo.

Features: C15 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from spark_jms.client.message import Message
from spark_jms.client.producer import Producer
from spark_jms.errors import IllegalStateException, InvalidDestinationError

_PRODUCERS_KEPT = 256


class Replies:
    """Thread-safe. Keeps the producers of the destinations that were replied to last."""

    def __init__(self, open_producer: Callable[[str], Producer]) -> None:
        self._open_producer = open_producer
        self._lock = threading.Lock()
        self._producers: OrderedDict[str, Producer] = OrderedDict()

    def send(self, request: Message, arguments: Mapping[str, Any]) -> Message:
        """The reply as sent. Its correlation id is the request's, or the request's message id, unless given."""
        if not request.reply_to:
            raise IllegalStateException(
                f"message {request.message_id} has no JMSReplyTo, so its sender expects no reply"
            )
        correlation = arguments.get("correlation_id") or request.correlation_id or request.message_id
        try:
            return self._producer(request.reply_to).send(**{**arguments, "correlation_id": correlation})
        except InvalidDestinationError:
            with self._lock:
                self._producers.pop(request.reply_to, None)
            raise

    def _producer(self, name: str) -> Producer:
        with self._lock:
            found = self._producers.pop(name, None)
        made = found or self._open_producer(name)
        with self._lock:
            self._producers[name] = made
            while len(self._producers) > _PRODUCERS_KEPT:
                self._producers.popitem(last=False)
        return made
