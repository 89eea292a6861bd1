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
