"""Asynchronous sends: completions, their order, failures (T11)."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jms import apply, connect
from spark_jms.admin.destinations import pause, resume
from spark_jms.client import Completion, ConnectionFactory, Context, Message
from spark_jms.client.sending import shared_send
from spark_jms.core.destinations.pause import INSERTION, PRODUCTION
from spark_jms.errors import (
    ClosedError,
    CommitOutcomeUnknownError,
    InsertionPausedError,
    MessageFormatError,
    MessageSizeError,
    OptionError,
    ProductionPausedError,
    QuotaExceededError,
)
from spark_jms.log.sending import send
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import asynchronous_sends_of, domain_of
from tests.harness.messages.completions import (
    LIMIT_S,
    Hold,
    Outcomes,
    browse,
    in_thread,
    numbers,
    opened_domain,
    send_texts,
    texts,
)


@pytest.fixture
def context() -> Iterator[Context]:
    with opened_domain() as opened:
        yield opened


# -- completions -------------------------------------------------------------------------------------------------------
def test_completion_gets_the_message_as_sent(context: Context) -> None:
    """T11: with the id, the member and the sequence that it has in the table."""
    outcomes = Outcomes()
    with context.producer("spread") as producer:
        template = Message(text="0", properties={"n": 0}, priority=7)
        assert producer.send(template, completion=outcomes) is None  # type: ignore[func-returns-value]
        for n in range(1, 20):
            producer.send(text=str(n), properties={"n": n}, completion=outcomes)
    assert outcomes.texts() == numbers(0, 20)
    there = {message.message_id: message for message in browse(context, "spread")}
    for message in outcomes.sent:
        found = there[message.message_id]
        assert (found.text, found.properties, found.priority) == (message.text, message.properties, message.priority)
        assert (found.member, found.sequence) == (message.member, message.sequence)
        assert (found.timestamp_ms, found.delivery_time_ms) == (message.timestamp_ms, message.delivery_time_ms)
        assert message.destination == "spread"


def test_completion_of_two_functions(context: Context) -> None:
    """T11"""
    sent: list[Message] = []
    failed: list[object] = []
    with context.producer("small") as producer:
        listener = Completion(sent.append, lambda message, error: failed.append((message.text, type(error))))
        producer.send(text="a", completion=listener)
        producer.send(text="x" * 11, completion=listener)
    assert [message.text for message in sent] == ["a"]
    assert failed == [("x" * 11, MessageSizeError)]


def test_completion_is_called_after_the_commit(context: Context) -> None:
    """T11: the listener finds its message in the table."""
    found: list[bool] = []
    failed: list[object] = []

    def arrived(message: Message) -> None:
        found.append(message.message_id in {m.message_id for m in browse(context)})

    with context.producer("orders") as producer:
        for n in range(10):
            producer.send(text=str(n), completion=Completion(arrived, lambda _, error: failed.append(error)))
    assert (found, failed) == ([True] * 10, [])


def test_completions_of_all_producers_come_in_one_thread(context: Context) -> None:
    """T11: in the order of each producer's sends, whatever threads send."""
    outcomes = [Outcomes() for _ in range(6)]
    to = ["orders", "spread", "units"] * 2
    producers = [context.producer(destination) for destination in to]
    threads = [
        in_thread(lambda p=p, o=o: send_texts(p, o, 0, 150))  # type: ignore[misc]
        for p, o in zip(producers, outcomes, strict=True)
    ]
    for thread in threads:
        thread.join(LIMIT_S)
    for producer in producers:
        producer.close()
    assert [each.texts() for each in outcomes] == [numbers(0, 150)] * 6
    assert len(set().union(*(each.threads for each in outcomes))) == 1
    assert threading.current_thread() not in outcomes[0].threads
    for each in outcomes:
        for member in range(4):
            sequences = [message.sequence for message in each.sent if message.member == member]
            assert sequences == sorted(sequences)


