"""Regions when daemons die, stop, wake, or never return (R9, R10, R15, R18)."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from spark_jms.store.errors import DaemonUnavailableError, FencedError, RegionLostError
from spark_jms.store.regions.admin.api import Admin
from spark_jms.testing.domain import wait_until
from tests.harness.stores.regions_cluster import (
    FaultyDaemons,
    Make,
    lists,
    opened,
    store_at,
    wait_for_copies,
    wait_until_missed,
)

MB = 1 << 20


def take_over(daemons: FaultyDaemons, number: int) -> tuple[float, float]:
    """Seconds until the others notice the loss, and until another daemon serves the region. SIGKILL or SIGSTOP."""

    async def run() -> tuple[float, float]:
        first = await opened(daemons.path, "s", 0)
        objects = await first.connection("c")
        handle = await objects.create(b"before")
        await asyncio.to_thread(wait_for_copies, daemons)
        since_s = time.monotonic()
        daemons.signal(0, number)
        noticed = asyncio.create_task(asyncio.to_thread(wait_until_missed, daemons, 0, 2))
        async with store_at(daemons.path, "s", 1) as second:
            objects = await second.connection("c")
            assert await objects.read(handle) == b"before"
            await objects.update(handle, b"after")
            served_s = time.monotonic() - since_s
            await objects.delete(handle)
        noticed_s = await noticed - since_s
        if number == signal.SIGSTOP:
            daemons.signal(0, signal.SIGCONT)
        else:
            daemons.start(0)
        await first.close()
        return noticed_s, served_s

    return asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_secondary_takes_over(make_daemons: Make, number: int) -> None:
    """R10: the test prints the times and does not assert them, because machines differ."""
    daemons = make_daemons()
    times = []
    for _ in range(3):
        wait_for_copies(daemons)
        times.append(take_over(daemons, number))
    for what, seconds in zip(("noticed", "served elsewhere"), zip(*times, strict=True), strict=True):
        least, middle, most = sorted(seconds)
        print(f"\n{signal.Signals(number).name}: {what} after {least:.2f} / {middle:.2f} / {most:.2f} s", end="")


def test_stopped_primary_is_fenced_when_it_wakes(make_daemons: Make) -> None:
    """R10: it does not acknowledge the requests in its buffers, and its client gets an error."""
    daemons = make_daemons()

    async def run() -> None:
        old = await opened(daemons.path, "s", 0)
        old_objects = await old.connection("c")
        first = await old_objects.create(b"first")
        daemons.signal(0, signal.SIGSTOP)
        late = [asyncio.ensure_future(old_objects.create(b"late %d" % number)) for number in range(20)]
        change = asyncio.ensure_future(old_objects.update(first, b"changed late"))
        async with store_at(daemons.path, "s", 1) as new:
            objects = await new.connection("c")
            second = await objects.create(b"second")
            daemons.signal(0, signal.SIGCONT)
            for each in (*late, change):
                with pytest.raises((FencedError, DaemonUnavailableError)):
                    await each
            assert isinstance(old.failure, (FencedError, DaemonUnavailableError))
            with pytest.raises((FencedError, DaemonUnavailableError)):
                await old_objects.read(first)
            assert [await objects.read(handle) for handle in objects.handles()] == [b"first", b"second"]
            assert objects.handles() == [first, second]
        await old.close()
        wait_for_copies(daemons)
        async with store_at(daemons.path, "s", 0) as again:  # also on the daemon that woke
            objects = await again.connection("c")
            assert [await objects.read(handle) for handle in objects.handles()] == [b"first", b"second"]

    asyncio.run(run())


def test_region_is_lost_with_both_its_daemons(make_daemons: Make) -> None:
    """R18: only those regions are lost, and both other daemons log it; no daemon serves a part of them; `rmr` frees their
    names."""
    daemons = make_daemons(4)

    async def run() -> None:
        lost = await opened(daemons.path, "lost", 0)
        await (await lost.connection("c")).create(b"gone")
        async with store_at(daemons.path, "kept", 2) as kept:
            objects = await kept.connection("c")
            handle = await objects.create(b"kept")
            for index in (0, 1):
                daemons.signal(index, signal.SIGSTOP)
            for index in (0, 1):
                daemons.signal(index, signal.SIGKILL)

            def status() -> dict[str, str]:
                return {region.name: region.status for region in lists(daemons.path, 2)[1]}

            await asyncio.to_thread(wait_until, lambda: status()["lost.000"] == "LOST", 30.0, "LOST")
            assert status() == {"lost.000": "LOST", "kept.000": "OPEN"}
            await asyncio.to_thread(wait_until, lambda: daemons.output().count("region lost.000 is LOST") == 2, 10.0)
            assert await objects.read(handle) == b"kept"
            await objects.create(b"more")
            with pytest.raises(RegionLostError, match=r"lost\.000"):
                await opened(daemons.path, "lost", 2)
            daemons.start(0)
            daemons.start(1)
            await asyncio.to_thread(daemons.cluster.wait_healthy)
            with pytest.raises(RegionLostError, match=r"lost\.000"):  # they have another incarnation and empty memory
                await opened(daemons.path, "lost", 0)
            with Admin(str(daemons.path), 3) as admin:
                removal = admin.remove_regions("lost.000", force=True)
            assert removal.removed == ("lost.000",)
            async with store_at(daemons.path, "lost", 3) as created:
                objects = await created.connection("c")
                assert objects.handles() == []
                await objects.create(b"new")
        await lost.close()

    asyncio.run(run())


@pytest.mark.soak
def test_daemons_resilver_a_gigabyte_while_they_serve(make_daemons: Make) -> None:
    """R10: prints the seconds until each region of a dead daemon has two copies again, and the writes meanwhile."""
    daemons = make_daemons(3, "3G")

    async def run() -> None:
        async with store_at(daemons.path, "served", 1) as served:
            writing = await served.connection("c")
            regions, stores = 16, []
            for number in range(regions):
                store = await opened(daemons.path, f"big{number}", 0, region_mb=64)
                objects = await store.connection("c")
                for _ in range(6):
                    await objects.create(os.urandom(10 * MB))
                stores.append(store)
            await asyncio.to_thread(wait_for_copies, daemons)
            since_s = time.monotonic()
            daemons.signal(0, signal.SIGKILL)
            for each in (1, 2):
                await asyncio.to_thread(wait_until_missed, daemons, 0, each)
            done = asyncio.create_task(asyncio.to_thread(wait_for_copies, daemons))
            waits = []
            while not done.done():
                begun_s = time.monotonic()
                await writing.create(b"x" * 1000)
                waits.append(time.monotonic() - begun_s)
            await done
            seconds = time.monotonic() - since_s
            waits.sort()
            print(
                f"\n{regions * 64} MB in {regions} regions have two copies after {seconds:.1f} s; {len(waits)} writes "
                f"meanwhile, median {waits[len(waits) // 2] * 1000:.2f} ms, most {waits[-1] * 1000:.0f} ms"
            )
            for store in stores:
                await store.close()

    asyncio.run(run())
