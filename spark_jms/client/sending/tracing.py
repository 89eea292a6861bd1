"""Spans of sends, receives and acknowledgements, by OpenTelemetry's conventions for messaging.

    span                kind       is one                                                    links to
    ----                ----       ------                                                    --------
    send orders         PRODUCER   call of a producer, until its messages are in the table   contexts that messages had before
    receive orders      CONSUMER   call of `receive` that returned a message                 its sender's span
    process orders      CONSUMER   call of a listener; the listener's own spans are inside   its sender's span
    acknowledge orders  CLIENT     write of acknowledgements                                 the sender of the message, if it is one

A sender's span is the trace context of its messages, unless they have one: core/messages/properties.py.

All of it is off unless the application has imported opentelemetry and set a tracer provider: nothing here imports it before, and
a call then costs a look at `sys.modules`.

Features: M5 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa

from spark_jms.client.messages.columns import Item
from spark_jms.client.messages.message import Message
from spark_jms.client.sending.asynchronous_send import CompletionListener, SendReport
from spark_jms.core.destinations.destination import is_temporary
from spark_jms.core.messages.properties import carried_context, has_context, with_context
from spark_jms.settings.environment import TRACING_VARIABLE

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanKind, TracerProvider

S = TypeVar("S")
SYSTEM = "jmsq"
_API = "opentelemetry.trace"
_OFF = ("0", "false", "no", "off")
_SHOWN_TEMPORARY = "(temporary)"
_Attributes = Mapping[str, str | int | bool]


class Tracing:
    """The spans of one tracer provider."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        from spark_jms import __version__

        self.provider = provider
        self._trace, self._carrier = trace, TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("spark_jms", __version__)

    # -- sending --------------------------------------------------------------------------------------------------
    def send(self, destination: str, message: Message | None = None) -> SendSpan:
        """Of many messages, or of one, which may have a context."""
        links = [] if message is None else self._links(message.properties)
        span = self._start("send", "send", destination, self._trace.SpanKind.PRODUCER, {}, links)
        context: dict[str, str] = {}
        self._carrier.inject(context, self._trace.set_span_in_context(span))
        return SendSpan(self, span, context)

    # -- receiving ------------------------------------------------------------------------------------------------
    def received(self, destination: str, message: Message, began_ns: int) -> None:
        attributes, links = _of_message(message), self._links_of(message)
        kind = self._trace.SpanKind.CONSUMER
        self._start("receive", "receive", destination, kind, attributes, links, began_ns).end()

    @contextmanager
    def process(self, destination: str, message: Message) -> Iterator[None]:
        kind = self._trace.SpanKind.CONSUMER
        span = self._start("process", "process", destination, kind, _of_message(message), self._links_of(message))
        with self._ended(span), self._trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    @contextmanager
    def acknowledge(self, destination: str, message: Message | None, count: int) -> Iterator[None]:
        one = _of_message(message) if message is not None and count == 1 else {"messaging.batch.message_count": count}
        links = self._links_of(message) if message is not None else []
        span = self._start("acknowledge", "settle", destination, self._trace.SpanKind.CLIENT, one, links)
        with self._ended(span):
            yield

    # -- inside ---------------------------------------------------------------------------------------------------
    def _start(
        self,
        name: str,
        operation: str,
        destination: str,
        kind: SpanKind,
        attributes: _Attributes,
        links: list[Link],
        began_ns: int | None = None,
    ) -> Span:
        temporary = {"messaging.destination.temporary": True} if is_temporary(destination) else {}
        return self._tracer.start_span(
            f"{name} {_SHOWN_TEMPORARY if temporary else destination}",
            kind=kind,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.name": name,
                "messaging.operation.type": operation,
                "messaging.destination.name": destination,
                **temporary,
                **attributes,
            },
            links=links,
            start_time=began_ns,
        )

    @contextmanager
    def _ended(self, span: Span) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.fail(span, error)
            raise
        finally:
            span.end()

    def fail(self, span: Span, error: BaseException) -> None:
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        span.record_exception(error)

    def _links_of(self, message: Message) -> list[Link]:
        return [link for one in message.unit_of_work or (message,) for link in self._links(one.properties)]

    def _links(self, properties: Mapping[str, Any]) -> list[Link]:
        """None for a context that is not valid."""
        given = carried_context(properties)
        found = self._trace.get_current_span(self._carrier.extract(given)).get_span_context() if given else None
        return [self._trace.Link(found)] if found is not None and found.is_valid else []