def test_outstanding_sends_share_a_commit(context: Context) -> None:
    """T11, C5: what is queued while a commit is under way goes with the next one."""
    outcomes = Outcomes()
    version = domain_of(context).log("orders").refresh().version
    with context.producer("orders") as producer:
        hold = Hold(context)
        send_texts(producer, outcomes, 0, 1)
        hold.wait_until_held()
        send_texts(producer, outcomes, 1, 501)
        assert producer.statistics().outstanding == 501
        assert outcomes.sent == []
        hold.open()
    assert outcomes.texts() == numbers(0, 501)
    assert domain_of(context).log("orders").refresh().version == version + 2
    statistics = producer.statistics()
    assert (statistics.messages, statistics.commits, statistics.outstanding) == (501, 2, 0)
    assert statistics.bytes == sum(len(text) for text in numbers(0, 501))


def test_every_kind_of_message_may_be_sent_asynchronously(context: Context) -> None:
    """T11: units of order, delays, persistent and not."""
    outcomes = Outcomes()
    with context.producer("spread") as producer:
        for n in range(12):
            unit, mode = f"unit {n % 3}", ("PERSISTENT", "NON_PERSISTENT")[n % 2]
            producer.send(text=str(n), group_id=unit, delivery_mode=mode, completion=outcomes)  # type: ignore[call-overload]
        producer.send(text="later", delay=timedelta(hours=1), completion=outcomes)
    with context.producer("units") as producer:
        producer.send(text="by default", completion=outcomes)
    assert len(outcomes.sent) == 14
    there = browse(context, "spread")
    assert {m.delivery_mode for m in there} == {1, 2}
    for unit in {m.group_id for m in there} - {None}:
        of_unit = [m for m in there if m.group_id == unit]
        assert len({m.member for m in of_unit}) == 1
        assert [int(m.text or "") for m in sorted(of_unit, key=lambda m: m.sequence)] == list(
            range(int(unit[-1]), 12, 3)
        )  # type: ignore[index]
    later = outcomes.sent[12]
    assert later.delivery_time_ms == later.timestamp_ms + 3_600_000
    assert outcomes.sent[13].group_id == browse(context, "units")[0].group_id is not None


# -- errors ------------------------------------------------------------------------------------------------------------
def test_refused_message_fails_alone(context: Context) -> None:
    """T11: its listener gets the error and the message, which has no id; the others are sent, in order."""
    outcomes = Outcomes()
    with context.producer("small") as producer:
        for n in range(9):
            producer.send(text=str(n) * (20 if n % 4 == 1 else 1), completion=outcomes)
    assert outcomes.texts() == ["0", "2", "3", "4", "6", "7", "8"]
    assert [(text, type(error)) for text, error in outcomes.failed] == [
        ("1" * 20, MessageSizeError),
        ("5" * 20, MessageSizeError),
    ]
    assert [message.text for message in browse(context, "small")] == outcomes.texts()
    assert producer.statistics().messages == 7


def test_errors_of_arguments_are_raised_by_send(context: Context) -> None:
    """T11: the listener is not called."""
    outcomes = Outcomes()
    producer = context.producer("orders")
    with pytest.raises(MessageFormatError, match="did you mean text"):
        producer.send(txt="a", completion=outcomes)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="no method on_completion"):
        producer.send(text="a", completion=print)  # type: ignore[call-overload]
    producer.close()
    with pytest.raises(ClosedError):
        producer.send(text="a", completion=outcomes)
    assert (outcomes.sent, outcomes.failed) == ([], [])


