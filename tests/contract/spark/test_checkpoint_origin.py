"""A checkpoint that is started with another destination, subscription or root than its own (C5, C10, C18)."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_jms import connect
from spark_jms.claims.upkeep import views
from spark_jms.errors import DestinationReplacedError, ForeignCheckpointError, JmsqError, OptionError, TriggerError
from spark_jms.log.destinations.domain import Domain
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.store.errors import StoreAbsentError
from spark_jms.store.file.store import FileBackend
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.testing import backend_of, directory_of
from spark_jms.testing import memory_domain
from tests.harness.domains.servers import applied, queue_on
from tests.harness.messages.poison_query import send
from tests.harness.messages.source_steps import next_offset, texts_of

LIMIT = ReadMaxRows(1000)
Offset = dict[str, Any]
S = {"destination": "prices", "subscription": "s"}


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain("file", orders="queue", jobs="queue", prices="topic") as where:
        yield where


@contextmanager
def opened(root: str, **options: str) -> Iterator[JmsqStreamReader]:
    source = JmsqStreamReader(parse_options({"root": root, **options}))
    try:
        yield source
    finally:
        source.stop()


def logged_batch(root: str, **options: str) -> tuple[Offset, Offset]:
    """Between two offsets: a message that Spark has not committed yet."""
    with opened(root, **options) as source:
        start = source.initialOffset()
        source.latestOffset(start, LIMIT)
        source.latestOffset(start, LIMIT)
        send(root, options["destination"], "a")
        end = next_offset(source, start)
        assert texts_of(source, start, end) == ["a"]
    return start, end


def check_refused(error: type[JmsqError], said: str, root: str, start: Offset, end: Offset, **options: str) -> None:
    """By the first question that Spark asks, whichever it is, also when its last batch was the initial one."""
    questions: list[Callable[[JmsqStreamReader], object]] = [
        lambda source: source.partitions(start, end),
        lambda source: source.latestOffset(start, LIMIT),
        lambda source: source.latestOffset(end, LIMIT),
    ]
    for ask in questions:
        with opened(root, **options) as source, pytest.raises(error, match=said):
            ask(source)


@pytest.mark.parametrize("other_exists", [False, True])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_other_subscription_is_refused(root: str, other_exists: bool, fails: str) -> None:
    """C5, C10: the logged batch would come empty, and its messages again, not flagged. Nothing is changed: no subscription is
    made, and the query continues with its own."""
    other = {**S, "subscription": "t", "failOnDataLoss": fails}
    if other_exists:
        with opened(root, **other) as source:
            source.initialOffset()
    start, end = logged_batch(root, **S)
    before = Domain(root).log("prices").refresh().version
    check_refused(
        ForeignCheckpointError, "subscription 's' of prices, and the query names 't'", root, start, end, **other
    )
    assert Domain(root).log("prices").refresh().version == before
    with opened(root, **S) as source:
        assert texts_of(source, start, end) == ["a"]
        assert source.latestOffset(end, LIMIT) == end


def test_other_client_id_is_another_subscription(root: str) -> None:
    """C10: the names of a topic's subscriptions belong to the client id."""
    start, end = logged_batch(root, **S)
    said = "subscription 's' of prices, and the query names 'app:s'"
    check_refused(ForeignCheckpointError, said, root, start, end, **S, clientId="app")


def test_missing_subscription_is_named(root: str) -> None:
    """C10: the option was forgotten, nothing was dropped."""
    start, end = logged_batch(root, **S)
    check_refused(OptionError, "a consumer needs `subscription`", root, start, end, destination="prices")


def test_other_subscription_on_servers_is_refused(tmp_path: Path) -> None:
    """C5, C10, M10: each server has a part of the query's progress."""
    servers = {name: {"store": "file"} for name in "ab"}
    prices = {"kind": "distributed-topic", "servers": ["a", "b"]}
    root = applied(tmp_path, {"servers": servers, "destinations": {"prices": prices}})
    start, end = logged_batch(root, **S)
    check_refused(ForeignCheckpointError, "'s' of prices.*'t'", root, start, end, **{**S, "subscription": "t"})


@pytest.mark.parametrize("hangs", [False, True])
def test_server_that_goes_while_it_is_asked_does_not_end_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """C9, D4: it is away between two questions, or its store hangs. A restart continues with the other server."""
    root = applied(tmp_path, queue_on("a", "b"))
    with opened(root, destination="orders") as source:
        start = source.initialOffset()
        source.latestOffset(start, LIMIT)
        source.latestOffset(start, LIMIT)
    with connect(root, housekeeping=False) as context:
        context.producer("a@orders").send(text="a")
    read, peek, returns, expired = FileBackend.read, LedgerStore.peek, threading.Event(), list[FileBackend]()

    def hanging(backend: FileBackend, question: Any) -> Any:
        if directory_of(backend).name == "b":
            expired.extend([] if returns.wait(60.0) else [backend])
        return read(backend, question)

    def gone(store: LedgerStore, name: str) -> dict[str, bytes]:
        backend = backend_of(store)
        if isinstance(backend, FileBackend) and directory_of(backend).name == "b":
            raise StoreAbsentError("b")
        return peek(store, name)

    if hangs:
        monkeypatch.setattr(FileBackend, "read", hanging)
    else:
        monkeypatch.setattr(LedgerStore, "peek", gone)
    try:
        with opened(root, destination="orders") as source:
            assert texts_of(source, start, next_offset(source, start)) == ["a"]
            assert not expired, "the query has waited for the server"
            returns.set()
    finally:
        returns.set()


def test_other_destination_is_named(root: str) -> None:
    """C18: as when the sources of a query are swapped. Nothing was dropped, and a fresh checkpoint is not the only way."""
    start, end = logged_batch(root, destination="orders")
    said = "belongs to orders, and the query names jobs in its place.*Name orders again"
    check_refused(ForeignCheckpointError, said, root, start, end, destination="jobs")
    check_refused(ForeignCheckpointError, "belongs to orders", root, start, end, **S)


def test_other_root_is_not_told_as_a_drop(root: str) -> None:
    """C18: what cannot be told apart is told as both."""
    start, end = logged_batch(root, destination="orders")
    with memory_domain("file", orders="queue") as other:
        said = f"no other destination of {re.escape(Domain(other).root)} has it.*or the root is another one"
        check_refused(DestinationReplacedError, said, other, start, end, destination="orders")


def test_refused_checkpoint_leaves_no_session(root: str) -> None:
    """C9: a query that was refused holds nothing open, although Spark has not stopped its source yet."""
    start, _ = logged_batch(root, destination="orders")
    source = JmsqStreamReader(parse_options({"root": root, "destination": "jobs"}))
    with pytest.raises(ForeignCheckpointError):
        source.latestOffset(start, LIMIT)
    with views.opened_store(Domain(root)) as store:
        assert not store.sessions()


def test_single_batch_is_refused_with_both_of_its_causes(root: str) -> None:
    """C5: Spark falls back to a single batch when another source has no AvailableNow; to advise that trigger would not help."""
    with opened(root, destination="orders") as source:
        start = source.initialOffset()
        with pytest.raises(
            TriggerError, match=r"instead of Trigger\.Once.*another source of the query does not support it"
        ):
            source.latestOffset(start, ReadAllAvailable())
