"""Security of the WebHDFS door (R17): tokens, TLS, addresses, modes of files."""

from __future__ import annotations

import asyncio
import io
import json
import random
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from spark_jms.store.errors import SecurityConfigError
from spark_jms.store.net.sockets import client_context, server_context
from spark_jms.store.regions.client.objects import MemoryObjects
from spark_jms.store.webhdfs.__main__ import main as door_alone
from spark_jms.store.webhdfs.door import OPEN_WARNING, Door, DoorOptions, Tokens
from spark_jms.store.webhdfs.files import Files
from tests.harness.processes import forked
from tests.harness.programs.other_user import asked_by_other_user
from tests.harness.services.certificates import certificate
from tests.harness.stores.webhdfs_door import OPTIONS, DoorHarness, run_with_door

TOKEN = "0123456789abcdef-secret"


def tokens(folder: Path) -> Path:
    path = folder / "tokens"
    path.write_text(f"# who token\nalice {TOKEN}\nbob another-secret-of-bob\n", encoding="utf-8")
    path.chmod(0o600)
    return path


def test_requests_need_a_token(tmp_path: Path) -> None:
    """R17: without a valid bearer token the door answers 401 with a body; with one, the user is the token's user."""

    async def use(harness: DoorHarness) -> None:
        assert await harness.refused("GET", "/", "LISTSTATUS") == (401, "AuthenticationException")
        for header in ("Bearer", "Bearer wrong-wrong-wrong-wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"):
            harness.headers = {"Authorization": header}
            assert await harness.refused("GET", "/", "LISTSTATUS") == (401, "AuthenticationException")
        harness.headers = {"Authorization": f"Bearer {TOKEN}"}
        answer = await harness.ok("GET", "/", "GETHOMEDIRECTORY", user_name="bob")
        assert answer == {"Path": "/user/alice"}
        harness.headers = {}
        url = f"http://127.0.0.1:{harness.door.port}/oauth2/token"
        for field in ("client_secret", "refresh_token"):
            async with harness.session.post(url, data={"grant_type": "x", field: TOKEN}) as granted:
                assert json.loads(await granted.read())["access_token"] == TOKEN
        async with harness.session.post(url, data={"client_secret": "wrong-wrong-wrong-wrong"}) as refused:
            assert refused.status == 401

    run_with_door(use, DoorOptions(tokens=Tokens.from_file(tokens(tmp_path))))


def test_requests_of_web_pages_are_refused() -> None:
    """R17: a page in a browser on this machine cannot use the door."""

    async def use(harness: DoorHarness) -> None:
        harness.headers = {"Origin": "http://evil.example"}
        assert await harness.refused("POST", "/x", "TRUNCATE", newlength=0) == (403, "AccessControlException")

    run_with_door(use)


def test_other_addresses_need_tls_and_tokens(tmp_path: Path) -> None:
    """R17: on any address but loopback the door needs both."""

    async def start(host: str, **options: Any) -> None:
        door = Door(lambda: None, DoorOptions(**options))
        try:
            await door.start(host)
        finally:
            await door.stop()

    for host in ("0.0.0.0", "::", "", "192.0.2.1", "somewhere.example"):
        with pytest.raises(SecurityConfigError):
            asyncio.run(start(host))
        with pytest.raises(SecurityConfigError):
            asyncio.run(start(host, tokens=Tokens.from_file(tokens(tmp_path))))
    asyncio.run(start("localhost"))


