"""The Global Directory is unmounted under real daemons, and an empty mount point stays (R8, R10, R18)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from spark_jms.store.errors import DirectoryUnavailableError, FencedError, StoreError
from spark_jms.store.regions.admin.cluster import DaemonAdmin
from spark_jms.store.regions.client.attachment import Attachment
from spark_jms.testing.domain import wait_until
from tests.harness.stores.regions_cluster import Make, has_all_copies, lists, opened, store_at, wait_for_copies

STOPPED_S, AWAY_S = 3.5, 8.0


def unmount(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.mkdir()


def mount(path: Path) -> None:
    path.rmdir()
    path.with_name("away").rename(path)


def sleep_until(moment_s: float) -> None:
    wait_until(lambda: time.monotonic() > moment_s, 30.0)


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed meanwhile"])
def test_absent_directory_loses_nothing(make_daemons: Make, monkeypatch: pytest.MonkeyPatch, closed: bool) -> None:
    """R8, R10, R18: also with a peer that stops meanwhile, so that the primary needs a decision of the directory. A write
    waits for it, or fails because the peer won that decision. A store that is closed meanwhile opens again."""
    monkeypatch.setattr(Attachment.ask, "__defaults__", (Any, AWAY_S))  # a close gets no answer meanwhile
    daemons = make_daemons(3)

    async def run() -> None:
        store = await opened(daemons.path, "s", 0)
        objects = await store.connection("c")
        handles = [await objects.create(b"object %d" % number) for number in range(50)]
        await asyncio.to_thread(wait_for_copies, daemons)
        since_s = time.monotonic()
        unmount(daemons.path)
        daemons.signal(1, signal.SIGSTOP)
        late = None
        if closed:
            await store.close()
        else:
            late = asyncio.ensure_future(objects.create(b"late"))
        await asyncio.to_thread(sleep_until, since_s + STOPPED_S)
        daemons.signal(1, signal.SIGCONT)
        await asyncio.to_thread(sleep_until, since_s + AWAY_S)
        mount(daemons.path)
        if late is not None:
            with contextlib.suppress(FencedError):
                handles.append(await late)
            await store.close()
        await asyncio.to_thread(wait_until, lambda: has_all_copies(daemons.path, [0, 1, 2]), 30.0, "two copies")
        for index in (2, 0):
            async with store_at(daemons.path, "s", index) as again:
                objects = await again.connection("c")
                assert objects.handles()[: len(handles)] == handles
                assert await objects.read(handles[49]) == b"object 49"

    asyncio.run(run())
    output = daemons.output()
    assert "the region was removed" not in output
    assert "a fault of the daemon itself" not in output


def test_daemons_connect_again_without_the_directory(make_daemons: Make) -> None:
    """R10, R17: they lost their connection while it was away. The write that waits for the second copy is acknowledged."""
    daemons = make_daemons(2, RS_FAILURE_TIMEOUT_MS="30000", RS_HEARTBEAT_MS="100")

    async def run() -> None:
        async with store_at(daemons.path, "s", 0) as store:
            objects = await store.connection("c")
            await objects.create(b"before")
            await asyncio.to_thread(wait_for_copies, daemons)
            unmount(daemons.path)
            try:
                daemons.signal(
                    1, signal.SIGUSR2
                )  # it drops its connections: this store is attached to the other daemon
                for number in range(20):
                    await asyncio.wait_for(objects.create(b"%d" % number), 20.0)
            finally:
                mount(daemons.path)

    asyncio.run(run())
    assert "the connection with daemon 1 ended" in daemons.output()


def test_commands_refuse_an_empty_mount_point(make_daemons: Make) -> None:
    """R6, R8: the daemons do not list a cluster without regions, and none starts on it."""
    daemons = make_daemons(2)

    async def run() -> None:
        async with store_at(daemons.path, "s", 0):
            admin = await asyncio.to_thread(DaemonAdmin, str(daemons.path), 0)
            try:
                unmount(daemons.path)
                with pytest.raises(DirectoryUnavailableError, match="identity is missing"):
                    await asyncio.to_thread(admin.regions)
                with pytest.raises(StoreError, match=r"rs_daemons\.cfg"):
                    await asyncio.to_thread(daemons.cluster.up)
                assert list(daemons.path.iterdir()) == []
                mount(daemons.path)
                assert [region.name for region in admin.regions()] == ["s.000"]
            finally:
                await asyncio.to_thread(admin.close)

    asyncio.run(run())
    # A primary in doubt closes as soon as the directory has answered it.
    wait_until(lambda: [region.status for region in lists(daemons.path, 0)[1]] == ["CLOSED"], 10.0)