def test_pause_fails_each_message_that_it_meets(context: Context) -> None:
    """T11, T14: production at once, insertion after the producer's send time-out; after the resume the same producer sends."""
    outcomes = Outcomes()
    producer = context.producer("orders", send_timeout=0)
    pause(domain_of(context), "orders", [PRODUCTION])
    send_texts(producer, outcomes, 0, 3)
    wait_until(lambda: len(outcomes.failed) == 3)
    resume(domain_of(context), "orders", [PRODUCTION])
    pause(domain_of(context), "orders", [INSERTION])
    send_texts(producer, outcomes, 3, 6)
    wait_until(lambda: len(outcomes.failed) == 6)
    resume(domain_of(context), "orders", [INSERTION])
    send_texts(producer, outcomes, 6, 9)
    producer.close()
    assert [(text, type(error)) for text, error in outcomes.failed] == [
        *((text, ProductionPausedError) for text in numbers(0, 3)),
        *((text, InsertionPausedError) for text in numbers(3, 6)),
    ]
    assert outcomes.texts() == numbers(6, 9) == [message.text for message in browse(context)]


def test_insertion_that_resumes_between_two_messages_keeps_their_order(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T11, T14: the ones behind the message that met the pause wait for it."""
    outcomes, producer = Outcomes(), context.producer("orders", send_timeout=LIMIT_S)
    original, met, queued = send.send, 0, threading.Event()

    def resuming(*arguments: Any, **more: Any) -> Any:
        nonlocal met
        try:
            return original(*arguments, **more)
        except InsertionPausedError:
            met += 1
            if met == 2:  # all together, then the first alone
                resume(domain_of(context), "orders", [INSERTION])
            raise

    monkeypatch.setattr(shared_send, "send", resuming)
    producer.send(text="first", completion=Completion(lambda _: queued.wait(LIMIT_S), lambda *_: None))
    wait_until(lambda: texts(context) == ["first"])
    pause(domain_of(context), "orders", [INSERTION])
    send_texts(producer, outcomes, 0, 5)
    queued.set()
    producer.close()
    assert (outcomes.texts(), outcomes.failed) == (numbers(0, 5), [])
    assert texts(context) == ["first", *numbers(0, 5)]
    assert met >= 2


def test_room_that_comes_between_two_messages_keeps_their_order(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T11, T1: the ones behind the message that found no room wait for it."""
    outcomes, producer = Outcomes(), context.producer("orders", send_timeout=LIMIT_S)
    original, met, queued = send.send, 0, threading.Event()

    def full(*arguments: Any, **more: Any) -> Any:
        nonlocal met
        met += 1
        if met <= 2:  # all together, then the first alone
            raise QuotaExceededError()
        return original(*arguments, **more)

    producer.send(text="first", completion=Completion(lambda _: queued.wait(LIMIT_S), lambda *_: None))
    wait_until(lambda: texts(context) == ["first"])
    monkeypatch.setattr(shared_send, "send", full)
    send_texts(producer, outcomes, 0, 5)
    queued.set()
    producer.close()
    assert (outcomes.texts(), outcomes.failed) == (numbers(0, 5), [])
    assert texts(context) == ["first", *numbers(0, 5)]


def test_quota_makes_messages_wait_in_order() -> None:
    """T11, T1: those that find no room within the send time-out fail, the others follow each other when there is room."""
    module = {
        "quotas": {"small": {"messagesMaximum": 3}},
        "destinations": {"orders": {"kind": "queue", "quota": "small"}},
    }
    with memory_domain(other="queue") as root:
        apply(root, module)
        with connect(root, housekeeping=False) as context:
            outcomes = Outcomes()
            with context.producer("orders", send_timeout=0) as producer:
                send_texts(producer, outcomes, 0, 5)
            assert outcomes.texts() == numbers(0, 3)
            assert [(text, type(error)) for text, error in outcomes.failed] == [
                (text, QuotaExceededError) for text in numbers(3, 5)
            ]
            assert all("orders" in str(error) for _, error in outcomes.failed), "also of the one behind the refused one"
            producer = context.producer("orders", send_timeout=LIMIT_S)
            send_texts(producer, outcomes, 5, 9)
            with context.consumer("orders", acknowledge="auto") as consumer:
                got = [consumer.receive(timeout=LIMIT_S) for _ in range(7)]
            producer.close()
            assert [message.text for message in got if message] == outcomes.texts() == [*numbers(0, 3), *numbers(5, 9)]


@pytest.mark.parametrize("why", ["no room", "paused"])
def test_full_destination_holds_back_no_other(why: str) -> None:
    """T11, T1, T14: the context's sends to a free one complete meanwhile, also more than may be outstanding, and a listener of
    theirs may send to it and wait; those to the full one follow each other when there is room."""
    module = {
        "quotas": {"small": {"messagesMaximum": 1}},
        "destinations": {"full": {"kind": "queue", "quota": "small"}},
    }
    with memory_domain(free="queue") as root:
        apply(root, module)
        with connect(root, housekeeping=False) as context:
            asynchronous_sends_of(context).max_messages = 4
            waiting, outcomes = Outcomes(), Outcomes()
            full, free = context.producer("full", send_timeout=LIMIT_S), context.producer("free")
            full.send(text="first")
            if why == "paused":
                apply(root, {"destinations": {"full": {"kind": "queue"}}})
                pause(domain_of(context), "full", [INSERTION])
            send_texts(full, waiting, 0, 3)
            send_texts(free, outcomes, 0, 20)
            free.close()
            assert outcomes.texts() == numbers(0, 20)
            assert (waiting.sent, waiting.failed, full.statistics().outstanding) == ([], [], 3)
            if why == "paused":
                resume(domain_of(context), "full", [INSERTION])
                full.close()
            else:
                with context.consumer("full", acknowledge="auto") as consumer:
                    got = [consumer.receive(timeout=LIMIT_S) for _ in range(4)]
                    assert [message.text for message in got if message] == ["first", *numbers(0, 3)]
            full.close()
            assert (waiting.texts(), waiting.failed) == (numbers(0, 3), [])
            assert outcomes.threads == waiting.threads


def test_listener_waits_for_held_sends_of_its_producer() -> None:
    """T11: it runs in the thread of the asynchronous sends; its blocking send comes behind what another thread holds."""
    with opened_domain() as context:
        held, producer = Outcomes(), context.producer("orders", send_timeout=LIMIT_S)
        pause(domain_of(context), "orders", [INSERTION])
        send_texts(producer, held, 0, 3)
        sent: list[Message] = []

        def answer(_: Message) -> None:
            resume(domain_of(context), "orders", [INSERTION])
            sent.append(producer.send(text="blocking"))

        context.producer("spread").send(text="go", completion=Completion(answer, lambda *_: None))
        wait_until(lambda: bool(sent))
        producer.close()
        assert (held.texts(), held.failed) == (numbers(0, 3), [])
        assert texts(context) == [*numbers(0, 3), "blocking"]


def test_storage_failure_reaches_each_listener(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T11"""
    outcomes = Outcomes()
    producer = context.producer("orders")

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(domain_of(context).log("orders").storage, "open_output", fail)
        send_texts(producer, outcomes, 0, 3)
        wait_until(lambda: len(outcomes.failed) == 3)
    send_texts(producer, outcomes, 3, 5)
    producer.close()
    assert all("no space left" in str(error) for _, error in outcomes.failed)
    assert outcomes.texts() == numbers(3, 5) == [message.text for message in browse(context)]


def test_error_after_the_commit_reaches_no_other_message(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T11: what follows a send, such as housekeeping, fails: the listener has its message all the same."""
    outcomes, producer = Outcomes(), context.producer("orders")

    def fail(*_: object) -> None:
        raise OSError("housekeeping failed")

    monkeypatch.setattr(producer, "_sent", fail)
    send_texts(producer, outcomes, 0, 3)
    producer.close()
    assert (outcomes.texts(), outcomes.failed) == (numbers(0, 3), [])


def test_interrupt_of_the_thread_that_sends_reaches_the_listeners(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T11: else its sends, and closing, would wait for ever."""
    outcomes, producer = Outcomes(), context.producer("orders")
    with monkeypatch.context() as broken:
        broken.setattr(shared_send.SharedSender, "try_all", lambda *_: sys.exit(1))
        send_texts(producer, outcomes, 0, 3)
        wait_until(lambda: producer.statistics().outstanding == 0)
    send_texts(producer, outcomes, 3, 5)
    producer.close()
    assert [(text, type(error)) for text, error in outcomes.failed] == [
        (text, CommitOutcomeUnknownError) for text in numbers(0, 3)
    ]
    assert outcomes.texts() == numbers(3, 5)


def test_listener_that_raises_does_not_stop_the_others(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """T11: logged and counted; also SystemExit, which would end the thread."""
    outcomes, errors = Outcomes(), iter([ValueError("bad listener"), SystemExit(1)])

    def fail(_: Message) -> None:
        raise next(errors)

    with caplog.at_level(logging.WARNING, "spark_jms"), context.producer("orders") as producer:
        for n in range(2):
            producer.send(text=f"failing {n}", completion=Completion(fail, lambda *_: None))
        send_texts(producer, outcomes, 0, 3)
    assert outcomes.texts() == numbers(0, 3)
    assert context.statistics().listener_failures == 2
    assert "bad listener" in caplog.text


# -- order with other sends --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["send", "send_many", "send_table", "send_unit_of_work"])
def test_blocking_send_comes_after_the_outstanding_ones(context: Context, way: str) -> None:
    """T11: it waits until those of its producer are in the table."""
    outcomes, producer = Outcomes(), context.producer("orders")
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send(text="blocking"),
        "send_many": lambda: producer.send_many([{"text": "blocking"}] * 101),
        "send_table": lambda: producer.send_table(pa.table({"text": ["blocking"]})),
        "send_unit_of_work": lambda: producer.send_unit_of_work([{"text": "blocking"}]),
    }
    hold = Hold(context)
    send_texts(producer, outcomes, 0, 1)
    hold.wait_until_held()
    send_texts(producer, outcomes, 1, 5)
    blocking = in_thread(calls[way])
    wait_until(lambda: asynchronous_sends_of(context).waiting_calls)
    hold.open()
    blocking.join(LIMIT_S)
    assert [message.text for message in browse(context)][:6] == [*numbers(0, 5), "blocking"]


def test_listener_may_send(context: Context) -> None:
    """T11: blocking and asynchronously; its blocking sends come after what its producer has queued."""
    outcomes, producer = Outcomes(), context.producer("orders")
    hold = Hold(context)

    def answer(message: Message) -> None:
        producer.send(text="from the listener", completion=outcomes)
        outcomes.sent.append(producer.send(text="blocking"))

    producer.send(text="question", completion=Completion(answer, lambda *_: None))
    hold.wait_until_held()
    send_texts(producer, outcomes, 0, 3)
    hold.open()
    wait_until(lambda: len(outcomes.sent) == 5)
    order = ["question", *numbers(0, 3), "from the listener", "blocking"]
    assert [message.text for message in browse(context)] == order
    assert outcomes.texts() == ["blocking", *numbers(0, 3), "from the listener"]


def test_sends_that_wait_for_others_share_a_commit(tmp_path: Path) -> None:
    """T11: `asynchronousSendLinger` of the connection factory; a blocking send ends the wait, and stays behind them."""
    apply(str(tmp_path), {"destinations": {"orders": {"kind": "queue"}}})
    factory = ConnectionFactory(asynchronous_send_linger_ms=60_000)
    with connect(str(tmp_path), housekeeping=False, connection_factory=factory) as context:
        log, outcomes = domain_of(context).log("orders"), Outcomes()
        before = log.refresh().version
        with context.producer("orders") as producer:
            for n in range(5):
                producer.send(text=str(n), completion=outcomes)
            assert log.refresh().version == before
            producer.send(text="5")
        assert log.refresh().version == before + 2
        assert texts(context) == numbers(0, 6)
