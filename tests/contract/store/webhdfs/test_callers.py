"""A WebHDFS door without tokens admits the user that runs it, by what the kernel says of each connection (R17)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import pwd
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from spark_jms.store.errors import SecurityConfigError
from spark_jms.store.net.sockets import server_context
from spark_jms.store.regions.client.objects import MemoryObjects
from spark_jms.store.webhdfs.callers import SocketName, owner_of_socket
from spark_jms.store.webhdfs.door import FORWARDED, FORWARDED_USER, Door, DoorOptions, Tokens
from spark_jms.store.webhdfs.files import Files
from tests.harness.programs.other_user import OTHER_UID, asked_by_other_user
from tests.harness.services.certificates import certificate
from tests.harness.stores.webhdfs_door import OPTIONS, DoorHarness, run_with_door

ME = pwd.getpwuid(os.geteuid()).pw_name
TOKEN = "0123456789abcdef-secret"
LIST = b"GET /webhdfs/v1/?op=LISTSTATUS HTTP/1.1\r\nHost: h\r\n\r\n"


def remote(body: str | bytes) -> tuple[str, str]:
    """The exception and the message of a refusal."""
    told = json.loads(body)["RemoteException"]
    return told["exception"], told["message"]


def connected(client: socket.socket, host: str, port: int) -> socket.socket:
    client.settimeout(30)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind((host, 0))
    client.connect((host, port))
    return client


def reset(client: socket.socket) -> None:
    """Close without a state that keeps the port."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def answered(client: socket.socket) -> bytes:
    client.sendall(LIST)
    return client.recv(65536).partition(b"\r\n")[0]


def with_door_at(host: str, use: Callable[[DoorHarness], Awaitable[None]]) -> None:
    async def run() -> None:
        harness = DoorHarness()
        harness.files = await Files.open(harness.objects, lambda: 1, OPTIONS)
        await harness.door.start(host)
        try:
            await use(harness)
        finally:
            await harness.door.stop()
            await harness.files.close()

    asyncio.run(asyncio.wait_for(run(), 120))


# ---- whom it admits


@pytest.mark.parametrize(
    ("door_at", "client_at"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("127.0.0.1", "::ffff:127.0.0.1")]
)
def test_door_admits_its_own_user_and_refuses_others(door_at: str, client_at: str) -> None:
    """R17: over IPv4, IPv6, and from a socket for both as Java opens it; the refusal names the users and says what to do."""

    async def use(harness: DoorHarness) -> None:
        port = harness.door.port
        query = "/webhdfs/v1/?op=GETHOMEDIRECTORY&user.name=eve&doas=eve"
        status, body = await asyncio.to_thread(asked_by_other_user, port, query, uid=os.geteuid(), host=client_at)
        assert (status, json.loads(body)) == (200, {"Path": f"/user/{ME}"}), "user.name is not believed"
        status, body = await asyncio.to_thread(asked_by_other_user, port, f"{query}&user.name={ME}", host=client_at)
        name, message = remote(body)
        assert (status, name) == (403, "AccessControlException")
        for part in (ME, f"uid {os.geteuid()}", f"uid {OTHER_UID}", "--tokens", "RS_DOOR_TOKENS"):
            assert part in message
        assert harness.door.statistics().refusals == {"AccessControlException": 1}

    with_door_at(door_at, use)


def test_root_is_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """R17: programs of root work for others, as proxies and container daemons do."""

    async def use(harness: DoorHarness) -> None:
        status, body = await asyncio.to_thread(asked_by_other_user, harness.door.port, uid=0)
        assert (status, remote(body)[0]) == (403, "AccessControlException")
        assert "uid 0" in remote(body)[1]
        assert f"uid{OTHER_UID}" in remote(body)[1], "a user without a name"

    monkeypatch.setattr(os, "geteuid", lambda: OTHER_UID)
    run_with_door(use)


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "GET"])
def test_other_users_change_and_read_nothing(method: str) -> None:
    """R17: no operation, in neither of two steps."""
    operations = {
        "PUT": ["CREATE&data=true&overwrite=true", "CREATE", "MKDIRS", "RENAME&destination=/g", "SETOWNER&owner=x"],
        "POST": ["APPEND&data=true", "TRUNCATE&newlength=0"],
        "DELETE": ["DELETE&recursive=true"],
        "GET": ["OPEN", "OPEN&noredirect=true", "GETFILESTATUS", "GETFILECHECKSUM&data=true"],
    }

    async def use(harness: DoorHarness) -> None:
        await harness.put("/f", b"mine")
        for operation in operations[method]:
            target = f"/webhdfs/v1/f?op={operation}&user.name={ME}"
            status, body = await asyncio.to_thread(asked_by_other_user, harness.door.port, target, method=method)
            assert (status, remote(body)[0]) == (403, "AccessControlException"), operation
        assert await harness.get("/f") == b"mine"
        listing = await harness.ok("GET", "/", "LISTSTATUS")
        assert [file["pathSuffix"] for file in listing["FileStatuses"]["FileStatus"]] == ["f"]

    run_with_door(use)


