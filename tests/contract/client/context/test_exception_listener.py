"""The exception listener of a connection is told without a call of the application (D3, T11, C11)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jms import connect, connect_pool
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.claims.servers.stores import home_of
from spark_jms.client import ConnectionFactory, Context
from spark_jms.client.context import connection_watch
from spark_jms.core.destinations.servers import HOME
from spark_jms.errors import (
    ClosedError,
    ConnectionLostException,
    MemberLostException,
    OptionError,
    SessionEndedException,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import StoreBusyError
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, members_of, records_of, subscriber_of, watch_of
from tests.harness.domains.servers import Away, applied, queue_on

Opened = Callable[..., Context]


@pytest.fixture
def opened(client_root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Contexts whose watch looks when the test says so."""
    monkeypatch.setattr(connection_watch, "LOOK_EVERY_S", 3600)
    contexts: list[Context] = []

    def open_context(listener: Callable[[Exception], object], **more: Any) -> Context:
        contexts.append(connect(client_root, exception_listener=listener, **more))
        return contexts[-1]

    yield open_context
    for context in contexts:
        context.close()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "jmsq-background connection"]


def test_ended_session_of_an_idle_consumer_is_told_by_itself(client_root: str) -> None:
    """D3, C11: once, and no call of the consumer is needed; a connection without a listener has no such thread."""
    seen: list[Exception] = []
    with connect(client_root) as silent:
        silent.consumer("orders")
        assert not threads()
    with connect(client_root, exception_listener=seen.append) as context:
        consumer, other = context.consumer("orders"), context.consumer("prices", subscription="s")
        members_of(subscriber_of(consumer)).session.close()
        wait_until(lambda: bool(seen))
        assert [type(error) for error in seen] == [SessionEndedException]
        watch_of(context).look()
        assert len(seen) == 1
        assert other.receive(0) is None
    assert not threads()


def test_lost_store_is_told_once_until_it_answers(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: after LOST_AFTER_S without an answer, and again when it is lost again."""
    seen: list[Exception] = []
    context = opened(seen.append)
    consumer, clock = context.consumer("orders"), [0.0]
    watch, home = watch_of(context), home_of(records_of(context))
    monkeypatch.setattr(watch, "_clock_s", lambda: clock[0])

    def fail() -> Any:
        raise StoreBusyError("the database is away")

    for told in (1, 2):
        with monkeypatch.context() as away:
            away.setattr(home, "sessions", fail)
            watch.look()
            clock[0] += connection_watch.LOST_AFTER_S - 0.1
            watch.look()
            assert len(seen) == told - 1
            for _ in range(3):
                clock[0] += 0.2
                watch.look()
        assert [type(error) for error in seen] == [ConnectionLostException] * told
        assert f"the store of server {HOME} has not answered for 5 s: StoreBusyError: the database is away" in str(
            seen[-1]
        )
        watch.look()
    assert consumer.receive(0) is None, "a consumer continues when its store answers"
    assert len(seen) == 2


@pytest.mark.parametrize("what", ["client id app", "temporary destinations"])
def test_ended_session_of_the_connection_itself_is_told(
    opened: Opened, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10, C15: another connection may take the client id, others delete the temporary destinations."""
    seen: list[Exception] = []
    context = opened(seen.append, client_id="app" if what.startswith("client") else None)
    if what.startswith("temporary"):
        context.create_temporary_queue()
    watch = watch_of(context)
    watch.look()
    assert seen == []
    with monkeypatch.context() as ended:
        ended.setattr(home_of(records_of(context)), "sessions", dict)
        watch.look()
        watch.look()
    assert [type(error) for error in seen] == [ConnectionLostException]
    assert f"the session that keeps the {what} of this connection has ended" in str(seen[0])


def test_listener_that_raises_or_closes_does_no_harm(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """D3: the error of the application is logged, and what comes next is told; it may close the connection."""
    seen: list[Exception] = []

    def listen(error: Exception) -> None:
        seen.append(error)
        if len(seen) == 2:
            context.close()
        raise ValueError("bad listener")

    context = opened(listen)
    for number in (1, 2):
        members_of(subscriber_of(context.consumer("orders"))).session.close()
        with caplog.at_level(logging.WARNING, "spark_jms"):
            watch_of(context).look()
        assert len(seen) == number
    assert "bad listener" in caplog.text
    assert context.closed
    with pytest.raises(ClosedError):
        context.consumer("orders")


def test_wrong_listener_is_refused_by_name(client_root: str) -> None:
    """C11"""
    with pytest.raises(OptionError, match="exception_listener is 5, but must be a function"):
        connect(client_root, exception_listener=5)  # type: ignore[arg-type]


def test_pool_passes_it_on(client_root: str) -> None:
    """T17"""
    seen: list[Exception] = []
    with connect_pool(client_root, exception_listener=seen.append) as pool, pool.consumer("orders") as consumer:
        members_of(subscriber_of(consumer)).session.close()
        watch_of(pool.context()).look()
        assert [type(error) for error in seen] == [SessionEndedException]


def test_one_way_producer_without_a_listener_uses_that_of_the_connection() -> None:
    """T11: a listener of its own comes first."""
    seen: list[Exception] = []
    own: list[Exception] = []
    factory = ConnectionFactory(one_way_send_mode="enabled", one_way_send_window_size=300)
    with (
        memory_domain(orders="queue") as root,
        connect(root, connection_factory=factory, exception_listener=seen.append) as context,
        pytest.MonkeyPatch.context() as patch,
    ):

        def admit(servers: object) -> None:
            raise OSError("the network is down")

        patch.setattr(domain_of(context).log("orders"), "admit", admit)
        context.producer("orders").send(text="a", delivery_mode="NON_PERSISTENT")
        context.producer("orders", exception_listener=own.append).send(text="b", delivery_mode="NON_PERSISTENT")
        wait_until(lambda: bool(seen and own))
    assert ([str(e) for e in seen], [str(e) for e in own]) == (["the network is down"], ["the network is down"])


def test_servers_of_consumers_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D3, D4: a store that is away is told, with a server that is stopped only the consumers that are pinned to it; a consumer with an
    exception listener of its own is left to that."""
    monkeypatch.setattr(connection_watch, "LOOK_EVERY_S", 3600)
    monkeypatch.setattr(connection_watch, "LOST_AFTER_S", 0)
    seen: list[Exception] = []
    own: list[Exception] = []
    root = applied(tmp_path, queue_on("a", "b", "c"))
    with connect(root, exception_listener=seen.append) as context:
        watch = watch_of(context)
        everything = context.consumer("orders")
        with Away(root, "b"):
            watch.look()
            watch.look()
            assert [type(error) for error in seen] == [ConnectionLostException]
            assert "the store of server b" in str(seen.pop())
        watch.look()
        assert seen == []
        pinned = context.consumer("c@orders")
        context.consumer("c@orders", listener=print, exception_listener=own.append)
        stop_server(Domain(root), "c")
        wait_until(lambda: bool(own))
        wait_until(lambda: _looked(watch.look, seen))
        assert [type(error) for error in seen] == [MemberLostException]
        watch.look()
        assert len(seen) == 1
        with pytest.raises(MemberLostException):
            pinned.receive(0)
        assert everything.receive(0) is None
        start_server(Domain(root), "c")


def _looked(look: Callable[[], None], seen: list[Exception]) -> bool:
    look()
    return bool(seen)
