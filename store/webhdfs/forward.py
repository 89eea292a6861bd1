"""Forwards a request to the daemon that serves the namespace, a chunk at a time in both directions."""

from __future__ import annotations

import asyncio
import ssl

import aiohttp
from aiohttp import web
from yarl import URL

from spark_jms.store.webhdfs.errors import RetriableError

_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authorization", "expect"}
CONNECT_TIMEOUT_S = 2.0
IDLE_TIMEOUT_S = 60.0


class Forwarder:
    """Forwards the caller's Host header too, so that the second step of a request comes back through this door."""

    def __init__(self, tls: ssl.SSLContext | None, secure: bool) -> None:
        self._scheme = "https" if secure else "http"
        connector = aiohttp.TCPConnector(ssl=tls if tls is not None else True, limit=256)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=IDLE_TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, skip_auto_headers=("Content-Type",)
        )

    async def close(self) -> None:
        await self._session.close()

    async def forward(self, request: web.Request, target: str, mark: dict[str, str]) -> web.StreamResponse:
        """RetriableError when the other daemon cannot be reached, or closes the connection before it answered."""
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        headers += list(mark.items())
        url = URL(f"{self._scheme}://{target}{request.raw_path}", encoded=True)
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method,
                url,
                headers=headers,
                data=request.content.iter_any() if request.body_exists else None,
                allow_redirects=False,
            ) as answer:
                response = web.StreamResponse(status=answer.status)
                for name in ("Location", "WWW-Authenticate"):
                    if name in answer.headers:
                        response.headers[name] = answer.headers[name]
                if answer.content_length is not None and answer.content_length <= 1024 * 1024:
                    return web.Response(status=answer.status, headers=response.headers, body=await answer.read())
                response.content_length = answer.content_length
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            if response is not None and response.prepared:
                if request.transport is not None:
                    request.transport.abort()
                return response
            raise RetriableError(f"The daemon at {target} that serves the namespace did not answer: {error}") from error