def test_door_with_tls_admits_its_own_user(tmp_path: Path) -> None:
    """R17: TLS alone does not say who asks."""
    cert, key = certificate(tmp_path)
    asked: list[tuple[SocketName, SocketName]] = []

    def owner(client: SocketName, door: SocketName) -> int | None:
        asked.append((client, door))
        return owner_of_socket(client, door) if len(asked) == 1 else OTHER_UID

    async def walk() -> None:
        files = await Files.open(MemoryObjects(), lambda: 1, OPTIONS)
        door = Door(lambda: files, DoorOptions(tls=server_context(cert, key)), find_owner=owner)
        await door.start()
        trust = ssl.create_default_context(cafile=str(cert))
        for status in (200, 403):
            async with aiohttp.ClientSession() as session:
                url = f"https://127.0.0.1:{door.port}/webhdfs/v1/?op=LISTSTATUS"
                for _ in range(2):
                    async with session.get(url, ssl=trust, server_hostname="localhost") as answer:
                        assert answer.status == status
        await door.stop()

    asyncio.run(asyncio.wait_for(walk(), 60))
    assert len(asked) == 3, "an admitted connection is not asked about again; a refused one is"


# ---- connections


def test_one_look_up_serves_a_connection() -> None:
    """R17: the next request of a connection costs no look-up, the next connection costs one."""

    async def use(harness: DoorHarness) -> None:
        for _ in range(5):
            await harness.ok("GET", "/", "LISTSTATUS")
        assert harness.door.statistics().lookups == 1
        for number in range(3):
            async with aiohttp.ClientSession() as session, session.get(harness.url("/", "LISTSTATUS")) as answer:
                assert answer.status == 200
            assert harness.door.statistics().lookups == 2 + number

    run_with_door(use)


def test_reused_client_port_is_another_client() -> None:
    """R17: of an admitted connection, and of a refused one."""

    async def use(harness: DoorHarness) -> None:
        port = harness.door.port
        client = connected(socket.socket(), "127.0.0.1", port)
        mine = client.getsockname()[1]
        assert b" 200 " in await asyncio.to_thread(answered, client)
        reset(client)
        for _ in range(2):
            status, _ = await asyncio.to_thread(asked_by_other_user, port, client_port=mine)
            assert status == 403
            status, _ = await asyncio.to_thread(asked_by_other_user, port, client_port=mine, uid=os.geteuid())
            assert status == 200

    run_with_door(use)


def test_connection_that_closed_before_the_look_up_is_refused() -> None:
    """R17: the kernel shows the sockets of closed connections as those of user 0, and here the door's user is 0 too."""

    async def use(harness: DoorHarness) -> None:
        await harness.put("/f", b"content")
        before = harness.door.statistics().lookups
        client = connected(socket.socket(), "127.0.0.1", harness.door.port)
        client.sendall(b"DELETE /webhdfs/v1/f?op=DELETE HTTP/1.1\r\nHost: h\r\n\r\n")
        client.close()  # the event loop runs only after this
        while harness.door.statistics().lookups == before:
            await asyncio.sleep(0.01)
        assert harness.door.statistics().refusals == {"AccessControlException": 1}
        assert await harness.get("/f") == b"content"

    run_with_door(use)


