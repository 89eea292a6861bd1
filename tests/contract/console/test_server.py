"""The server of `jmsq console` (M8)."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit

import pytest

from spark_jms.admin.domain_sample import DomainSample
from spark_jms.console.server import serve


def no_sample() -> DomainSample:
    raise OSError("away")


def test_requests_that_are_not_http_leave_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """M8: they are answered, and the page is served as before."""

    async def answer(port: int, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        found = await reader.read()
        writer.close()
        return found

    async def attack() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(no_sample, "127.0.0.1", 0, None, ready.set_result))
        port = urlsplit(await ready).port or 0
        for junk in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"):
            assert b"400 Bad Request" in await answer(port, junk)
        page = await answer(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert page.startswith(b"HTTP/1.1 200 OK")
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    with caplog.at_level(logging.DEBUG):
        asyncio.run(asyncio.wait_for(attack(), 60))
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_page_that_cannot_be_made_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """M8: aiohttp reports it to the log that its junk is kept out of."""

    async def ask() -> bytes:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(no_sample, "127.0.0.1", 0, None, ready.set_result))
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(await ready).port or 0)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        found = await reader.read()
        writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        return found

    def broken(*_: object) -> str:
        raise ValueError("a broken page")

    monkeypatch.setattr("spark_jms.console.server.page", broken)
    assert asyncio.run(asyncio.wait_for(ask(), 60)).startswith(b"HTTP/1.1 500")
    (record,) = [record for record in caplog.records if record.name == "spark_jms.console"]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a broken page"
