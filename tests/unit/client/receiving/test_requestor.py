"""Requests whose inbox fails, or whose context closes, at any moment (C15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_jms.client.messages.message import ExceptionListener, Message, MessageListener
from spark_jms.client.receiving.consumer import Consumer
from spark_jms.client.receiving.request import Requestor
from spark_jms.errors import ClosedError, ConsumerClosedException, IllegalStateException, RequestTimeoutError


class Inbox:
    """A consumer of a temporary queue."""

    def __init__(self, name: str, deliver: MessageListener, fail: ExceptionListener) -> None:
        self.destination, self.deliver, self.fail = name, deliver, fail
        self.discarded = False


class Bench:
    """A requestor on fakes. `on_open` and `on_send` are what happens at those moments."""

    def __init__(self) -> None:
        self.inboxes: list[Inbox] = []
        self.on_open: Callable[[Inbox], object] = lambda inbox: None
        self.on_send: Callable[[dict[str, Any]], object] = lambda message: None
        self.closed = False
        self.requestor = Requestor(self._open, self._discard, lambda destination: self)  # type: ignore[arg-type,return-value]

    def _open(self, listener: MessageListener, exception_listener: ExceptionListener) -> Consumer:
        self.inboxes.append(Inbox(f"inbox {len(self.inboxes)}", listener, exception_listener))
        self.on_open(self.inboxes[-1])
        return self.inboxes[-1]  # type: ignore[return-value]

    def _discard(self, inbox: Any) -> None:
        inbox.discarded = True

    def send(self, **message: Any) -> Message:
        self.on_send(message)
        return Message(text=message["text"], message_id="ID:1")

    def request(self, timeout_s: float | None = 10.0, **more: Any) -> Message:
        return self.requestor.request("work", {"text": "x", **more}, timeout_s)


def dead() -> ConsumerClosedException:
    error = ConsumerClosedException("the listener has ended")
    error.__cause__ = OSError("no such file")
    return error


def test_reply_before_the_end_of_the_send_counts() -> None:
    """C15: by correlation id, and by the message id that the requestor does not know yet."""
    for key in ("correlation_id", None):
        bench = Bench()
        bench.on_send = lambda message, bench=bench, key=key: bench.inboxes[-1].deliver(  # type: ignore[misc]
            Message(text="early", correlation_id=message[key] if key else "ID:1")
        )
        assert bench.request().text == "early"


def test_inbox_that_fails_at_once_is_replaced() -> None:
    """C15: before the request is entered; no request waits for an inbox that delivers nothing more."""
    bench = Bench()

    def fail_first(inbox: Inbox) -> None:
        if len(bench.inboxes) == 1:
            inbox.fail(dead())

    bench.on_open = fail_first
    bench.on_send = lambda message: bench.inboxes[-1].deliver(
        Message(text=message["reply_to"], correlation_id=message["correlation_id"])
    )
    assert bench.request().text == "inbox 1"
    assert [inbox.discarded for inbox in bench.inboxes] == [True, False]


def test_inbox_that_fails_later_ends_the_requests_that_wait() -> None:
    """C15: with the reason; a passing error of its listener does not."""
    bench = Bench()

    def fail(message: dict[str, Any]) -> None:
        bench.inboxes[-1].fail(RuntimeError("will be retried"))
        bench.inboxes[-1].fail(dead())

    bench.on_send = fail
    with pytest.raises(OSError, match="no such file"):
        bench.request(None)


def test_close_ends_requests_at_any_moment() -> None:
    """C15: one that sends just now, and a later one."""
    bench = Bench()
    bench.on_send = lambda message: bench.requestor.close()
    with pytest.raises(ClosedError, match="while a request waited"):
        bench.request(None)
    with pytest.raises(ClosedError):
        bench.request(None)


def test_ended_requests_leave_nothing_behind() -> None:
    """C15: time-outs, refusals and replies that nothing waits for are forgotten."""
    bench = Bench()
    with pytest.raises(RequestTimeoutError):
        bench.request(0)
    bench.on_send = lambda message: bench.request(correlation_id="twice")
    with pytest.raises(IllegalStateException, match="waits for its reply already"):
        bench.request(correlation_id="twice")
    assert bench.requestor._waiting == {}
    for n in range(1000):
        bench.inboxes[-1].deliver(Message(correlation_id=f"late {n}"))
    assert len(bench.requestor._early) <= 100
