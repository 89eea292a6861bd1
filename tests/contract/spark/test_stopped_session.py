"""`spark.stop()` without `query.stop()`: Spark asks the source of an idle query as before (C9)."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import connect
from spark_jms.claims.records import members
from spark_jms.claims.upkeep import views
from spark_jms.errors import QueryRunningError, SparkStoppedError
from spark_jms.log.destinations.domain import Domain
from spark_jms.spark.options import SparkContextWatch, parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.testing import memory_domain
from spark_jms.testing.domain import wait_until

LIMIT = ReadMaxRows(1000)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(members, "OPEN_TIMEOUT_S", 0.0)
    with memory_domain("file", orders="queue") as where:
        yield where


@pytest.fixture
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Of a running SparkContext."""
    both = [tmp_path / "blockmgr-1", tmp_path / "blockmgr-2"]
    for one in both:
        one.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", ",".join(map(str, both)))
    return both


def started(root: str) -> tuple[JmsqStreamReader, dict[str, Any]]:
    """A source that has opened its query, and its first offset."""
    source = JmsqStreamReader(parse_options({"root": root, "destination": "orders"}))
    start = source.initialOffset()
    source.latestOffset(start, LIMIT)
    assert source.latestOffset(start, LIMIT) == start
    return source, start


def send(root: str) -> None:
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="x")


def claims(root: str) -> int:
    domain = Domain(root)
    with views.opened_store(domain) as store:
        return len(views.claims(domain, store, "orders"))


def test_source_of_a_stopped_session_claims_nothing_and_ends(root: str, directories: list[Path]) -> None:
    """C9: with the next question of Spark; its restart is accepted, and the message is not flagged."""
    source, start = started(root)
    shutil.rmtree(directories[0])
    assert source.latestOffset(start, LIMIT) == start  # one directory of two may be lost with its disk
    shutil.rmtree(directories[1])
    send(root)
    for _ in range(2):
        with pytest.raises(SparkStoppedError, match=r"stopped without query.stop\(\)"):
            source.latestOffset(start, LIMIT)
    with pytest.raises(SparkStoppedError):
        source.partitions(start, start)
    assert claims(root) == 0
    restarted = JmsqStreamReader(parse_options({"root": root, "destination": "orders"}))  # no directories: not watched
    assert restarted.latestOffset(start, LIMIT) != start
    restarted.stop()
    source.stop()


def test_source_of_a_stopped_session_ends_between_two_batches(root: str, directories: list[Path]) -> None:
    """C9: a query with a long trigger asks nothing for hours, and must not hold its records so long."""
    source, start = started(root)
    send(root)
    for one in directories:
        shutil.rmtree(one)
    restarted = JmsqStreamReader(parse_options({"root": root, "destination": "orders"}))
    seen: list[dict[str, Any]] = []

    def takes_over() -> bool:
        try:
            seen.append(restarted.latestOffset(start, LIMIT))
        except QueryRunningError:
            return False
        return True

    wait_until(takes_over)
    assert seen[-1] != start
    restarted.stop()
    source.stop()


def test_refused_restart_names_the_process_that_holds_the_query(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9: host, process id and since when; and that it belongs to this application, when the same process has started it."""
    source, start = started(root)
    other = JmsqStreamReader(parse_options({"root": root, "destination": "orders"}))
    process = (
        rf"process {os.getpid()} of {socket.gethostname()}, started by process {os.getppid()}, since 20\d\d-.* UTC\)"
    )
    with pytest.raises(QueryRunningError, match=rf"{process}.*of this very application, perhaps of a Spark session"):
        other.latestOffset(start, LIMIT)
    parent = os.getppid()
    monkeypatch.setattr(os, "getppid", lambda: parent + 1)
    with pytest.raises(QueryRunningError, match=rf"{process}.*Stop the other instance first, which may be"):
        other.latestOffset(start, LIMIT)
    source.stop()
    other.stop()


def test_watch_ends_and_starts_again(directories: list[Path]) -> None:
    """C9: it acts once, and not after its end."""
    acted: list[str] = []
    watch = SparkContextWatch()
    watch.start(lambda: acted.append("closed"), every_s=0.01)
    watch.close()
    watch.start(lambda: acted.append("open"), every_s=0.01)
    assert not watch.is_stopped()
    for one in directories:
        shutil.rmtree(one)
    wait_until(lambda: bool(acted))
    assert acted == ["open"]
    assert not SparkContextWatch().is_stopped()


def test_local_directories_of_a_running_query_do_not_grow_old(root: str, directories: list[Path]) -> None:
    """C9: a host that deletes unused directories of /tmp does not end a query without shuffles, which uses none."""
    for one in directories:
        os.utime(one, (0, 0))
    source, start = started(root)
    wait_until(lambda: all(one.stat().st_mtime > 0 for one in directories))
    assert source.latestOffset(start, LIMIT) == start
    source.stop()
