"""The send time-out of a connection factory (T2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_jms import apply, connect
from spark_jms.admin.destinations import pause, resume
from spark_jms.cli.__main__ import cli
from spark_jms.client import ConnectionFactory, Context
from spark_jms.core.destinations.pause import INSERTION
from spark_jms.errors import InsertionPausedError, OptionError, TransactionRolledBackException
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of
from tests.harness.messages.completions import LIMIT_S, in_thread

PATIENT, HASTY = ConnectionFactory(send_timeout_ms=LIMIT_S * 1000), ConnectionFactory(send_timeout_ms=0)


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(orders="queue", answers="queue") as where:
        yield where


@contextmanager
def paused(context: Context, *destinations: str) -> Iterator[None]:
    for name in destinations:
        pause(domain_of(context), name, [INSERTION])
    try:
        yield
    finally:
        for name in destinations:
            resume(domain_of(context), name, [INSERTION])


def transacted(context: Context) -> None:
    with context.transacted_session() as session:
        session.producer("orders").send(text="x")
        session.commit()


CALLS: dict[str, Callable[[Context], object]] = {
    "send": lambda context: context.producer("orders").send(text="x"),
    "send_many": lambda context: context.producer("orders").send_many([{"text": "x"}] * 200),
    "request": lambda context: context.request("orders", text="x", timeout=LIMIT_S),
    "transacted": transacted,
}


@pytest.mark.parametrize("how", CALLS)
def test_each_sender_of_a_connection_waits_as_its_factory_says(root: str, how: str) -> None:
    """T2: producers, requests and transacted sessions; an argument of the producer comes first."""
    with connect(root, housekeeping=False, connection_factory=HASTY) as hasty, paused(hasty, "orders"):
        refused = TransactionRolledBackException if how == "transacted" else InsertionPausedError
        with pytest.raises(refused):
            CALLS[how](hasty)
    failed: list[BaseException] = []

    def call() -> None:
        try:
            CALLS[how](patient)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failed.append(error)

    with connect(root, connection_factory=PATIENT) as patient:
        listening = how == "request"
        consumer = (
            patient.consumer("orders", listener=lambda m: m.reply(text="y"), acknowledge="auto") if listening else None
        )
        with paused(patient, "orders"):
            waiting = in_thread(call)
            begun = time.monotonic()
            wait_until(lambda: time.monotonic() - begun > 0.1)  # longer than the default, 10 ms
            assert waiting.is_alive()
            with pytest.raises(InsertionPausedError):
                patient.producer("orders", send_timeout=0).send(text="y")
        waiting.join(LIMIT_S)
        assert not waiting.is_alive()
        if consumer is not None:
            consumer.close()
    assert failed == []


def test_replies_wait_as_the_factory_of_their_connection_says(root: str) -> None:
    """T2, C15"""
    with connect(root, connection_factory=HASTY) as hasty, hasty.consumer("orders") as consumer:
        hasty.producer("orders").send(text="?", reply_to="answers")
        request = consumer.receive(LIMIT_S)
        assert request is not None
        with paused(hasty, "answers"), pytest.raises(InsertionPausedError):
            request.reply(text="!")
    with connect(root, connection_factory=PATIENT) as patient, patient.consumer("orders") as consumer:
        request = consumer.receive(LIMIT_S)
        assert request is not None
        replies: list[Any] = []
        with paused(patient, "answers"):
            replying = in_thread(lambda: replies.append(request.reply(text="!")))
            begun = time.monotonic()
            wait_until(lambda: time.monotonic() - begun > 0.1)
            assert replies == []
        replying.join(LIMIT_S)
        assert [reply.text for reply in replies] == ["!"]


def test_command_takes_the_factory_and_an_option(tmp_path: Path) -> None:
    """T2, C14: `jmsq send` waits until consumers have made room; without patience it fails at once."""
    root = str(tmp_path)
    module = {
        "quotas": {"small": {"messagesMaximum": 1}},
        "destinations": {"orders": {"kind": "queue", "quota": "small"}},
        "connectionFactories": {"patient": {"sendTimeout": f"{LIMIT_S} s"}, "hasty": {"sendTimeout": "0"}},
    }
    apply(root, module)

    def send(text: str, *options: str) -> Any:
        return CliRunner().invoke(cli, ["send", "--root", root, "orders", "--text", text, *options])

    assert send("1").exit_code == 0
    refused = send("2", "--connection-factory", "hasty")
    assert refused.exit_code != 0
    assert "small" in refused.output
    ways = (["--connection-factory", "patient"], ["--connection-factory", "hasty", "--send-timeout", f"{LIMIT_S} s"])
    with connect(root) as context, context.consumer("orders", acknowledge="auto") as consumer:
        for number, options in enumerate(ways, 2):
            done: list[Any] = []
            waiting = in_thread(lambda: done.append(send(str(number), *options)))  # noqa: B023
            begun = time.monotonic()
            wait_until(lambda: time.monotonic() - begun > 0.2)  # noqa: B023
            assert done == []
            message = consumer.receive(LIMIT_S)
            assert message is not None
            assert message.text == str(number - 1)
            assert consumer.receive(0) is None  # which acknowledges it
            waiting.join(LIMIT_S)
            assert [result.exit_code for result in done] == [0], done[0].output


def test_default_is_10_ms_and_wrong_values_are_named(root: str) -> None:
    """T2"""
    assert ConnectionFactory().send_timeout_ms == 10
    with pytest.raises(OptionError, match=r"sendTimeout of a connection factory is -1, but must be"):
        ConnectionFactory(send_timeout_ms=-1)
    with connect(root, housekeeping=False) as context, pytest.raises(OptionError, match="send_timeout"):
        context.producer("orders", send_timeout="soon")
