"""The WebHDFS door of a daemon, and the namespace behind it (R19).

The namespace is a store instance as any other, so one daemon of the cluster serves it: the first that opens it. Doors of
the others hand requests on to that one. When it dies, the next one opens the store, with its regions, and serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jms.store.errors import (
    MemoryLimitError,
    RegionLostError,
    RegionOpenError,
    StoreCorruptError,
    StoreError,
    StoreVersionError,
)
from spark_jms.store.net.tls import client_context, server_context
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.client.thresholds import Thresholds, parse_thresholds
from spark_jms.store.regions.core.config import ClusterConfig
from spark_jms.store.regions.core.shutdown import SERVICE
from spark_jms.store.regions.global_directory import GlobalDirectory, write_whole
from spark_jms.store.webhdfs import security
from spark_jms.store.webhdfs.door import Door, DoorOptions
from spark_jms.store.webhdfs.files import Files, FilesOptions

if TYPE_CHECKING:
    from spark_jms.store.regions.daemon.daemon import DoorPlan

CONNECTION = "webhdfs.namespace"
RETRY_S = 0.2
LASTING = (RegionLostError, StoreCorruptError, StoreVersionError, MemoryLimitError)  # does not go away by itself
OBJECT_PERCENT = 4  # of a region: blocks of files are no messages


class NamespaceDoor:
    def __init__(
        self,
        directory: GlobalDirectory,
        config: ClusterConfig,
        daemon: int,
        plan: DoorPlan,
        log: logging.Logger,
        leaving: Callable[[], bool],
    ) -> None:
        self._leaving = leaving
        self._directory = directory
        self._config = config
        self._daemon = daemon
        self._plan = plan
        self._log = log
        self._thresholds = _thresholds(plan.store)
        self._published = directory.engine_file(plan.store)
        self._files: Files | None = None
        self._instance: StoreInstance | None = None
        self._elsewhere: str | None = None
        self._said = ""
        self._task: asyncio.Task[None] | None = None
        self._door = Door(lambda: self._files, self._options(), lambda: self._elsewhere)

    def _options(self) -> DoorOptions:
        plan = self._plan
        tls, trust = None, None
        if plan.certificate:
            tls = server_context(Path(plan.certificate), Path(plan.key or plan.certificate))
            trust = client_context(Path(plan.certificate).read_text())
        tokens = security.Tokens.from_file(Path(plan.tokens)) if plan.tokens else None
        return DoorOptions(tls=tls, tokens=tokens, forward_tls=trust)

    @property
    def host(self) -> str:
        return self._door.host

    @property
    def port(self) -> int:
        return self._door.port

    async def start(self) -> None:
        await self._door.start(self._plan.host, self._plan.port)
        self._task = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._door.stop()
        await self._give_up()

    async def _serve(self) -> None:
        while True:
            if self._leaving():
                self._elsewhere = self._told() if self._instance is None else None
                await self._give_up()
            elif self._instance is None:
                try:
                    await self._open()
                except RegionOpenError:
                    self._elsewhere = self._told()
                except (StoreError, OSError) as error:
                    self._elsewhere = None
                    level = logging.ERROR if isinstance(error, LASTING) and str(error) != self._said else logging.DEBUG
                    self._said = str(error)
                    self._log.log(level, "the namespace cannot be opened here: %s", error)
            elif self._instance.failure is not None or (self._files is not None and self._files.failure is not None):
                self._log.error("the namespace is opened anew: %s", self._instance.failure or self._files.failure)  # type: ignore[union-attr]
                await self._give_up()
                continue
            await asyncio.sleep(RETRY_S)

    async def _open(self) -> None:
        plan = self._plan
        self._instance = await StoreInstance.open(
            self._directory, plan.store, region_bytes=plan.region_bytes, config=self._config, daemon=self._daemon,
            thresholds=self._thresholds, role=SERVICE,
        )  # fmt: skip
        try:
            objects = await self._instance.connection(CONNECTION)
            capacity = sum(spec.memory_limit_bytes for spec in self._config.daemons) // 2
            options = FilesOptions(capacity_bytes=capacity)
            self._files = await Files.open(objects, lambda: time.time_ns() // 1000, options)
        except BaseException:
            await self._give_up()
            raise
        self._elsewhere = None
        write_whole(self._published, json.dumps({"door": f"{self.host}:{self.port}"}).encode(), 0o600)
        self._log.info("the WebHDFS namespace is served here")

    async def _give_up(self) -> None:
        files, self._files = self._files, None
        instance, self._instance = self._instance, None
        if files is not None:
            with contextlib.suppress(StoreError, asyncio.TimeoutError):
                await asyncio.wait_for(files.close(), 2.0)
        if instance is not None:
            with contextlib.suppress(StoreError, asyncio.TimeoutError):
                await asyncio.wait_for(instance.close(), 5.0)

    def _told(self) -> str | None:
        try:
            door = json.loads(self._published.read_text())["door"]
        except (OSError, ValueError, KeyError):
            return None
        return str(door) if door != f"{self.host}:{self.port}" else None


def _thresholds(store: str) -> Thresholds:
    """As the daemon's environment has them; blocks of files are larger than messages unless it says so for this store."""
    own = f"store.replicated.{store}.MaximumMessageSizePercent"
    return parse_thresholds({own: OBJECT_PERCENT, **os.environ}, store)