class SendSpan:
    """Of one call of a producer. `stamp…` give messages its context."""

    def __init__(self, tracing: Tracing, span: Span, context: Mapping[str, str]) -> None:
        self._tracing, self._span, self._context = tracing, span, context

    def stamp(self, item: Item) -> Item:
        """What cannot be a message stays as it is: the producer refuses it."""
        given = (
            item.properties if isinstance(item, Message) else item.get("properties") if isinstance(item, dict) else 0
        )
        if (given is not None and not isinstance(given, Mapping)) or has_context(given or {}):
            return item
        properties = {**(given or {}), **self._context}
        if isinstance(item, Message):
            return replace(item, properties=properties)
        return cast("Item", {**item, "properties": properties})

    def stamp_each(self, items: Iterable[Item]) -> Iterator[Item]:
        return map(self.stamp, items)

    def stamp_columns(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (with_context(batch, self._context) for batch in batches)

    def sent_one(self, message: Message) -> None:
        """It ends. `message` as sent."""
        self._span.set_attributes(_of_message(message))
        self._span.end()

    def sent_many(self, messages: int) -> None:
        """It ends."""
        self._span.set_attribute("messaging.batch.message_count", messages)
        self._span.end()

    def failed(self, error: BaseException) -> None:
        """It ends with the error."""
        self._tracing.fail(self._span, error)
        self._span.end()

    @contextmanager
    def failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.failed(error)
            raise


class _WatchedCompletion:
    def __init__(self, listener: CompletionListener, span: SendSpan) -> None:
        self._listener, self._span = listener, span

    def on_completion(self, message: Message, /) -> None:
        self._span.sent_one(message)
        self._listener.on_completion(message)

    def on_exception(self, message: Message, error: Exception, /) -> None:
        self._span.failed(error)
        self._listener.on_exception(message, error)


def _of_message(message: Message) -> _Attributes:
    """Of one message; of a unit of work, how many it has."""
    found: dict[str, str | int | bool] = {}
    if message.unit_of_work:
        found["messaging.batch.message_count"] = len(message.unit_of_work)
    if message.message_id:
        found["messaging.message.id"] = message.message_id
    if message.member >= 0:  # it is known
        found["messaging.destination.partition.id"] = str(message.member)
    if message.correlation_id:
        found["messaging.message.conversation_id"] = message.correlation_id
    return found


# -- where the client asks ---------------------------------------------------------------------------------------------

_known: Tracing | None = None
_refused: object = None  # a provider that gives no spans


def active_tracing() -> Tracing | None:
    """None while tracing is off."""
    global _known, _refused
    if (api := sys.modules.get(_API)) is None or not hasattr(api, "get_tracer_provider"):
        return None
    provider = api.get_tracer_provider()
    known = _known
    if known is not None and known.provider is provider:
        return known
    if provider is _refused:
        return None
    gives_none = isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider))
    if gives_none or os.environ.get(TRACING_VARIABLE, "").strip().lower() in _OFF:
        _refused = provider
        return None
    _known = Tracing(provider)
    return _known


def begun_send(destination: str, message: Message) -> tuple[Message, SendSpan | None]:
    """The message with the context of the span; None while tracing is off."""
    tracing = active_tracing()
    if tracing is None:
        return message, None
    span = tracing.send(destination, message)
    return cast("Message", span.stamp(message)), span


def failing(span: SendSpan | None) -> AbstractContextManager[None]:
    """Ends the span with an error that is raised inside."""
    return nullcontext() if span is None else span.failing()


def watched(listener: CompletionListener, span: SendSpan | None) -> CompletionListener:
    """A listener that ends the span of its send first."""
    return listener if span is None else _WatchedCompletion(listener, span)


def traced_sends(
    destination: str, messages: S, stamp: Callable[[SendSpan, S], S], send: Callable[[S], SendReport]
) -> SendReport:
    """One call that sends many messages."""
    tracing = active_tracing()
    if tracing is None:
        return send(messages)
    span = tracing.send(destination)
    with span.failing():
        report = send(stamp(span, messages))
    span.sent_many(report.messages)
    return report


def traced_receive(destination: str, receive: Callable[[], Message | None]) -> Message | None:
    """A receive without a message has no span."""
    tracing = active_tracing()
    if tracing is None:
        return receive()
    began_ns = time.time_ns()
    message = receive()
    if message is not None:
        tracing.received(destination, message, began_ns)
    return message


def traced_process(destination: str, message: Message) -> AbstractContextManager[None]:
    tracing = active_tracing()
    return nullcontext() if tracing is None else tracing.process(destination, message)


def traced_acknowledge(destination: str, message: Message | None, count: int) -> AbstractContextManager[None]:
    """Of `count` messages; `message` is the one whose acknowledgement the application asked for."""
    tracing = active_tracing() if count else None
    return nullcontext() if tracing is None else tracing.acknowledge(destination, message, count)
