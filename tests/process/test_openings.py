"""Openings of a server's store while its PostgreSQL is stopped, killed and started again (S5, M10)."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import spark_jms
from spark_jms.claims.lane import ServerAwayError, ask_once
from spark_jms.claims.stores import open_stores, store_of
from spark_jms.log.domain import Domain
from spark_jms.store import Store, StoreError
from spark_jms.testing.postgresql import PrivatePostgresql
from spark_jms.testing.waiting import wait_until

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
    """S5, M10: several openers of one process give up again and again while PostgreSQL hangs, is killed and is away. Their threads
    stay few and end; the log tells the seconds that they try; and once the database answers, the first opener has its store."""
    caplog.set_level(logging.WARNING, "store.jdbc")
    root = str(tmp_path / "root")
    orders = {"kind": "distributed-queue", "servers": ["a", "b"]}
    servers = {"a": {"store": database.uri("openings")}, "b": {"store": "file"}}
    spark_jms.apply(root, {"servers": servers, "destinations": {"orders": orders}})
    domain, ended = Domain(root), threading.Event()
    most = 0

    def open_again_and_again(stores: Store) -> None:
        while not ended.is_set():
            try:
                _answers(stores)
                _look(domain)
            except StoreError:
                pass
            ended.wait(0.1)

    with ThreadPoolExecutor(4) as openers, open_stores(domain) as stores:
        for _ in range(4):
            openers.submit(open_again_and_again, stores)
        try:
            for outage in range(2):
                os.kill(database.pid, signal.SIGSTOP)
                until_s = time.monotonic() + 15
                while time.monotonic() < until_s:
                    most = max(most, _threads())
                    ended.wait(0.2)
                database.stop(signal.SIGKILL)
                ended.wait(5.0 * outage)
                database.start()
                wait_until(lambda: _answers(stores), BACK_S, "the store is open again")
        finally:
            ended.set()
    assert most <= 40
    wait_until(lambda: _threads() == 0, BACK_S, lambda: f"{_threads()} threads end")
    said = [record.getMessage() for record in caplog.records]
    assert not [line for line in said if "900 s" in line and "last engine: unknown" in line], said
