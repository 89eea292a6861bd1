"""C8, C11: an orderly end acknowledges in the modes auto and dups-ok; what the application did not finish comes again, flagged."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

import spark_jms
from spark_jms.client import Consumer, Context, Message
from spark_jms.errors import ConsumerClosedException, MemberUnavailableError
from spark_jms.store import StoreError
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import acknowledgement_writer_of, members_of, receiver_of, subscriber_of
from tests.harness.messages.shorthands import send_texts, texts

Automatic = Literal["auto", "dups-ok"]
LIMITED = {"kind": "queue", "redelivery_limit": 1, "error_destination": "errors"}
UNITS = {"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"}
LIMIT_S = 30.0

both = pytest.mark.parametrize("mode", ["auto", "dups-ok"])


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(orders="queue", errors="queue", prices="topic", limited=LIMITED, units=UNITS) as where:
        yield where


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with connected(root) as opened:
        send_texts(opened, *"abc")
        yield opened


def connected(root: str) -> Context:
    return spark_jms.connect(root, housekeeping=False)


def received(consumer: Consumer) -> Message:
    message = consumer.receive(timeout=LIMIT_S)
    assert message is not None
    return message


def left(context: Context, destination: str = "orders") -> list[tuple[str | None, int]]:
    """What waits: text and the number of deliveries so far."""
    return [(m.text, m.delivery_count) for m in context.browser(destination)]


# -- an orderly end ----------------------------------------------------------------------------------------------------
def leave_consumer(root: str, mode: Automatic) -> None:
    with connected(root) as context, context.consumer("orders", acknowledge=mode) as consumer:
        received(consumer)


def close_consumer(root: str, mode: Automatic) -> None:
    with connected(root) as context:
        consumer = context.consumer("orders", acknowledge=mode)
        received(consumer)
        consumer.close()


def leave_context(root: str, mode: Automatic) -> None:
    with connected(root) as context:
        received(context.consumer("orders", acknowledge=mode))


def close_context(root: str, mode: Automatic) -> None:
    context = connected(root)
    received(context.consumer("orders", acknowledge=mode))
    context.close()


def return_from_block(root: str, mode: Automatic) -> str | None:
    with connected(root) as context, context.consumer("orders", acknowledge=mode) as consumer:
        return received(consumer).text


def break_loop(root: str, mode: Automatic) -> None:
    with connected(root) as context, context.consumer("orders", acknowledge=mode) as consumer:
        for _ in consumer:
            break


def close_iterator(root: str, mode: Automatic) -> None:
    with connected(root) as context, context.consumer("orders", acknowledge=mode) as consumer:
        messages = consumer.messages()
        next(messages)
        messages.close()  # type: ignore[attr-defined]


def handle_error_inside(root: str, mode: Automatic) -> None:
    with connected(root) as own, own.consumer("orders", acknowledge=mode) as consumer, contextlib.suppress(ValueError):
        received(consumer)
        raise ValueError


def use_pool(root: str, mode: Automatic) -> None:
    with spark_jms.connect_pool(root, housekeeping=False) as pool, pool.consumer("orders", acknowledge=mode) as one:
        received(one)


ENDS = [
    leave_consumer,
    close_consumer,
    leave_context,
    close_context,
    return_from_block,
    break_loop,
    close_iterator,
    handle_error_inside,
    use_pool,
]


@both
@pytest.mark.parametrize("end", ENDS)
def test_orderly_end_acknowledges_what_was_received(
    root: str, context: Context, mode: Automatic, end: Callable[[str, Automatic], None]
) -> None:
    """C8: each run of a program that handles one message handles the next one; what it prefetched is as it was."""
    end(root, mode)
    assert left(context) == [("b", 1), ("c", 1)]
    end(root, mode)
    end(root, mode)
    assert left(context) == []


@both
def test_orderly_end_acknowledges_on_each_store(client_root: str, mode: Automatic) -> None:
    """C8"""
    with spark_jms.connect(client_root, housekeeping=False) as context:
        send_texts(context, *"abc")
        for expected in "abc":
            with context.consumer("orders", acknowledge=mode) as consumer:
                assert texts(consumer, 1) == [expected]
        assert left(context) == []


@both
def test_handled_message_does_not_go_to_the_error_destination(context: Context, mode: Automatic) -> None:
    """C8: with a redelivery limit of 1."""
    send_texts(context, *"abcd", to="limited")
    for expected in "abcd":
        with context.consumer("limited", acknowledge=mode) as consumer:
            assert texts(consumer, 1) == [expected]
    assert left(context, "limited") == left(context, "errors") == []


def test_unit_of_work_is_acknowledged_whole(context: Context) -> None:
    """C8, T12"""
    context.producer("units").send_unit_of_work([{"text": "a"}, {"text": "b"}])
    with context.consumer("units", acknowledge="auto") as consumer:
        assert len(received(consumer).unit_of_work) == 2
    assert left(context, "units") == []


@both
def test_rejected_and_released_messages_stay_so(context: Context, mode: Automatic) -> None:
    """C8: an orderly end acknowledges what the application has received and not returned."""
    with context.consumer("orders", acknowledge=mode) as consumer:
        assert texts(consumer, 1) == ["a"]
        received(consumer).reject(delay="1 h")
    assert left(context) == [("b", 2), ("c", 1)]
    with context.consumer("orders", acknowledge=mode) as consumer:
        assert texts(consumer, 1) == ["c"]
        consumer.recover()
    assert left(context) == [("b", 2), ("c", 2)]


@pytest.mark.parametrize("mode", ["client", "individual"])
def test_modes_of_the_application_acknowledge_nothing_by_themselves(context: Context, mode: Any) -> None:
    """C8"""
    with context.consumer("orders", acknowledge=mode) as consumer:
        assert texts(consumer, 2) == ["a", "b"]
    assert left(context) == [("a", 2), ("b", 2), ("c", 1)]


def test_transacted_session_rolls_back(context: Context) -> None:
    """T16: an orderly end without a commit too."""
    with context.transacted_session() as session, session.consumer("orders") as consumer:
        assert texts(consumer, 1) == ["a"]
    assert left(context) == [("a", 2), ("b", 1), ("c", 1)]


# -- an exception ------------------------------------------------------------------------------------------------------
def raise_in_consumer(root: str, mode: Automatic, error: BaseException) -> None:
    with connected(root) as context, context.consumer("orders", acknowledge=mode) as consumer:
        received(consumer)
        raise error


def raise_in_context(root: str, mode: Automatic, error: BaseException) -> None:
    """The context closes the consumer."""
    with connected(root) as context:
        received(context.consumer("orders", acknowledge=mode))
        raise error


def raise_in_pool(root: str, mode: Automatic, error: BaseException) -> None:
    with spark_jms.connect_pool(root, housekeeping=False) as pool, pool.consumer("orders", acknowledge=mode) as one:
        received(one)
        raise error


def raise_in_block_of_pool(root: str, mode: Automatic, error: BaseException) -> None:
    """The pool closes a consumer that is in use."""
    with spark_jms.connect_pool(root, housekeeping=False) as pool:
        used = pool.consumer("orders", acknowledge=mode)
        received(used.__enter__())
        raise error


RAISING: list[tuple[Callable[[str, Automatic, BaseException], None], type[BaseException]]] = [
    (raise_in_consumer, ValueError),
    (raise_in_consumer, SystemExit),
    (raise_in_consumer, KeyboardInterrupt),
    (raise_in_consumer, GeneratorExit),
    (raise_in_context, SystemExit),
    (raise_in_pool, KeyboardInterrupt),
    (raise_in_pool, GeneratorExit),
    (raise_in_block_of_pool, ValueError),
]


@both
@pytest.mark.parametrize(("fail", "error"), RAISING)
def test_exception_that_leaves_the_block_gives_the_message_back(
    root: str,
    context: Context,
    mode: Automatic,
    fail: Callable[[str, Automatic, BaseException], None],
    error: type[BaseException],
) -> None:
    """C8: it comes again, flagged; what was received before it is acknowledged."""
    with pytest.raises(error):
        fail(root, mode, error())
    assert left(context) == [("a", 2), ("b", 1), ("c", 1)]

    def second(consumer: Consumer) -> None:
        assert texts(consumer, 2) == ["a", "b"]
        raise ValueError

    with pytest.raises(ValueError, match="^$"), context.consumer("orders", acknowledge=mode) as consumer:
        second(consumer)
    assert left(context) == [("b", 2), ("c", 1)]


def test_generator_that_is_closed_gives_its_message_back(root: str, context: Context) -> None:
    """C8: Python ends a generator in the same way when the loop over it breaks, raises, or forgets it."""

    def work() -> Iterator[Message]:
        with connected(root) as own, own.consumer("orders", acknowledge="auto") as consumer:
            yield from consumer

    for message in work():
        assert message.text == "a"
        break
    assert left(context) == [("a", 2), ("b", 1), ("c", 1)]
    running = work()
    assert next(running).redelivered
    with contextlib.closing(running):  # type: ignore[type-var]
        assert next(running).text == "b"
    assert left(context) == [("b", 2), ("c", 1)]


def test_block_of_a_pool_that_is_forgotten_gives_its_message_back(root: str, context: Context) -> None:
    """C8, T17: what is collected acknowledges nothing."""
    with spark_jms.connect_pool(root, housekeeping=False) as pool:
        used = pool.consumer("orders", acknowledge="auto")
        received(used.__enter__())
        del used
        assert pool.statistics().in_use == 0
        assert left(context) == [("a", 2), ("b", 1), ("c", 1)]


def test_explicit_close_is_orderly_and_recover_before_it_is_not(context: Context) -> None:
    """C8: `close()` does not look for an exception."""

    def work(*, recovers: bool) -> None:
        consumer = context.consumer("orders", acknowledge="auto")
        try:
            received(consumer)
            raise ValueError
        finally:
            if recovers:
                consumer.recover()
            consumer.close()

    with pytest.raises(ValueError, match="^$"):
        work(recovers=False)
    assert left(context) == [("b", 1), ("c", 1)]
    with pytest.raises(ValueError, match="^$"):
        work(recovers=True)
    assert left(context) == [("b", 2), ("c", 1)]


@both
def test_consumer_that_is_not_closed_acknowledges_nothing(context: Context, mode: Automatic) -> None:
    """C8: a process that ends so, or dies."""
    consumer = context.consumer("orders", acknowledge=mode)
    received(consumer)
    end_session(consumer)
    with context.consumer("orders", acknowledge=mode) as other:
        again = received(other)
    assert (again.text, again.redelivered) == ("a", True)
    with pytest.raises(ConsumerClosedException, match=NOT_ACKNOWLEDGED):
        consumer.close()


# -- what fails at the end ---------------------------------------------------------------------------------------------
def end_session(consumer: Consumer) -> None:
    members = members_of(subscriber_of(consumer))
    members.store.crash(members.session)  # type: ignore[attr-defined]


NOT_ACKNOWLEDGED = r"1 message\(s\) of orders that consumer client-\w+ received last are not acknowledged"


@both
def test_close_names_what_it_could_not_acknowledge(context: Context, mode: Automatic) -> None:
    """C8, C9: another consumer got the message, flagged, while the application had it."""
    consumer = context.consumer("orders", acknowledge=mode)
    received(consumer)
    end_session(consumer)
    with context.consumer("orders", acknowledge="individual") as other:
        assert received(other).redelivered
        with pytest.raises(ConsumerClosedException, match=NOT_ACKNOWLEDGED):
            consumer.close()
    consumer.close()  # it is closed
    assert left(context)[0] == ("a", 3)


def test_close_names_a_failure_once(context: Context) -> None:
    """C9, C11: an application that was told that its consumer is fenced closes it without an error."""
    consumer = context.consumer("orders", acknowledge="auto")
    received(consumer)
    end_session(consumer)
    with context.consumer("orders", acknowledge="client") as other:
        received(other)
        with pytest.raises(ConsumerClosedException):
            consumer.receive(timeout=0)
        consumer.close()


def test_close_names_a_failure_of_the_background(context: Context) -> None:
    """C9, C11: the background thread has seen that the consumer is fenced, the application has not."""
    consumer = context.consumer("orders", acknowledge="auto")
    received(consumer)
    end_session(consumer)
    with context.consumer("orders", acknowledge="client") as other:
        received(other)
        wait_until(lambda: receiver_of(consumer).failure is not None)
        with pytest.raises(ConsumerClosedException, match=NOT_ACKNOWLEDGED):
            consumer.close()


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(
    "error", [MemberUnavailableError("an administrator has it open"), StoreError("the store is lost")]
)
def test_message_that_the_store_does_not_take_comes_again(
    root: str, context: Context, monkeypatch: pytest.MonkeyPatch, error: Exception, *, pooled: bool
) -> None:
    """C8, T17: the block's end raises the error."""

    def refuse(timeout_s: float) -> None:
        raise error

    with spark_jms.connect_pool(root, housekeeping=False) as pool:
        block: Any = (pool if pooled else pool.context()).consumer("orders", acknowledge="auto")
        consumer = block.__enter__()
        received(consumer)
        monkeypatch.setattr(acknowledgement_writer_of(consumer), "write", refuse)
        with pytest.raises(type(error), match=str(error)):
            block.__exit__(None, None, None)
        assert consumer.closed
        with context.consumer("orders", acknowledge="auto") as other:
            again = received(other)
    assert (again.text, again.redelivered) == ("a", True)


