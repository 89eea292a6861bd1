"""Foreign bytes at the port of a daemon and of its client: each refusal is named, nothing hangs or grows, and the daemon
continues to serve (R17)."""

from __future__ import annotations

import asyncio
import hashlib
import random
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import psutil
import pytest

from spark_jms.store.errors import StoreError
from spark_jms.store.net.frames import NONCE_BYTES
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.directory.global_directory import GlobalDirectory
from spark_jms.store.regions.protocol import messages
from spark_jms.store.regions.protocol.connection import DAEMON, DaemonConnection, accepted, connect
from spark_jms.store.regions.protocol.messages import RegionHello, RegionMessage, encode
from tests.harness.stores.regions_cluster import MB, FaultyDaemons, Make, store_at

SEED = 20_261_121
ROUND = 50  # frames of one connection, at most
GROWTH_BYTES = 64 * MB
ANSWER_S = 20.0

TYPES = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, RegionMessage)]
NAMES = ["s.000", "fuzz.000", "", ".", "..", "../../x", "a/b", "\0", "x" * 300, "é", "s.000\n", "-rm", "fuzz.001"]


def value_for(kind: Any, chance: random.Random) -> Any:
    """A value of about this type, mostly a boundary value."""
    text = str(kind)
    if chance.random() < 0.01:
        return chance.choice([None, -1, "x", b"y", [], {}, 1.5, True, [[[]]]])
    if text.startswith("list[tuple"):
        return [(value_for("int", chance), chance.randbytes(chance.randrange(50))) for _ in range(chance.randrange(4))]
    if text.startswith("list"):
        return [value_for("int", chance) for _ in range(chance.randrange(4))]
    if "int" in text:
        return chance.choice([0, 1, 2, 3, 7, 64, -1, 2**31, 2**32, 2**63 - 1, -(2**63), chance.randrange(10_000)])
    if "float" in text:
        return chance.choice([0.0, -1.0, 1e300, float("nan"), float("inf")])
    if "bool" in text:
        return chance.random() < 0.5
    if "bytes" in text:
        return chance.randbytes(chance.randrange(100))
    return chance.choice(NAMES)


def write_and_end(connection: DaemonConnection, data: bytes) -> None:
    """Past the connection's own framing."""
    transport = connection._transport
    transport.write(data)
    transport.write_eof()


def frame(number: int, chance: random.Random) -> bytes:
    kind = chance.choice(TYPES)
    if kind is RegionMessage or kind.__name__ in ("Shutdown", "Drain", "Halt", "Remove", "RemoveRequest"):
        kind = messages.Ping  # the daemon would do these
    fields = {name: value_for(annotation, chance) for name, annotation in kind.__annotations__.items()}
    body = msgspec.msgpack.encode([kind.__name__, *fields.values()])
    how = chance.random()
    if how < 0.02:
        body = mutated(body, chance)
    head = struct.pack("<II", len(body), number)
    data = head + struct.pack("<II", zlib.crc32(head), zlib.crc32(body)) + body
    if how > 0.98:
        data = mutated(data, chance)
    return data


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        what, at = chance.random(), chance.randrange(len(changed) + 1)
        if what < 0.5 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif what < 0.75:
            del changed[at : at + chance.randrange(8)]
        else:
            changed[at:at] = chance.randbytes(chance.randrange(1, 8))
    return bytes(changed)


class Fuzzer:
    def __init__(self, daemons: FaultyDaemons) -> None:
        self.directory = GlobalDirectory(str(daemons.path))
        self.config = self.directory.config()
        self.spec = self.config.daemons[0]
        self.chance = random.Random(SEED)
        self.frames = 0

    async def unauthenticated(self) -> None:
        """Without proof of the secret: random bytes, a damaged handshake, and silence."""
        reader, writer = await asyncio.open_connection(self.spec.address, self.spec.port)
        hello = (
            DAEMON.magic
            + self.chance.randbytes(NONCE_BYTES)
            + hashlib.sha256(self.directory.identity(self.config)).digest()
            + bytes(32)
        )
        writer.write(
            self.chance.choice(
                [self.chance.randbytes(200), mutated(hello, self.chance), hello, b"GET / HTTP/1.0\r\n\r\n"]
            )
        )
        writer.write_eof()
        await asyncio.wait_for(drained(reader), ANSWER_S)
        writer.transport.abort()
        self.frames += 1

    async def authenticated(self) -> None:
        """Random frames after a valid handshake and, mostly, a valid hello."""
        secret, identity = self.directory.secret(0), self.directory.identity(self.config)
        connection = await connect(self.spec.address, self.spec.port, secret, identity)
        try:
            data = b""
            role = self.chance.choice(["client", "client", "admin", "nobody"])
            number = 0
            if self.chance.random() < 0.95:
                data, number = encode(0, RegionHello(role, -1, "", "fuzz")), 1
            for each in range(self.chance.randrange(1, ROUND)):
                data += frame(number + each, self.chance)
                self.frames += 1
            write_and_end(connection, data)
            await asyncio.wait_for(connection.run(lambda answer: None), ANSWER_S)
        finally:
            connection.abort()


