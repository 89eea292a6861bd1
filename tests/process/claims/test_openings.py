"""Openings of a server's store while its PostgreSQL is stopped, killed and started again (S5, M10)."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import spark_jms
from spark_jms.claims.servers.stores import open_stores, store_of
from spark_jms.claims.servers.timed_stores import ServerAwayError, ask_once
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import Store, StoreError
from spark_jms.testing.domain import wait_until
from spark_jms.testing.postgresql import PrivatePostgresql

LOOK_S = 2.0
BACK_S = 25.0  # an attempt to connect that began before takes 10 s


def _threads() -> int:
    return sum("server a" in thread.name or "timed a" in thread.name for thread in threading.enumerate())


def _look(domain: Domain) -> None:
    """As `jmsq stat`: opens the stores, asks for a limited time, and gives up."""
    with open_stores(domain, LOOK_S) as stores:
        store_of(stores, "a").sessions()


def _answers(stores: Store) -> bool:
    try:
        ask_once("a", lambda: store_of(stores, "a").sessions(), LOOK_S)
    except ServerAwayError:
        return False
    return True


def test_openings_that_were_given_up_hold_up_no_later_one(
    tmp_path: Path, database: PrivatePostgresql, caplog: pytest.LogCaptureFixture
) -> None:
    """S5, M10: several openers of one process give up again and again while PostgreSQL hangs, is killed and is away. Meanwhile the
    process opens another database at once. The threads that were given up stay few and end; the log tells the seconds that they
    try; and once the database answers, the first opener has its store."""
    caplog.set_level(logging.WARNING, "store.jdbc")
    root = str(tmp_path / "root")
    stores = {"a": database.uri("openings"), "b": f"jdbc:sqlite:///{tmp_path}/b.db"}
    orders = {"kind": "distributed-queue", "servers": list(stores)}
    servers = {name: {"store": store} for name, store in stores.items()}
    spark_jms.apply(root, {"servers": servers, "destinations": {"orders": orders}})
    domain = Domain(root)
    _outage(domain, database, away_s=0.0)
    _outage(domain, database, away_s=5.0)
    wait_until(lambda: _threads() == 0, BACK_S, lambda: f"{_threads()} threads end")
    said = [record.getMessage() for record in caplog.records]
    told = {int(seconds) for line in said for seconds in re.findall(r"(?:for|up to) (\d+) s", line)}
    assert told, said
    assert told <= {2, 10}, said  # of a look, and of an opening of a server's store


def _outage(domain: Domain, database: PrivatePostgresql, away_s: float) -> None:
    ended = threading.Event()

    def open_again_and_again(stores: Store) -> None:
        while not ended.is_set():
            _answers(stores)
            with suppress(StoreError):
                _look(domain)
            ended.wait(0.1)

    hung = database.pid
    os.kill(hung, signal.SIGSTOP)
    with ThreadPoolExecutor(4) as openers, open_stores(domain) as stores:
        try:
            for _ in range(4):
                openers.submit(open_again_and_again, stores)
            wait_until(lambda: _threads() >= 8, BACK_S, "openings wait")
            begun_s = time.monotonic()
            store_of(stores, "b").sessions()
            assert time.monotonic() - begun_s < 8.0, "another database waited for the one that hangs"
            ended.wait(15.0)
            assert _threads() <= 40
            database.stop(signal.SIGKILL)
            ended.wait(away_s)
            database.start()
            wait_until(lambda: _answers(stores), BACK_S, "the store is open again")
        finally:
            ended.set()
            with suppress(ProcessLookupError):  # it was killed
                os.kill(hung, signal.SIGCONT)