def test_error_of_the_application_is_not_hidden(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C8: nothing was to be acknowledged."""

    def refuse(timeout_s: float) -> None:
        raise MemberUnavailableError("an administrator has it open")

    def work() -> None:
        with context.consumer("orders", acknowledge="auto") as consumer:
            received(consumer)
            monkeypatch.setattr(acknowledgement_writer_of(consumer), "write", refuse)
            raise ValueError

    with pytest.raises(ValueError, match="^$"):
        work()


def test_receive_that_fails_leaves_its_message(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C8: no later receive acknowledges a message that none has returned."""
    with context.consumer("orders", acknowledge="auto") as consumer:
        received(consumer)
        failing = [StoreError("away for a moment")]

        def look() -> None:
            receiver_of(consumer)._session_s = sys.maxsize
            raise failing.pop()

        monkeypatch.setattr(subscriber_of(consumer), "check_session", look)
        receiver_of(consumer)._session_s = 0.0
        with pytest.raises(StoreError):
            consumer.receive(timeout=0)
        assert not failing
        assert texts(consumer, 2) == ["b", "c"]


# -- listeners ---------------------------------------------------------------------------------------------------------
class Handler:
    """Waits within the listener until the test lets it begin, then for its end, with `error` if there is one."""

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error
        self.began, self.may_begin, self.may_end = threading.Event(), threading.Event(), threading.Event()
        self.then: Callable[[], object] = lambda: None
        self.texts: list[str | None] = []

    def __call__(self, message: Message) -> None:
        self.texts.append(message.text)
        self.began.set()
        assert self.may_begin.wait(LIMIT_S)
        self.then()
        assert self.may_end.wait(LIMIT_S)
        if self._error is not None:
            raise self._error


@both
def test_close_waits_for_the_handler_and_acknowledges(context: Context, mode: Automatic) -> None:
    """C8, C11: its message, and no other one."""
    handler = Handler()
    consumer = context.consumer("orders", acknowledge=mode, listener=handler)
    assert handler.began.wait(LIMIT_S)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    wait_until(lambda: consumer.closed)
    handler.may_begin.set()
    handler.may_end.set()
    closing.join()
    assert handler.texts == ["a"]
    assert left(context) == [("b", 1), ("c", 1)]


@both
@pytest.mark.parametrize("error", [None, ValueError("not handled"), SystemExit(1)])
def test_handler_that_closes_its_consumer(context: Context, mode: Automatic, error: BaseException | None) -> None:
    """C8, C11: its message is acknowledged when the handler ends well."""
    handler = Handler(error)
    told: list[Exception] = []
    consumer = context.consumer("orders", acknowledge=mode, listener=handler, exception_listener=told.append)
    handler.then = consumer.close
    handler.may_begin.set()
    handler.may_end.set()
    wait_until(lambda: context.statistics().consumers == 0)
    consumer.close()
    assert handler.texts == ["a"]
    assert left(context) == [*([("a", 2)] if error else []), ("b", 1), ("c", 1)]
    assert bool(told) == (error is not None)


def test_handler_that_closes_its_context_has_its_message_again(root: str, context: Context) -> None:
    """C8, C11: nothing is left that could acknowledge it when the handler ends."""
    handler = Handler()
    own = connected(root)
    handler.then = own.close
    handler.may_begin.set()
    handler.may_end.set()
    own.consumer("orders", acknowledge="auto", listener=handler)
    wait_until(lambda: own.closed)
    wait_until(lambda: left(context) == [("a", 2), ("b", 1), ("c", 1)])


def test_handler_that_exits_gives_its_message_back(context: Context) -> None:
    """C8, C11: `sys.exit` in a handler ends the consumer's thread, which `close` reports."""
    handler = Handler(SystemExit(1))
    handler.may_begin.set()
    handler.may_end.set()
    consumer = context.consumer("orders", acknowledge="auto", listener=handler)
    wait_until(lambda: left(context)[0] == ("a", 2))
    with pytest.raises(ConsumerClosedException, match="has ended: SystemExit"):
        consumer.close()
    assert left(context) == [("a", 2), ("b", 1), ("c", 1)]


def test_handler_ends_well_although_the_block_raises(context: Context) -> None:
    """C8, C11: whether a handler ends well does not depend on the block."""
    handler = Handler()

    def work() -> None:
        with context.consumer("orders", acknowledge="auto", listener=handler):
            assert handler.began.wait(LIMIT_S)
            handler.may_begin.set()
            handler.may_end.set()
            raise ValueError

    with pytest.raises(ValueError, match="^$"):
        work()
    assert ("a", 2) not in left(context)
