"""A server whose PostgreSQL answers late, behind a proxy that delays each packet (D4)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_jms
from spark_jms.testing.postgresql import PrivatePostgresql
from tests.harness.messages.sender_and_query import SenderAndQuery
from tests.harness.services.proxy import Proxy

ON_A, ON_B = 0, 1


@pytest.fixture
def proxy(database: PrivatePostgresql) -> Iterator[Proxy]:
    made = Proxy("127.0.0.1", database.port)
    yield made
    made.delay_s = 0.0
    made.close()


def _two_servers(tmp_path: Path, database: PrivatePostgresql, proxy: Proxy) -> SenderAndQuery:
    """Server `a` is behind the proxy, `b` keeps files."""
    root = str(tmp_path / "root")
    servers = {"a": {"store": database.uri("slow", port=proxy.port), "lease": "4 s"}, "b": {"store": "file"}}
    orders = {"kind": "distributed-queue", "servers": ["a", "b"]}
    spark_jms.apply(root, {"servers": servers, "destinations": {"orders": orders}})
    return SenderAndQuery(root)


@pytest.mark.parametrize("delay_s", [0.25, 0.4, 0.5])
def test_slow_database_gets_no_messages_until_it_is_fast_again(
    tmp_path: Path, database: PrivatePostgresql, proxy: Proxy, delay_s: float
) -> None:
    """D4: whatever the delay at which nobody can receive any more, the server goes down once. Meanwhile no message is sent to it, and
    what is sent to the other one is delivered; without the delay it returns, with the messages that waited."""
    run = _two_servers(tmp_path, database, proxy)
    try:
        run.until(lambda: run.received[ON_A] > 2 and run.received[ON_B] > 2, "both servers deliver")
        proxy.delay_s = delay_s
        run.until(lambda: run.down() == {"a"}, "a is down")
        there, elsewhere, begun_s = run.table.refresh().last_sequence(ON_A), run.sent[ON_B], time.monotonic()
        run.until(
            lambda: run.sent[ON_B] >= elsewhere + 10 and time.monotonic() - begun_s >= 40.0, "messages of the other"
        )
        sent_there = run.sent[ON_B]
        run.until(lambda: run.received[ON_B] >= sent_there, "none of them waits")
        assert run.table.refresh().last_sequence(ON_A) == there, "a message was sent to a server that is down"
        assert run.domain.terms.newest()["a"].term.number == 1, "the lease flapped"
        proxy.delay_s = 0.0
        run.until(lambda: not run.down(), "a is up")
        run.until(lambda: run.table.refresh().last_sequence(ON_A) > there, "messages go there again")
        sent = Counter(run.sent)
        run.until(lambda: run.received >= sent, "everything sent is delivered")
    finally:
        proxy.delay_s = 0.0
        run.close()


def test_slow_database_at_which_messages_are_received_stays_up(
    tmp_path: Path, database: PrivatePostgresql, proxy: Proxy
) -> None:
    """D4: while a server's consumers receive, however slowly, the server is up, and senders do not avoid it."""
    run = _two_servers(tmp_path, database, proxy)
    try:
        run.until(lambda: run.received[ON_A] > 2 and run.received[ON_B] > 2, "both servers deliver")
        proxy.delay_s, received = 0.1, run.received[ON_A]
        run.until(lambda: bool(run.down()) or run.received[ON_A] >= received + 5, "the slow server delivers")
        assert not run.down(), f"{run.received[ON_A] - received} were received since it became slow"
        assert not run.domain.terms.newest(), "the lease flapped"
    finally:
        proxy.delay_s = 0.0
        run.close()