async def drained(reader: asyncio.StreamReader) -> None:
    try:
        while await reader.read(1 << 16):
            pass
    except OSError:
        return


def resident(daemons: FaultyDaemons) -> int:
    """Memory of the process without shared memory, which has a limit of its own."""
    info = psutil.Process(daemons.processes[0].pid).memory_info()
    return int(info.rss - info.shared)


def storm(daemons: FaultyDaemons, frames: int) -> None:
    async def run() -> None:
        async with store_at(daemons.path, "s", 0) as store:
            objects = await store.connection("c")
            handle = await objects.create(b"0")
            fuzzer = Fuzzer(daemons)
            before, begun_s, waits = 0, time.monotonic(), []
            while fuzzer.frames < frames:
                if not before and fuzzer.frames > frames // 10:
                    before = resident(daemons)
                kinds: list[Callable[[], Any]] = [fuzzer.authenticated] * 6 + [fuzzer.unauthenticated] * 2
                for done in await asyncio.gather(*(kind() for kind in kinds), return_exceptions=True):
                    if isinstance(done, BaseException) and not isinstance(done, OSError):
                        raise done
                asked_s = time.monotonic()
                await objects.update(handle, str(fuzzer.frames).encode())
                assert await objects.read(handle) == str(fuzzer.frames).encode()
                waits.append(time.monotonic() - asked_s)
            growth = resident(daemons) - before
            print(
                f"\n{fuzzer.frames} frames and requests in {time.monotonic() - begun_s:.0f} s, daemon grew "
                f"{growth / MB:.1f} MB, writes meanwhile at most {max(waits) * 1000:.0f} ms"
            )
            assert growth < GROWTH_BYTES

    asyncio.run(run())
    check_daemons(daemons)


def check_daemons(daemons: FaultyDaemons) -> None:
    assert [process.poll() for process in daemons.processes.values()] == [None, None]
    said = daemons.output()
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:3000]
    assert "a fault of the daemon itself" not in said


def test_daemon_survives_random_frames_and_requests(make_daemons: Make) -> None:
    """R17: 20,000, with and without the secret."""
    storm(make_daemons(2, "64M"), 20_000)


@pytest.mark.soak
def test_daemon_survives_many_random_frames_and_requests(make_daemons: Make) -> None:
    """R17: 200,000."""
    storm(make_daemons(2, "64M"), 200_000)


def test_slow_connections_do_not_delay_clients(make_daemons: Make) -> None:
    """R17: 3,000 connections send nothing or a few bytes; the daemon serves legitimate clients all the time."""
    daemons = make_daemons(2, "64M")

    async def run() -> None:
        async with store_at(daemons.path, "s", 0) as store:
            objects = await store.connection("c")
            spec = GlobalDirectory(str(daemons.path)).config().daemons[0]
            before = resident(daemons)
            writers = []
            for number in range(3_000):
                _, writer = await asyncio.open_connection(spec.address, spec.port)
                writer.write(DAEMON.magic[: number % 8])
                writers.append(writer)
                if number % 100 == 0:
                    await objects.create(b"served")
            async with store_at(daemons.path, "another", 0):
                pass
            assert resident(daemons) - before < GROWTH_BYTES
            for writer in writers:
                writer.transport.abort()
            await objects.create(b"still")

    asyncio.run(run())
    check_daemons(daemons)


def test_client_survives_a_daemon_that_answers_anything(make_daemons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """R17: the client ends with a named error, and does not hang."""
    daemons = make_daemons(2, "64M")
    directory = GlobalDirectory(str(daemons.path))
    config = directory.config()
    chance = random.Random(SEED)

    async def accept(connection: DaemonConnection) -> None:
        await connection.proved()
        await connection.first()
        connection.send(RegionHello("daemon", 0, "x"))
        write_and_end(connection, b"".join(frame(1 + each, chance) for each in range(chance.randrange(1, 50))))
        await connection.run(lambda question: None)

    async def run() -> None:
        loop, liars = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def made(connection: DaemonConnection) -> None:
            liars.add(loop.create_task(accept(connection)))

        server = await loop.create_server(
            lambda: accepted(directory.secret(0), directory.identity(config), made), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]

        async def connect_to_liar(host: str, _: int, secret: bytes, identity: bytes) -> Any:
            return await connect(host, port, secret, identity)

        monkeypatch.setattr("spark_jms.store.regions.client.attachment.connect", connect_to_liar)
        for _ in range(100):
            with pytest.raises(StoreError):
                await asyncio.wait_for(StoreInstance.open(directory, "s", daemon=0), ANSWER_S)
        server.close()
        await asyncio.gather(*liars)

    asyncio.run(run())
