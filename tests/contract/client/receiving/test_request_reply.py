"""Temporary destinations, requests and replies (C15)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from spark_jms import apply, connect
from spark_jms.admin.backup import back_up
from spark_jms.admin.destinations import rename_destination
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client import Context, Message
from spark_jms.core.destinations.destination import TEMPORARY_PREFIX
from spark_jms.errors import (
    ClosedError,
    IllegalStateException,
    InvalidDestinationError,
    MessageSizeError,
    OptionError,
    RequestTimeoutError,
    TemporaryDestinationDeletedError,
    TemporaryDestinationError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.temporary import OWNERS, TABLES
from spark_jms.log.tables import delta_log
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, records_of, requests_waiting

LIMIT_S = 30
Answer = Callable[[Message], object]


@pytest.fixture(params=["memory", "file"])
def root(request: pytest.FixtureRequest) -> Iterator[str]:
    with memory_domain(request.param, work="queue", answers="queue", news="topic") as where:
        yield where


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with connect(root) as opened:
        yield opened


@pytest.fixture
def server(root: str) -> Iterator[Callable[[Answer], None]]:
    """Answers the requests of the queue `work`, from a context of its own."""
    with connect(root, housekeeping=False) as opened:

        def serve(answer: Answer) -> None:
            opened.consumer("work", listener=answer, acknowledge="auto")

        yield serve


def upper(message: Message) -> None:
    message.reply(text=(message.text or "").upper(), properties={"n": 1})


def folders(root: str, place: str = TABLES) -> list[str]:
    return sorted(os.listdir(Path(root, place))) if Path(root, place).is_dir() else []


# -- requests ------------------------------------------------------------------------------------------------------------
def test_request_returns_its_reply(context: Context, server: Callable[[Answer], None]) -> None:
    """C15: the reply has the request's correlation id and comes from a temporary queue."""
    server(upper)
    reply = context.request("work", text="hello", timeout=LIMIT_S)
    assert (reply.text, dict(reply.properties)) == ("HELLO", {"n": 1})
    assert reply.destination.startswith(TEMPORARY_PREFIX)
    own = context.request("work", text="again", correlation_id="mine", timeout=LIMIT_S)
    assert (own.text, own.correlation_id, own.destination) == ("AGAIN", "mine", reply.destination)
    assert len(folders(context.root)) == 1, "one queue for all requests of a context"


def test_concurrent_requests_get_their_own_replies(context: Context, server: Callable[[Answer], None]) -> None:
    """C15: out of order too."""
    waiting: list[Message] = []
    lock = threading.Lock()

    def answer_backwards(message: Message) -> None:
        with lock:
            waiting.append(message)
            if len(waiting) == 8:
                for one in reversed(waiting):
                    upper(one)

    server(answer_backwards)
    with ThreadPoolExecutor(8) as threads:
        texts = [f"t{n}" for n in range(8)]
        replies = list(threads.map(lambda text: context.request("work", text=text, timeout=LIMIT_S), texts))
    assert [reply.text for reply in replies] == [text.upper() for text in texts]


def test_reply_that_names_the_message_id_is_accepted(context: Context, server: Callable[[Answer], None]) -> None:
    """C15: the other custom, also when the reply is faster than the end of the send."""

    def by_message_id(message: Message) -> None:
        message.reply(text="found", correlation_id=message.message_id)

    server(by_message_id)
    assert {context.request("work", text=str(n), timeout=LIMIT_S).text for n in range(20)} == {"found"}


def test_late_and_second_replies_are_dropped(context: Context, server: Callable[[Answer], None]) -> None:
    """C15: the time-out is named, the request stays, and the next request gets its own reply."""
    with pytest.raises(RequestTimeoutError, match=r"within 0.05 s"):
        context.request("work", text="slow", timeout="50 ms")

    def twice(message: Message) -> None:
        upper(message)
        upper(message)

    server(twice)
    assert [context.request("work", text=text, timeout=LIMIT_S).text for text in ("a", "b")] == ["A", "B"]


def test_request_of_a_closed_context_ends(root: str) -> None:
    """C15: a thread that waits gets ClosedError."""
    context = connect(root)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(context.request, "work", text="never answered")
        with connect(root, housekeeping=False) as other:
            wait_until(lambda: len(list(other.browser("work"))) == 1, LIMIT_S)
        context.close()
        with pytest.raises(ClosedError, match="closed while a request waited"):
            waiting.result(LIMIT_S)
    with pytest.raises(ClosedError):
        context.request("work", text="x")
    assert folders(root) == folders(root, OWNERS) == []


