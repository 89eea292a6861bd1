"""A WebHDFS door in the event loop of a test, on objects in memory."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from spark_jms.store.regions.client.objects import MemoryObjects
from spark_jms.store.webhdfs.blocks import FilesOptions
from spark_jms.store.webhdfs.door import Door, DoorOptions
from spark_jms.store.webhdfs.files import Files

OPTIONS = FilesOptions(owner="owner", block_bytes=1024, inline_bytes=64)


class DoorHarness:
    """A door in this event loop, and short methods to send it requests."""

    def __init__(self, options: DoorOptions | None = None) -> None:
        self.objects = MemoryObjects(max_object_bytes=64 * 1024)
        self.files: Files | None = None
        self.door = Door(lambda: self.files, options or DoorOptions(superuser="owner"))
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> DoorHarness:
        self.files = await Files.open(self.objects, lambda: 1_700_000_000_000_000, OPTIONS)
        await self.door.start()
        self.session = aiohttp.ClientSession(skip_auto_headers=["Content-Type"])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()
        await self.door.stop()
        if self.files is not None and self.files.failure is None:
            statistics = self.files.statistics()
            assert (statistics.open_readers, statistics.open_writers) == (0, 0)
            await self.files.close()
        assert self.door.statistics().open_streams == 0
        assert self.door.statistics().faults == 0

    def url(self, path: str, op: str, **parameters: object) -> str:
        more = "".join(f"&{name.replace('_', '.')}={value}" for name, value in parameters.items())
        return f"http://127.0.0.1:{self.door.port}/webhdfs/v1{path}?op={op}{more}"

    async def ask(
        self, method: str, path: str, op: str, data: bytes | None = None, **parameters: object
    ) -> tuple[int, bytes]:
        url = self.url(path, op, **parameters)
        async with self.session.request(
            method, url, data=None if data is None else io.BytesIO(data), headers=self.headers
        ) as answer:
            assert "Content-Type" not in answer.headers, "the JVM client fails on one"
            return answer.status, await answer.read()

    async def ok(self, method: str, path: str, op: str, data: bytes | None = None, **parameters: object) -> Any:
        status, body = await self.ask(method, path, op, data, **parameters)
        assert status in (200, 201), body
        return json.loads(body) if body[:1] == b"{" else body

    async def refused(self, method: str, path: str, op: str, **parameters: object) -> tuple[int, str]:
        status, body = await self.ask(method, path, op, **parameters)
        remote = json.loads(body)["RemoteException"]
        assert set(remote) == {"exception", "javaClassName", "message"}
        assert remote["javaClassName"].replace("$", ".").endswith("." + remote["exception"])
        return status, remote["exception"]

    async def put(self, path: str, data: bytes, **parameters: object) -> None:
        assert (await self.ask("PUT", path, "CREATE", data, **parameters))[0] == 201

    async def get(self, path: str, **parameters: object) -> Any:
        return (await self.ask("GET", path, "OPEN", **parameters))[1]


def run_with_door(test: Callable[[DoorHarness], Awaitable[None]], options: DoorOptions | None = None) -> None:
    async def run() -> None:
        async with DoorHarness(options) as harness:
            await test(harness)

    asyncio.run(asyncio.wait_for(run(), 60))
