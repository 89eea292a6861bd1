"""Serving the page: localhost without a token, any other address only with one.

Features: M8 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from spark_jms.admin.domain_sample import DomainSample, check_exposure, is_allowed
from spark_jms.console.history import History
from spark_jms.console.page import page

SAMPLE_EVERY_S = 2.0
_log = logging.getLogger("spark_jms.console")
_http_log = _log.getChild("http")  # aiohttp logs the traceback of each request that is not HTTP
_http_log.setLevel(logging.CRITICAL)
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "Cache-Control": "no-store"}


class Console:
    """Takes a sample every two seconds in a thread, one at a time. When one fails, the page keeps the last and says why."""

    def __init__(self, take: Callable[[], DomainSample], token: str | None = None) -> None:
        self._take, self._token = take, token
        self._history = History()
        self._error = ""

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/", self._page)
        application.cleanup_ctx.append(self._sampling)
        return application

    async def _page(self, request: web.Request) -> web.Response:
        if not is_allowed(self._token, request.headers.get("Authorization", ""), request.query.get("token", "")):
            return web.Response(
                status=401, text="a token is needed: /?token=… or Authorization: Bearer …", headers=_HEADERS
            )
        try:
            text = page(self._history, SAMPLE_EVERY_S, self._error)
        except Exception:  # aiohttp would tell the muted log alone
            _log.exception("the page cannot be made")
            raise
        return web.Response(text=text, content_type="text/html", headers=_HEADERS)

    async def _sampling(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._sample_for_ever())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _sample_for_ever(self) -> None:
        while True:
            try:
                self._history.add(await asyncio.to_thread(self._take))
                self._error = ""
            except Exception as error:  # noqa: BLE001 - the page shows it
                self._error = f"{type(error).__name__}: {error}"
            await asyncio.sleep(SAMPLE_EVERY_S)


async def serve(
    take: Callable[[], DomainSample], host: str, port: int, token: str | None, ready: Callable[[str], None]
) -> None:
    """Until it is cancelled. `ready` gets the address. Raises OptionError, and OSError when the port is taken."""
    check_exposure(host, token)
    runner = web.AppRunner(Console(take, token).application(), access_log=None, logger=_http_log)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        ready(f"http://{host}:{runner.addresses[0][1]}/")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