def test_wrong_requests_are_refused(context: Context) -> None:
    """C15"""
    with pytest.raises(OptionError, match="reply_to"):
        context.request("work", text="x", reply_to="answers")
    with pytest.raises(OptionError, match="timeout"):
        context.request("work", text="x", timeout="soon")
    with pytest.raises(InvalidDestinationError):
        context.request("nowhere", text="x")


# -- replies -------------------------------------------------------------------------------------------------------------
def test_reply_goes_to_any_destination(context: Context) -> None:
    """C15: with the correlation id of the request, or its message id."""
    producer = context.producer("work")
    first = producer.send(text="a", reply_to="answers")
    producer.send(text="b", reply_to="answers", correlation_id="7")
    producer.send(text="c")
    with context.consumer("work", acknowledge="individual") as consumer, context.consumer("answers") as answers:
        for expected in (first.message_id, "7"):
            message = consumer.receive(timeout=LIMIT_S)
            assert message is not None
            sent = message.reply(text="done", reply_to="work")
            got = answers.receive(timeout=LIMIT_S)
            assert got is not None
            assert (got.message_id, got.correlation_id, got.reply_to) == (sent.message_id, expected, "work")
            message.acknowledge()
        message = consumer.receive(timeout=LIMIT_S)
        assert message is not None
        with pytest.raises(IllegalStateException, match="no JMSReplyTo"):
            message.reply(text="to whom")
    with pytest.raises(IllegalStateException, match="nothing to reply to"):
        next(iter(context.browser("work"))).reply(text="x")


def test_reply_to_a_requestor_that_is_gone_is_named(root: str, context: Context) -> None:
    """C15: also for a producer that has sent to it before, and for a large table; the next reply is not concerned."""
    with connect(root) as requestor:
        queue = requestor.create_temporary_queue()
        requestor.producer("work").send(text="a", reply_to=queue.name)
        producer = context.producer(queue.name)
        producer.send(text="early")
        with context.consumer("work") as consumer:
            message = consumer.receive(timeout=LIMIT_S)
            assert message is not None
            message.reply(text="in time")
            requestor.close()
            with pytest.raises(TemporaryDestinationDeletedError, match="does not exist any more"):
                message.reply(text="late")
    with pytest.raises(TemporaryDestinationDeletedError):
        producer.send(text="late")
    with pytest.raises(TemporaryDestinationDeletedError):
        producer.send_many([{"text": "late"}] * 200)
    with pytest.raises(TemporaryDestinationDeletedError):
        context.producer(queue.name)
    assert folders(root) == folders(root, OWNERS) == []


# -- temporary destinations ------------------------------------------------------------------------------------------------
def test_only_the_owner_consumes(root: str, context: Context) -> None:
    """C15: another context can send, and nothing else; nor can a Spark query consume."""
    queue = context.create_temporary_queue()
    with connect(root, housekeeping=False) as other:
        other.producer(queue.name).send(text="for you")
        for use in (
            lambda: other.consumer(queue.name),
            lambda: other.browser(queue.name),
            JmsqStreamReader(parse_options({"root": root, "destination": queue.name})).initialOffset,
        ):
            with pytest.raises(TemporaryDestinationError, match="another context"):
                use()
    with context.consumer(queue.name) as consumer:
        message = consumer.receive(timeout=LIMIT_S)
        assert message is not None
        assert [m.text for m in context.browser(queue.name)] == ["for you"]
        message.acknowledge()
        assert list(context.browser(queue.name)) == []


def test_temporary_topic_reaches_its_owners_subscriptions(context: Context) -> None:
    """C15, C10"""
    with context.create_temporary_topic() as topic:
        consumers = [context.consumer(topic.name, subscription=name, acknowledge="auto") for name in ("a", "b")]
        context.producer(topic.name).send(text="news")
        for consumer in consumers:
            message = consumer.receive(timeout=LIMIT_S)
            assert message is not None
            assert message.text == "news"
            consumer.close()
        context.unsubscribe(topic.name, "b")
        assert [s.name for s in context.subscriptions(topic.name)] == ["a"]
    with pytest.raises(TemporaryDestinationError):
        context.consumer(topic.name, subscription="a")


def test_destination_with_open_consumers_is_not_deleted(context: Context) -> None:
    """C15: then it is, with its housekeeping; deleting it twice is no error."""
    queue = context.create_temporary_queue()
    with context.consumer(queue.name), pytest.raises(IllegalStateException, match="has open consumers"):
        queue.delete()
    queue.delete()
    queue.delete()
    assert queue.name not in context.statistics().destinations
    assert folders(context.root) == []


