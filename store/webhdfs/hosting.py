"""The WebHDFS door of a daemon, and the namespace behind it.

The namespace is a store instance like any other, so one daemon of the cluster serves it: the first that opens its regions.
The doors of the other daemons forward requests to that one. When it dies, another daemon opens the regions and serves.

Features: R19 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from spark_jms.settings.store import DoorSettings, Thresholds, from_variables
from spark_jms.store.errors import (
    MemoryLimitError,
    RegionLostError,
    RegionOpenError,
    StoreCorruptError,
    StoreError,
    StoreVersionError,
)
from spark_jms.store.net.sockets import client_context, server_context
from spark_jms.store.processes import START_WAIT_MS
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.core.memory_use import parse_thresholds
from spark_jms.store.regions.core.peers import SERVICE
from spark_jms.store.regions.daemon.daemon import Host, ServiceFactory
from spark_jms.store.webhdfs import door as webhdfs_door
from spark_jms.store.webhdfs.blocks import FilesOptions
from spark_jms.store.webhdfs.callers import UserOfProcess
from spark_jms.store.webhdfs.door import OPEN_WARNING, Door, DoorOptions
from spark_jms.store.webhdfs.files import Files

CONNECTION = "webhdfs.namespace"
RETRY_S = 0.2
PERMANENT = (RegionLostError, StoreCorruptError, StoreVersionError, MemoryLimitError)  # an operator has to act
OBJECT_PERCENT = 4  # of a region: blocks of files are larger than messages


def door_from_environment(environment: Mapping[str, str]) -> ServiceFactory | None:
    """None without RS_DOOR. SettingInvalidError names the variable, its value and what is allowed."""
    given = {name: value for name, value in environment.items() if value or name != "RS_DOOR"}
    settings: DoorSettings = from_variables(DoorSettings, given)
    return (lambda host: NamespaceDoor(host, settings)) if settings.port else None


class NamespaceDoor:
    """The door of one daemon. A background task opens the namespace here when no other daemon has it open, closes it when
    the daemon leaves or the store failed, and otherwise tells the door which daemon serves it."""

    name = "WebHDFS"

    def __init__(self, host: Host, settings: DoorSettings) -> None:
        self._host = host
        self._settings = settings
        self._log = host.log
        self._thresholds = _thresholds(settings.store)
        self._files: Files | None = None
        self._instance: StoreInstance | None = None
        self._elsewhere: str | None = None
        self._reported = ""
        self._task: asyncio.Task[None] | None = None
        self._door = Door(lambda: self._files, self._options(), lambda: self._elsewhere)

    def _options(self) -> DoorOptions:
        settings = self._settings
        tls, trust = None, None
        if settings.certificate:
            tls = server_context(Path(settings.certificate), Path(settings.key or settings.certificate))
            trust = client_context(Path(settings.certificate).read_text())
        tokens = webhdfs_door.Tokens.from_file(Path(settings.tokens)) if settings.tokens else None
        user = UserOfProcess.current().name
        return DoorOptions(tls=tls, tokens=tokens, open=settings.open, forward_tls=trust, superuser=user)

    @property
    def address(self) -> str:
        return f"{self._door.host}:{self._door.port}"

    async def start(self) -> None:
        await self._door.start(self._settings.host, self._settings.port)
        if self._settings.open:
            self._log.warning(OPEN_WARNING, self.address)
        self._task = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._door.stop()
        await self._close_namespace()

    async def _serve(self) -> None:
        while True:
            failure = self._failure()
            if self._host.leaving():
                self._elsewhere = self._published_door() if self._instance is None else None
                await self._close_namespace()
            elif self._instance is None:
                await self._try_open()
            elif failure is not None:
                self._log.error("the namespace failed and is opened again: %s", failure)
                await self._close_namespace()
                continue
            await asyncio.sleep(RETRY_S)

    def _failure(self) -> BaseException | None:
        of_instance = None if self._instance is None else self._instance.failure
        return of_instance or (None if self._files is None else self._files.failure)

    async def _try_open(self) -> None:
        try:
            await self._open()
        except RegionOpenError:
            self._elsewhere = self._published_door()
        except (StoreError, OSError) as error:
            self._elsewhere = None
            is_news = isinstance(error, PERMANENT) and str(error) != self._reported
            self._reported = str(error)
            self._log.log(logging.ERROR if is_news else logging.DEBUG, "the namespace cannot be opened here: %s", error)

    async def _open(self) -> None:
        settings = self._settings
        self._instance = await StoreInstance.open(
            self._host.directory,
            settings.store,
            region_bytes=settings.region_bytes,
            config=self._host.config,
            daemon=self._host.daemon,
            thresholds=self._thresholds,
            role=SERVICE,
        )
        try:
            objects = await self._instance.connection(CONNECTION)
            capacity = sum(spec.memory_limit_bytes for spec in self._host.config.daemons) // 2
            options = FilesOptions(capacity_bytes=capacity)
            if not self._instance.is_new:
                await asyncio.sleep(
                    START_WAIT_MS / 1000.0
                )  # for the proofs of another door to expire, see ReadProof in blocks.py
            self._files = files = await Files.open(objects, _now_us, options, self._instance.prove)
            self._instance.reclaims(lambda: files.reclaimable_bytes)
        except BaseException:
            await self._close_namespace()
            raise
        self._elsewhere = None
        self._host.directory.publish_service(settings.store, {"door": self.address})
        self._log.info("the WebHDFS namespace is served here")

    async def _close_namespace(self) -> None:
        files, self._files = self._files, None
        instance, self._instance = self._instance, None
        if files is not None:
            with contextlib.suppress(StoreError, asyncio.TimeoutError):
                await asyncio.wait_for(files.close(), 2.0)
        if instance is not None:
            with contextlib.suppress(StoreError, asyncio.TimeoutError):
                await asyncio.wait_for(instance.close(), 5.0)

    def _published_door(self) -> str | None:
        door = self._host.directory.published_service(self._settings.store).get("door")
        return None if door in (None, self.address) else str(door)


def _now_us() -> int:
    return time.time_ns() // 1000


def _thresholds(store: str) -> Thresholds:
    """The daemon's environment sets them. Objects may be larger than messages unless it limits them for this very store."""
    own = f"store.replicated.{store}.MaximumMessageSizePercent"
    return parse_thresholds({own: OBJECT_PERCENT, **os.environ}, store)
