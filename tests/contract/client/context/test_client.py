"""The plain client in one application, on each store: sending, browsing, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import spark_jms
from spark_jms.client import Context, Message
from spark_jms.errors import (
    ClosedError,
    DomainError,
    DuplicateTransactionError,
    InvalidDestinationError,
    InvalidSelectorError,
    JmsqError,
    MessageFormatError,
    MessageSizeError,
    OptionError,
)
from tests.harness.messages.shorthands import send_texts, texts


# -- the surface -------------------------------------------------------------------------------------------------------
def test_readme_example(client_root: str) -> None:
    """C2, C7, C8, C11: as the README shows it."""
    with spark_jms.connect(client_root) as ctx:
        sent = ctx.producer("orders").send(text="hello", properties={"color": "red"}, group_id="k1")
        ctx.producer("orders").send(text="other", properties={"color": "blue"})
        message = ctx.consumer("orders", selector="color = 'red'").receive(timeout=5)
        assert message is not None
        assert replace(message, delivery_count=0) == sent
        message.acknowledge()
        assert [m.text for m in ctx.browser("orders")] == ["other"]


def test_root_from_environment_variable(client_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11, C14"""
    monkeypatch.setenv("JMSQ_ROOT", client_root)
    with spark_jms.connect() as context:
        assert context.destinations() == ["orders", "prices", "small", "spread"]


def test_single_sends_go_round_robin_and_return_their_position(context: Context) -> None:
    """C4, C11, D2: dense sequences in each member."""
    sent = [context.producer("orders").send(text=str(n)) for n in range(3)]
    assert [(m.member, m.sequence) for m in sent] == [(0, 1), (0, 2), (0, 3)]
    with context.producer("spread") as producer:
        spread = [producer.send(text=str(n)) for n in range(8)]
    assert sorted((m.member, m.sequence) for m in spread) == [(m, s) for m in range(4) for s in (1, 2)]
    assert {m.message_id for m in context.browser("spread")} == {m.message_id for m in spread}


def test_send_many_makes_one_commit_per_chunk(context: Context) -> None:
    """C4, C11, T12"""
    producer = context.producer("orders")
    report = producer.send_many(({"text": str(n)} for n in range(250)), chunk_messages=100)
    assert (report.messages, report.commits, list(report.sequences[0])) == (250, 3, [(1, 250)])
    assert producer.send_many([]).messages == 0
    with pytest.raises(MessageFormatError, match="must be str"):
        producer.send_many([{"text": "good"}, {"text": 5}])
    with pytest.raises(MessageFormatError, match="the 1 messages of earlier chunks are sent"):
        producer.send_many([{"text": "good"}, {"text": 5}], chunk_messages=1)
    assert len(list(context.browser("orders"))) == 251
    assert (producer.statistics().messages, producer.statistics().commits) == (251, 4)


def test_transaction_is_sent_once(context: Context) -> None:
    """C5, M1: one commit for everything; a repetition by any producer sends nothing."""
    messages = [Message(text=str(n)) for n in range(5)]
    first = context.producer("orders").send_many(messages, transaction=("loader", 7), chunk_messages=2)
    again = context.producer("orders").send_many(messages, transaction=("loader", 7))
    assert (first.messages, first.commits, first.duplicate) == (5, 1, False)
    assert (again.messages, again.commits, again.duplicate) == (0, 0, True)
    assert context.producer("orders").send_many(messages, transaction=("loader", 8)).messages == 5
    assert len(list(context.browser("orders"))) == 10
    with pytest.raises(DuplicateTransactionError):
        context.producer("orders").send_many(messages, transaction=("loader", -1))


def test_transaction_id_that_no_delta_reader_takes_is_refused(context: Context) -> None:
    """C5, M1: half a surrogate pair would be in the log for ever: no Delta reader opens it, no checkpoint can be written."""
    producer = context.producer("orders")
    with pytest.raises(DuplicateTransactionError, match="must be"):
        producer.send_many([{"text": "x"}], transaction=("load\ud800", 1))
    assert producer.send_many([{"text": "x"}], transaction=("läd\n\U0001f600", 1)).messages == 1


# -- browsing ----------------------------------------------------------------------------------------------------------
def test_browser_consumes_nothing(context: Context) -> None:
    """C11, C13: shows claimed messages too, with their delivery count; each iteration is a new snapshot."""
    send_texts(context, *"abcd")
    browser = context.browser("orders", selector="JMSPriority = 4", limit=3)
    assert [m.text for m in browser] == ["a", "b", "c"]
    with context.consumer("orders", acknowledge="individual") as consumer:
        first, second = consumer.receive(timeout=5), consumer.receive(timeout=5)
        assert first is not None
        assert second is not None
        first.acknowledge()
        assert [m.text for m in browser] == ["b", "c", "d"]
    assert [(m.text, m.delivery_count) for m in browser] == [("b", 2), ("c", 1), ("d", 1)]
    assert context.browser("prices") is not browser


