"""One connection (R17): when it hands messages over, and when it stops reading."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jms.store.errors import ProtocolError
from spark_jms.store.net.frames import NONCE_BYTES, Handshake
from spark_jms.store.regions.daemon.daemon import Daemon
from spark_jms.store.regions.protocol.connection import DAEMON, DaemonConnection, accepted
from spark_jms.store.regions.protocol.messages import Ping, RegionMessage, Reply, encode

SECRET, IDENTITY = b"secret", b"identity"


class Wire(asyncio.Transport):
    """What the connection does to its transport."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closing = False
        self.written: list[bytes] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closing = True

    abort = close


def greeted() -> tuple[DaemonConnection, Wire]:
    connection, wire = stranger()
    client = Handshake.connector(DAEMON, SECRET, IDENTITY, bytes(NONCE_BYTES), "here")
    connection.data_received(client.receive(b"".join(wire.written)))
    client.receive(wire.written[-1])
    assert client.proved
    wire.written.clear()
    return connection, wire


def stranger() -> tuple[DaemonConnection, Wire]:
    """One that a listener accepted, before its handshake."""
    connection, wire = accepted(SECRET, IDENTITY, lambda connection: None), Wire()
    connection.connection_made(wire)
    return connection, wire


def replies(*numbers: int) -> bytes:
    return b"".join(encode(number, Reply(number)) for number in numbers)


async def running(
    connection: DaemonConnection, receive: Callable[[RegionMessage], None], **how: bool
) -> asyncio.Task[str]:
    task = asyncio.create_task(connection.run(receive, **how))
    await asyncio.sleep(0)
    return task


async def ended(task: asyncio.Task[str]) -> str:
    return await asyncio.wait_for(task, 5.0)


def test_a_connection_hands_a_message_over_in_the_turn_in_which_it_arrives() -> None:
    """R17: whole messages at once and in order, whatever the cut."""

    async def run() -> None:
        connection, wire = greeted()
        came: list[RegionMessage] = []
        task = await running(connection, came.append)
        data = replies(0, 1, 2)
        connection.data_received(data[:-1])
        assert came == [Reply(0), Reply(1)]
        connection.data_received(data[-1:])
        assert came == [Reply(0), Reply(1), Reply(2)]
        assert wire.reading
        connection.eof_received()
        assert await ended(task) == "ConnectionError: the peer closed the connection"
        assert wire.closing

    asyncio.run(run())


def test_a_connection_stops_reading_while_messages_wait() -> None:
    """R17: before `run` it keeps what one read has brought, and loses nothing of it."""

    async def run() -> None:
        connection, wire = greeted()
        connection.data_received(replies(0, 1))
        assert not wire.reading
        assert await connection.first() == Reply(0)
        came: list[RegionMessage] = []
        task = await running(connection, came.append)
        assert came == [Reply(1)]
        assert wire.reading
        connection.close()
        assert await ended(task) == "closed"

    asyncio.run(run())


@pytest.mark.parametrize("waits", [True, False])
def test_a_daemon_stops_reading_from_a_client_that_takes_no_answers(waits: bool) -> None:
    """R17: between daemons neither waits, because they would wait for each other."""

    async def run() -> None:
        connection, wire = greeted()
        came: list[RegionMessage] = []

        def receive(message: RegionMessage) -> None:
            came.append(message)
            connection.pause_writing()

        task = await running(connection, receive, waits_for_writing=waits)
        connection.data_received(replies(0, 1, 2))
        assert len(came) == (1 if waits else 3)
        assert wire.reading is not waits
        connection.resume_writing()
        assert len(came) == (2 if waits else 3)
        connection.resume_writing()
        assert came == [Reply(0), Reply(1), Reply(2)]
        connection.resume_writing()
        assert wire.reading
        connection.connection_lost(None)
        await ended(task)

    asyncio.run(run())


def test_a_closed_connection_hands_nothing_over() -> None:
    """R17: the receiver may close it over the first of several messages."""

    async def run() -> None:
        connection, wire = greeted()
        came: list[RegionMessage] = []

        def receive(message: RegionMessage) -> None:
            came.append(message)
            connection.abort()

        task = await running(connection, receive)
        connection.data_received(replies(0, 1))
        assert came == [Reply(0)]
        connection.send(Ping())
        assert wire.written == []
        assert await ended(task) == "closed"

    asyncio.run(run())


def test_a_bad_frame_ends_a_connection_and_an_error_of_the_receiver_is_raised() -> None:
    """R17: `run` returns the peer's violation as its reason, and raises the receiver's own error."""

    async def run() -> None:
        connection, wire = greeted()
        task = await running(connection, lambda message: None)
        connection.data_received(replies(1))
        assert (await ended(task)).startswith("ProtocolError: ")
        assert wire.closing

        def fault(message: RegionMessage) -> None:
            raise LookupError("a fault")

        connection, wire = greeted()
        task = await running(connection, fault)
        connection.data_received(replies(0))
        with pytest.raises(LookupError):
            await ended(task)
        assert wire.closing

    asyncio.run(run())


def test_a_handshake_is_short() -> None:
    """R17: a connection keeps at most one unfinished step of what a stranger sends."""

    async def run() -> None:
        connection, wire = stranger()
        connection.data_received(b"x" * (len(DAEMON.magic) - 1))
        assert not wire.closing
        connection.data_received(b"x")
        assert wire.closing
        with pytest.raises(ProtocolError, match="does not speak this protocol"):
            await connection.proved()

    asyncio.run(run())


async def _dial(connection: object) -> set[int]:
    """What a daemon is still dialling after it has dialled daemon 1."""
    dialing = {1}

    async def connect(*_: object) -> object:
        return connection

    async def run(work: Callable[[], bytes]) -> bytes:
        return work()

    async def secret(index: int) -> bytes:
        return b""

    daemon = SimpleNamespace(
        config=SimpleNamespace(daemons=[None, SimpleNamespace(address="127.0.0.1", port=1)]),
        directory=SimpleNamespace(is_running=lambda _: True, secret=lambda _: b""),
        spec=SimpleNamespace(index=0),
        incarnation=1,
        log=SimpleNamespace(logger=logging.getLogger("dial")),
        _identity=None,
        _hello=None,
        _dialing=dialing,
        _secrets=SimpleNamespace(of=secret),
        _workers=SimpleNamespace(run=run),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_jms.store.regions.daemon.daemon.connect", connect)
        await Daemon._dial_one(daemon, 1)  # type: ignore[arg-type]
    return dialing


@pytest.mark.parametrize("answer", [asyncio.TimeoutError(), Ping()])
def test_a_daemon_disconnects_a_peer_that_does_not_introduce_itself(answer: object) -> None:
    """R17: the daemon that dialled does so as well: its connection does not stay open."""
    aborted: list[bool] = []

    async def first() -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    other = SimpleNamespace(send=lambda _: None, first=first, abort=lambda: aborted.append(True))
    assert asyncio.run(_dial(other)) == set()
    assert aborted == [True]