def test_nothing_lists_temporary_destinations(root: str, context: Context, tmp_path: Path) -> None:
    """C15, C19, C14: `destinations`, backup and the store do not know them; `jmsq list --temporary` does."""
    queue = context.create_temporary_queue()
    with context.consumer(queue.name, acknowledge="auto") as consumer:
        context.producer(queue.name).send(text="x")
        assert consumer.receive(timeout=LIMIT_S) is not None
        names = records_of(context).names()
        table_id = domain_of(context).log(queue.name).snapshot.table_id
    assert context.destinations() == ["answers", "news", "work"]
    assert not [name for name in names if table_id in name], "a store keeps the names of records for ever"
    back_up(domain_of(context), records_of(context), str(tmp_path / "backup"))
    assert not list((tmp_path / "backup").rglob(f"{TEMPORARY_PREFIX}*"))
    (entry,) = domain_of(context).temporary.entries()
    assert (entry.name, entry.kind) == (queue.name, "queue")
    assert entry.session in records_of(context).sessions()


def test_reserved_names_are_refused(context: Context) -> None:
    """C15: a declared destination that a context's name could meet."""
    with pytest.raises(InvalidDestinationError, match="temporary destinations"):
        apply(context.root, {"destinations": {f"{TEMPORARY_PREFIX}x": {"kind": "queue"}}})
    with pytest.raises(InvalidDestinationError, match="temporary destinations"):
        rename_destination(domain_of(context), records_of(context), "work", f"{TEMPORARY_PREFIX}x")


# -- a dead owner ----------------------------------------------------------------------------------------------------------
def die(context: Context) -> None:
    """As a killed process: its sessions end, and nothing is deleted."""
    session = context._owned._session
    assert session is not None
    session.close()
    context._owned._session = None


def test_housekeeping_deletes_what_a_dead_context_leaves(
    root: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C15: of any destination; what lives stays, and so does a table that is entered while it looks."""
    monkeypatch.setattr(Housekeeper, "ABANDONED_EVERY_S", 0.0)
    kept = context.create_temporary_queue()
    with connect(root, housekeeping=False) as dead:
        queue = dead.create_temporary_queue()
        die(dead)
        late = Path(root, TABLES, f"{TEMPORARY_PREFIX}queue-0", "messages", "m0-x.parquet")
        late.parent.mkdir(parents=True)
        late.write_bytes(b"a sender's file, written after the deletion")
        with closing(Housekeeper(Domain(root), records_of(context), "work")) as keeper:
            keeper.run()
            assert not keeper.health.failures
        assert folders(root) == folders(root, OWNERS) == [kept.name]
        with pytest.raises(TemporaryDestinationDeletedError):
            dead.producer(queue.name).send(text="x")
    assert folders(root) == [kept.name]


def test_requests_continue_after_their_queue_was_deleted(
    context: Context, server: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C15: a waiting request gets the named error, the next one a new queue."""
    monkeypatch.setattr(delta_log, "_GAP_CHECK_INTERVAL_MS", 500)  # a context looks whether its tables are there
    release = threading.Event()

    def slow(message: Message) -> None:
        if message.text == "first":
            assert release.wait(LIMIT_S)
        else:
            upper(message)

    server(slow)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(context.request, "work", text="first", timeout=LIMIT_S)
        wait_until(lambda: bool(folders(context.root)), LIMIT_S)
        wait_until(lambda: requests_waiting(context) > 0, LIMIT_S)
        (name,) = folders(context.root)
        Domain(context.root).temporary.delete(name)
        with pytest.raises((TemporaryDestinationDeletedError, TemporaryDestinationError)):
            waiting.result(LIMIT_S)
    release.set()
    assert context.request("work", text="second", timeout=LIMIT_S).text == "SECOND"
    assert name not in context.statistics().destinations
    assert name not in folders(context.root)


def test_reply_may_be_as_large_as_the_requestors_connection_takes(root: str, context: Context) -> None:
    """C15, T9: `maxMessageSize` of the connection factory, at least the default of a queue."""
    for factory, most in ((ConnectionFactory(max_message_bytes=20 * 2**20), 20 * 2**20), (None, 10 * 2**20)):
        with connect(root, connection_factory=factory, housekeeping=False) as requestor:
            queue = requestor.create_temporary_queue()
            with pytest.raises(MessageSizeError, match=f"maxMessageSize of {most} bytes"):
                context.producer(queue.name).send(body=b"x" * (most + 1))
            context.producer(queue.name).send(body=b"x" * most)
            with requestor.consumer(queue.name, acknowledge="auto") as consumer:
                reply = consumer.receive(timeout=10)
                assert reply is not None
                assert len(reply.body or b"") == most