def test_kernel_names_the_owner_of_open_sockets_only() -> None:
    """R17: connected or half closed; not closed, not of other addresses, and not the listener of a port."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        connected(client, "127.0.0.1", listener.getsockname()[1])
        door, _ = listener.accept()
        ends = door.getpeername(), door.getsockname()
        with door:
            assert owner_of_socket(*ends) == os.geteuid()
            assert owner_of_socket((ends[0][0], 1), ends[1]) is None
            assert owner_of_socket(("127.0.0.2", ends[0][1]), ends[1]) is None
            assert owner_of_socket(ends[1], (ends[0][0], 1)) is None, "the listener"
            client.shutdown(socket.SHUT_WR)
            assert owner_of_socket(*ends) == os.geteuid()
            client.close()
            assert owner_of_socket(*ends) is None
        assert owner_of_socket(*ends) is None, "TIME_WAIT"


@pytest.mark.parametrize(
    ("found", "status", "name"),
    [
        (None, 403, "AccessControlException"),
        (OSError(errno.EPERM, "Operation not permitted"), 403, "AccessControlException"),
        (OSError(errno.EPROTONOSUPPORT, "Protocol not supported"), 403, "AccessControlException"),
        (OSError(errno.EMFILE, "Too many open files"), 503, "RetriableException"),
        (OSError(errno.ENOBUFS, "No buffer space available"), 503, "RetriableException"),
    ],
    ids=["no socket", "not allowed", "not supported", "files", "memory"],
)
def test_unknown_callers_are_refused_by_name(found: OSError | None, status: int, name: str) -> None:
    """R17: as from another network namespace, or in a sandbox; a shortage passes, and the client tries again."""

    def owner(client: SocketName, door: SocketName) -> int | None:
        if found is not None:
            raise found
        return None

    async def use(harness: DoorHarness) -> None:
        harness.door = Door(lambda: harness.files, find_owner=owner)
        await harness.door.start()
        try:
            answered, body = await harness.ask("GET", "/", "LISTSTATUS")
            assert (answered, remote(body)[0]) == (status, name)
            assert status == 503 or "--tokens" in remote(body)[1]
        finally:
            await harness.door.stop()

    async def run() -> None:
        async with DoorHarness() as harness:
            first = harness.door
            await use(harness)
            harness.door = first

    asyncio.run(asyncio.wait_for(run(), 60))


# ---- tokens, and a door that is open


def test_token_admits_another_user(tmp_path: Path) -> None:
    """R17: where there are tokens, they alone decide."""
    path = tmp_path / "tokens"
    path.write_text(f"alice {TOKEN}\n")
    path.chmod(0o600)

    async def use(harness: DoorHarness) -> None:
        query, headers = "/webhdfs/v1/?op=GETHOMEDIRECTORY", {"Authorization": f"Bearer {TOKEN}"}
        status, body = await asyncio.to_thread(asked_by_other_user, harness.door.port, query, headers=headers)
        assert (status, json.loads(body)) == (200, {"Path": "/user/alice"})
        status, _ = await asyncio.to_thread(asked_by_other_user, harness.door.port, query)
        assert status == 401
        assert (await harness.ask("GET", "/", "LISTSTATUS"))[0] == 401, "the door's own user"

    run_with_door(use, DoorOptions(tokens=Tokens.from_file(path)))


def test_open_door_admits_every_user(tmp_path: Path) -> None:
    """R17: and believes user.name; it cannot have tokens too, nor another address than loopback."""

    async def use(harness: DoorHarness) -> None:
        query = "/webhdfs/v1/?op=GETHOMEDIRECTORY&user.name=eve"
        status, body = await asyncio.to_thread(asked_by_other_user, harness.door.port, query)
        assert (status, json.loads(body)) == (200, {"Path": "/user/eve"})
        assert harness.door.statistics().lookups == 0

    run_with_door(use, DoorOptions(open=True))
    path = tmp_path / "tokens"
    path.write_text(f"alice {TOKEN}\n")
    path.chmod(0o600)
    with pytest.raises(SecurityConfigError, match="both"):
        asyncio.run(Door(lambda: None, DoorOptions(open=True, tokens=Tokens.from_file(path))).start())
    with pytest.raises(SecurityConfigError):
        asyncio.run(Door(lambda: None, DoorOptions(open=True)).start("0.0.0.0"))


# ---- doors that forward


async def forwarding(back: DoorHarness, options: DoorOptions | None = None) -> DoorHarness:
    front = DoorHarness()
    front.session = back.session
    front.door = Door(lambda: None, options, lambda: f"127.0.0.1:{back.door.port}")
    await front.door.start()
    return front


def test_forwarding_door_names_the_user_that_it_admitted(tmp_path: Path) -> None:
    """R17, R19: not the one that the client claims to be; other users are refused before anything is forwarded."""
    path = tmp_path / "tokens"
    path.write_text(f"alice {TOKEN}\n")
    path.chmod(0o600)

    async def use(back: DoorHarness) -> None:
        for options, user in (
            (None, ME),
            (DoorOptions(open=True), "eve"),
            (DoorOptions(tokens=Tokens.from_file(path)), "alice"),
        ):
            front = await forwarding(back, options)
            front.headers = {FORWARDED_USER: "mallory", "Authorization": f"Bearer {TOKEN}"}
            try:
                answer = await front.ok("GET", "/", "GETHOMEDIRECTORY", user_name="eve")
                assert answer == {"Path": f"/user/{user}"}
                assert front.door.statistics().forwarded == 1
                if options is None:
                    status, body = await asyncio.to_thread(asked_by_other_user, front.door.port)
                    assert (status, remote(body)[0]) == (403, "AccessControlException")
                    assert front.door.statistics().forwarded == 1
            finally:
                await front.door.stop()

    run_with_door(use)


def test_door_of_an_older_release_cannot_vouch_for_its_callers() -> None:
    """R17, R19: it forwards for every user of its machine and names none, so Hadoop's client is sent to the next address."""

    async def use(harness: DoorHarness) -> None:
        harness.headers = {FORWARDED: "1"}
        status, body = await harness.ask("GET", "/", "LISTSTATUS")
        name, message = remote(body)
        assert (status, name) == (503, "StandbyException")
        assert message.endswith(": StandbyException"), "Hadoop's client looks for it"
        assert "older release" in message
        harness.headers = {FORWARDED: "1", FORWARDED_USER: "bob"}
        assert await harness.ok("GET", "/", "GETHOMEDIRECTORY") == {"Path": "/user/bob"}
        status, body = await asyncio.to_thread(asked_by_other_user, harness.door.port, headers=harness.headers)
        assert (status, remote(body)[0]) == (403, "AccessControlException"), "the forwarding door is another user's"

    run_with_door(use)
