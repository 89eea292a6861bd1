"""Requests that wait for their reply, and replies to received messages.

All requests of a context share one temporary queue, its inbox. A request carries the inbox's name as JMSReplyTo and a
correlation id of its own, and takes the reply that has this correlation id, or the request's message id as one. The inbox's
listener hands each reply to the thread that waits for it; a reply that comes after the time-out is dropped, and so is a
second one. A reply goes to the JMSReplyTo of its request.

Features: C15 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_jms.client.messages.message import ExceptionListener, Message, MessageListener
from spark_jms.client.receiving.consumer import Consumer
from spark_jms.client.sending.producer import Producer
from spark_jms.errors import (
    ClosedError,
    ConsumerClosedException,
    IllegalStateException,
    InvalidDestinationError,
    OptionError,
    RequestTimeoutError,
)

OpenInbox = Callable[[MessageListener, ExceptionListener], Consumer]
_EARLY_KEPT = 100
_PRODUCERS_KEPT = 256


@dataclass
class ReplyWait:
    """For one reply. Another thread may interrupt it: the request then raises RequestTimeoutError at once."""

    done: threading.Event = field(default_factory=threading.Event)
    reply: Message | None = None
    error: Exception | None = None

    def interrupt(self) -> None:
        self.error = self.error or RequestTimeoutError(
            "the request was interrupted: a reply that comes later is dropped"
        )
        self.done.set()


class Requestor:
    """Sends requests. Thread-safe. `open_inbox` creates the temporary queue and its consumer, with the first request and after a
    failure; `discard_inbox` removes them when the consumer has failed."""

    def __init__(
        self,
        open_inbox: OpenInbox,
        discard_inbox: Callable[[Consumer], None],
        open_producer: Callable[[str], Producer],
    ) -> None:
        self._open_inbox, self._discard_inbox, self._open_producer = open_inbox, discard_inbox, open_producer
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._inbox: Consumer | None = None
        self._inbox_failed = self._closed = False
        self._producers: dict[str, Producer] = {}
        self._waiting: dict[str, ReplyWait] = {}  # by correlation id, and by message id once that is known
        self._early: OrderedDict[str, Message] = OrderedDict()  # replies that name a message id we do not know yet

    def request(
        self,
        destination: str,
        arguments: Mapping[str, Any],
        timeout_s: float | None,
        waiting: ReplyWait | None = None,
    ) -> Message:
        """The reply, acknowledged. Raises RequestTimeoutError, and what sending raises."""
        if arguments.get("reply_to") is not None:
            raise OptionError("request() names its own temporary queue as reply_to: leave it out, or use a producer")
        correlation = arguments.get("correlation_id") or uuid.uuid4().hex
        waiting = ReplyWait() if waiting is None else waiting
        producer, inbox = self._producer(destination), None
        while inbox is None:
            inbox = self._entered(correlation, waiting)
        known = [correlation]
        try:
            headers = {"reply_to": inbox, "correlation_id": correlation}
            sent = producer.send(**{**arguments, **headers})
            with self._lock:
                self._waiting[sent.message_id] = waiting
                known.append(sent.message_id)
                early = self._early.pop(sent.message_id, None)
            if early is not None:
                self._arrived(early)
            if not waiting.done.wait(timeout_s):
                raise RequestTimeoutError(
                    f"no reply to message {sent.message_id} of {destination} arrived within {timeout_s} s: the message stays "
                    "there, and a reply that comes later is dropped"
                )
        finally:
            with self._lock:
                for key in known:
                    self._waiting.pop(key, None)
        if waiting.reply is None:
            raise waiting.error or ClosedError()
        return waiting.reply

    def close(self) -> None:
        """Requests that still wait get ClosedError."""
        with self._lock:
            self._closed = True
            self._fail(ClosedError("this context was closed while a request waited for its reply"))

    def _entered(self, correlation: str, waiting: ReplyWait) -> str | None:
        """Enter a request; from now on the end of the inbox or of the context ends it. Returns the inbox's name; None: it
        has failed meanwhile."""
        inbox = self._opened()
        with self._lock:
            if self._closed:
                raise ClosedError("this context is closed: connect again")
            if self._inbox_failed:
                return None
            if correlation in self._waiting:
                raise IllegalStateException(
                    f"a request with the correlation id {correlation!r} waits for its reply already"
                )
            self._waiting[correlation] = waiting
        return inbox.destination

    def _producer(self, destination: str) -> Producer:
        with self._opening:
            known = self._producers.get(destination)
            if known is None or known.closed:
                known = self._producers[destination] = self._open_producer(destination)
            return known

    def _opened(self) -> Consumer:
        with self._opening:
            if self._inbox is not None and self._inbox_failed:
                failed, self._inbox = self._inbox, None
                self._discard_inbox(failed)
            if self._inbox is None:
                self._inbox_failed = False
                self._inbox = self._open_inbox(self._arrived, self._failed)
            return self._inbox

    def _arrived(self, message: Message) -> None:
        with self._lock:
            waiting = self._waiting.get(message.correlation_id or "")
            if waiting is None:
                self._early[message.correlation_id or ""] = message
                while len(self._early) > _EARLY_KEPT:
                    self._early.popitem(last=False)
                return
            if waiting.reply is None:
                waiting.reply = message
                waiting.done.set()

    def _failed(self, error: Exception) -> None:
        """The inbox's exception listener. After a ConsumerClosedException the inbox delivers nothing more."""
        if isinstance(error, ConsumerClosedException):
            with self._lock:
                self._inbox_failed = True  # the next request opens another one
                self._fail(error.__cause__ if isinstance(error.__cause__, Exception) else error)

    def _fail(self, error: Exception) -> None:
        for one in self._waiting.values():
            one.error = one.error or error
            one.done.set()


class Replies:
    """Sends replies. Thread-safe. Keeps the producers of the destinations that were replied to last."""

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
