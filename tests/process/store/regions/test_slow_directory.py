"""The Global Directory is slow, or hangs, under real daemons (R7, R8, R10)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import TypeVar

from spark_jms.store.regions.admin.cluster import DaemonAdmin
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.client.objects import ObjectConnection
from spark_jms.testing.domain import wait_until
from tests.harness.stores.regions_cluster import FaultyDaemons, Make, lists, opened, wait_for_copies
from tests.harness.stores.regions_daemon import SLOW_DIRECTORY

HANGS_S = 12.0
FAILURE_TIMEOUT_MS = "10000"  # a busy machine delays no heartbeat by half of it
ANSWER_S = 2.0
T = TypeVar("T")
STORES = 40


class Switch:
    """Makes the directory slow for the daemons of one cluster."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def slow(self, milliseconds: int) -> None:
        self.path.with_suffix(".new").write_text(str(milliseconds))
        self.path.with_suffix(".new").rename(self.path)

    def heal(self) -> None:
        self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        """Until the end of the block, also when the test fails: a write that waits for the directory then ends."""
        self.path.write_text("")
        try:
            yield
        finally:
            self.heal()

    @contextlib.asynccontextmanager
    async def hung_without_need(self, objects: ObjectConnection) -> AsyncIterator[None]:
        """The same, from a moment on in which the primary needs no directory. Until its secondary has confirmed it for the
        first time, which takes up to a heartbeat, the primary asks the directory about each write."""
        while True:
            with self.hung():
                write = asyncio.ensure_future(objects.create(b"needs no directory"))
                if (await asyncio.wait({write}, timeout=ANSWER_S))[0]:
                    yield
                    return
            await write


@contextlib.asynccontextmanager
async def working(objects: ObjectConnection) -> AsyncIterator[list[int]]:
    """Writes and reads an object again and again; the list has one item for each time. Raises what a write raised."""
    done: list[int] = []
    handle = await objects.create(b"0")
    stopping = asyncio.Event()

    async def work() -> None:
        while not stopping.is_set():
            value = b"%d" % len(done)
            await objects.update(handle, value)
            assert await objects.read(handle) == value
            done.append(len(done))
            await asyncio.sleep(0)

    task = asyncio.ensure_future(work())
    try:
        yield done
    finally:
        stopping.set()
        await task


async def answer(asked: Awaitable[T]) -> T:
    """An answer that waits for the directory would never come."""
    return await asyncio.wait_for(asked, 60.0)


async def until(condition: object, limit_s: float = 60.0) -> None:
    assert callable(condition)
    await asyncio.to_thread(wait_until, condition, limit_s)


def test_hung_directory_ends_no_store(make_daemons: Make, tmp_path: Path) -> None:
    """R7, R10: stores whose daemons need no decision read and write all the time; a new store opens when it is over."""
    switch = Switch(tmp_path / "slow")
    daemons = make_daemons(3, **{SLOW_DIRECTORY: str(switch.path), "RS_FAILURE_TIMEOUT_MS": FAILURE_TIMEOUT_MS})

    async def run() -> None:
        store = await opened(daemons.path, "s", 0)
        objects = await store.connection("c")
        await asyncio.to_thread(wait_for_copies, daemons)
        async with working(objects) as done, switch.hung_without_need(objects):
            began_s, before = time.monotonic(), len(done)
            other = asyncio.ensure_future(opened(daemons.path, "t", 1))
            await until(lambda: time.monotonic() > began_s + HANGS_S and len(done) > before + 100)
            assert not other.done()
        await (await other).close()
        await store.close()

    asyncio.run(run())
    assert "the region was removed" not in daemons.output()


def test_daemon_that_dies_while_the_directory_hangs_is_replaced_afterwards(make_daemons: Make, tmp_path: Path) -> None:
    """R7, R10: a write that needs the decision waits for it."""
    switch = Switch(tmp_path / "slow")
    daemons = make_daemons(3, **{SLOW_DIRECTORY: str(switch.path)})

    async def run() -> None:
        store = await opened(daemons.path, "s", 0)
        objects = await store.connection("c")
        await asyncio.to_thread(wait_for_copies, daemons)
        with switch.hung():
            daemons.signal(1, signal.SIGKILL)
            late = asyncio.ensure_future(objects.create(b"late"))
            await until(lambda: not counts_as_up(daemons, 1))
            assert not late.done()
        assert await objects.read(await late) == b"late"
        await store.close()

    asyncio.run(run())


def test_daemons_connect_again_while_the_directory_hangs(make_daemons: Make, tmp_path: Path) -> None:
    """R10: the secondary loses its connections. Without a new one, its primary's writes would wait for the directory."""
    switch = Switch(tmp_path / "slow")
    daemons = make_daemons(2, **{SLOW_DIRECTORY: str(switch.path), "RS_FAILURE_TIMEOUT_MS": FAILURE_TIMEOUT_MS})

    async def run() -> None:
        store = await opened(daemons.path, "s", 0)
        objects = await store.connection("c")
        await asyncio.to_thread(wait_for_copies, daemons)
        async with switch.hung_without_need(objects):
            for number in range(3):  # each time over the secret that was read before
                ended = daemons.output().count("the connection with daemon 1 ended")
                daemons.signal(1, signal.SIGUSR2)
                await until(lambda before=ended: daemons.output().count("the connection with daemon 1 ended") > before)
                assert await answer(objects.read(await answer(objects.create(b"%d" % number)))) == b"%d" % number
        await store.close()

    asyncio.run(run())


def counts_as_up(daemons: FaultyDaemons, index: int) -> bool:
    """For daemon 0, which knows it without the directory."""
    admin = DaemonAdmin(str(daemons.path), 0)
    try:
        return admin.daemons()[index].up
    finally:
        admin.close()


def test_slow_directory_ends_no_store(make_daemons: Make, tmp_path: Path) -> None:
    """R7, R8: with 25 ms for each call and 40 regions, stores open, work and close."""
    switch = Switch(tmp_path / "slow")
    daemons = make_daemons(2, **{SLOW_DIRECTORY: str(switch.path)})

    async def run() -> None:
        store = await opened(daemons.path, "s", 0)
        async with working(await store.connection("c")) as done:
            switch.slow(25)
            others = await asyncio.gather(*(opened(daemons.path, f"t{n:02d}", 0) for n in range(STORES - 1)))
            before = len(done)
            await until(lambda: len(done) > before + 100)
            await asyncio.gather(*(use(other) for other in others))
        await store.close()

    asyncio.run(run())
    assert len(lists(daemons.path, 0)[1]) == STORES


async def use(store: StoreInstance) -> None:
    objects = await store.connection("c")
    assert await objects.read(await objects.create(b"kept")) == b"kept"
    await store.close()