def test_unsafe_token_files_are_refused(tmp_path: Path) -> None:
    """R17: a token file that other users can read, short tokens and malformed lines are refused."""
    path = tokens(tmp_path)
    for mode in (0o644, 0o640, 0o601, 0o700):
        path.chmod(mode)
        with pytest.raises(SecurityConfigError):
            Tokens.from_file(path)
    path.chmod(0o600)
    for text in ("", "alice short", "alice one two three", "# nothing"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(SecurityConfigError):
            Tokens.from_file(path)
    with pytest.raises(SecurityConfigError):
        Tokens.from_file(tmp_path / "none")


def test_door_speaks_tls(tmp_path: Path) -> None:
    """R17: with TLS and tokens the door opens on any address; plain HTTP gets nothing."""
    cert, key = certificate(tmp_path)

    async def walk() -> None:
        files = await Files.open(MemoryObjects(), lambda: 1, OPTIONS)
        options = DoorOptions(tls=server_context(cert, key), tokens=Tokens.from_file(tokens(tmp_path)))
        door = Door(lambda: files, options)
        await door.start("0.0.0.0")
        trust = ssl.create_default_context(cafile=str(cert))
        base = f"https://localhost:{door.port}/webhdfs/v1"
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            async with session.put(f"{base}/f?op=CREATE", data=b"secret", ssl=trust) as made:
                assert made.status == 201
                assert made.headers["Location"].startswith("swebhdfs://")
            async with session.get(f"{base}/f?op=OPEN", ssl=trust) as read:
                assert await read.read() == b"secret"
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://localhost:{door.port}/webhdfs/v1/f?op=OPEN")
        await door.stop()

    asyncio.run(walk())


def test_forwarding_verifies_the_certificate(tmp_path: Path) -> None:
    """R17: a door that forwards a request first verifies the other door's certificate, whatever names it has; a door with
    another certificate or without TLS gets neither token nor content."""
    mine, other = certificate(tmp_path), certificate(tmp_path, "other-")
    data = random.Random(7).randbytes(3_000_000)
    knocks: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knocks.append(await reader.read(4))
        writer.close()

    async def walk() -> None:
        files = await Files.open(MemoryObjects(), lambda: 1, OPTIONS)
        who = Tokens.from_file(tokens(tmp_path))
        trust = client_context(mine[0].read_text())
        backs = [Door(lambda: files, DoorOptions(tls=server_context(*chain), tokens=who)) for chain in (mine, other)]
        target = [""]
        options = DoorOptions(tls=server_context(*mine), tokens=who, forward_tls=trust)
        front = Door(lambda: None, options, lambda: target[0])
        for door in (*backs, front):
            await door.start("127.0.0.2")
        plain = await asyncio.start_server(listen, "127.0.0.2", 0)
        base = f"https://127.0.0.2:{front.port}/webhdfs/v1"
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            target[0] = f"127.0.0.2:{backs[0].port}"
            async with session.put(f"{base}/f?op=CREATE", allow_redirects=False, ssl=trust) as first:
                assert first.status == 307
                second = first.headers["Location"]
                assert second.startswith(base)
            async with session.put(second, data=io.BytesIO(data), ssl=trust) as made:
                assert (made.status, made.headers["Location"]) == (201, f"swebhdfs://127.0.0.2:{front.port}/f")
            async with session.get(f"{base}/f?op=OPEN", ssl=trust) as read:
                assert await read.read() == data
            status = await (await session.get(f"{base}/f?op=GETFILESTATUS", ssl=trust)).json(content_type=None)
            assert status["FileStatus"]["owner"] == "alice"
            assert front.statistics().forwarded == 4
            for port in (backs[1].port, plain.sockets[0].getsockname()[1]):
                target[0] = f"127.0.0.2:{port}"
                async with session.put(f"{base}/g?op=CREATE&data=true", data=io.BytesIO(data), ssl=trust) as refused:
                    assert refused.status == 503
                    assert b"RetriableException" in await refused.read()
            assert not backs[1].statistics().requests
            assert knocks
            assert all(knock[:1] == b"\x16" for knock in knocks), "the beginning of a handshake, and no more"
        plain.close()
        for door in (front, *backs):
            await door.stop()

    asyncio.run(asyncio.wait_for(walk(), 60))


@pytest.mark.parametrize("wrong", ["mode", "absent"])
def test_door_alone_names_a_wrong_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    """R17: in a line, without a traceback."""
    path = tokens(tmp_path)
    path.chmod(0o644)
    if wrong == "absent":
        path.unlink()
    with pytest.raises(SystemExit) as ended:
        door_alone(["--memory", "--port", "0", "--tokens", str(path)])
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("python -m spark_jms.store.webhdfs: ")
    assert str(path) in told
    assert told.count("\n") == 1


def test_door_alone_warns_when_it_is_open(tmp_path: Path) -> None:
    """R17: with the address, before it serves; and it has no tokens then."""
    command = [sys.executable, "-m", "spark_jms.store.webhdfs", "--memory", "--port", "0", "--open"]
    with forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as door:
        assert door.stdout is not None
        port = int(door.stdout.readline().strip().rpartition(":")[2].rstrip("/"))
        status, _ = asked_by_other_user(port)
        door.terminate()
        _, told = door.communicate(timeout=30)
    assert status == 200
    assert told == f"WARNING: {OPEN_WARNING % f'127.0.0.1:{port}'}\n"
    with pytest.raises(SystemExit):
        door_alone(["--memory", "--port", "0", "--open", "--tokens", str(tokens(tmp_path))])