def test_browsing_a_topic(context: Context) -> None:
    """C10, C11: one subscription's messages, or everything in the table."""
    with context.consumer("prices", subscription="billing", acknowledge="auto") as consumer:
        send_texts(context, *"abc", to="prices")
        texts(consumer, 2)
    assert [m.text for m in context.browser("prices", subscription="billing")] == ["c"]
    assert [m.text for m in context.browser("prices")] == ["a", "b", "c"]
    with pytest.raises(InvalidDestinationError, match="nobody"):
        context.browser("prices", subscription="nobody")


# -- errors ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "says", "call"),
    [
        (InvalidDestinationError, "there are: orders", lambda c: c.producer("nowhere")),
        (InvalidDestinationError, "a b", lambda c: c.consumer("a b")),
        (InvalidDestinationError, "nowhere", lambda c: c.browser("nowhere")),
        (InvalidSelectorError, "elector", lambda c: c.consumer("orders", selector="a = ")),
        (InvalidSelectorError, "elector", lambda c: c.browser("orders", selector="= 1")),
        (OptionError, "needs `subscription`", lambda c: c.consumer("prices", durable=True)),
        (InvalidDestinationError, "has no subscription 's'", lambda c: c.consumer("orders", subscription="s")),
        (InvalidDestinationError, "has no subscription ''", lambda c: c.consumer("orders", subscription="")),
        (InvalidDestinationError, "has no subscription 's'", lambda c: c.browser("orders", subscription="s")),
        (OptionError, "queue", lambda c: c.consumer("orders", starting_position="latest")),
        (
            OptionError,
            "the starting position of prices is 'x', but must be earliest",
            lambda c: c.consumer("prices", subscription="s", starting_position="x"),
        ),
        (OptionError, "subscription", lambda c: c.consumer("prices", subscription="a b")),
        (OptionError, "client, individual", lambda c: c.consumer("orders", acknowledge="none")),
        (OptionError, "1 to", lambda c: c.consumer("orders", prefetch=0)),
        (OptionError, "members 0 to 0", lambda c: c.consumer("orders", members=1)),
        (OptionError, "members", lambda c: c.consumer("orders", members=[])),
        (OptionError, "limit", lambda c: c.browser("orders", limit=-1)),
        (OptionError, "listener", lambda c: c.consumer("orders", exception_listener=print)),
        (MessageSizeError, "maxMessageSize", lambda c: c.producer("small").send(text="x" * 11)),
        (MessageSizeError, "properties", lambda c: c.producer("small").send(text="x", properties={"p": "x" * 9})),
        (MessageSizeError, "JMSType", lambda c: c.producer("small").send(text="x", type="x" * 10)),
        (MessageFormatError, "property name", lambda c: c.producer("orders").send(text="x", properties={"a-b": 1})),
        (MessageFormatError, "txt", lambda c: c.producer("orders").send_many([{"txt": "x"}])),
        (MessageFormatError, "not both", lambda c: c.producer("orders").send(Message(), text="x")),
        (MessageFormatError, "item 0 of send_many is a str", lambda c: c.producer("orders").send_many(["x"])),
    ],
)
def test_errors_are_named_and_give_advice(context: Context, kind: type[JmsqError], says: str, call) -> None:  # type: ignore[no-untyped-def]
    """C2, C11"""
    with pytest.raises(kind, match=says):
        call(context)
    assert list(context.browser("orders")) == []
    assert not list(Path(context.root, "orders").glob("*.parquet")), "a refused message leaves no file"


def test_closed_objects_raise_closed_error(client_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11"""
    with spark_jms.connect(client_root) as context:
        producer, consumer = context.producer("orders"), context.consumer("orders")
        message = None
        producer.send(text="a")
        message = consumer.receive(timeout=5)
        assert message is not None
        producer.close(), consumer.close(), consumer.close()
        for call in (
            lambda: producer.send(text="x"),
            lambda: consumer.receive(0),
            message.acknowledge,
            consumer.recover,
        ):
            with pytest.raises(ClosedError, match="closed"):
                call()
        assert (context.statistics().producers, context.statistics().consumers) == (0, 0)
    for call in (
        lambda: context.producer("orders"),
        lambda: context.consumer("orders"),
        lambda: context.browser("orders"),
    ):
        with pytest.raises(ClosedError, match="connect again"):
            call()
    with pytest.raises(DomainError, match="jmsq apply"):
        spark_jms.connect(f"{client_root}/orders/none")
    monkeypatch.delenv("JMSQ_ROOT", raising=False)
    with pytest.raises(DomainError, match="JMSQ_ROOT"):
        spark_jms.connect()
