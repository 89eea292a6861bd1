"""A store on a daemon that fills up, and its statistics, on real daemons (R12, R13, R14)."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import timezone
from pathlib import Path

import pytest

from spark_jms import apply, connect
from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain, create_domain
from spark_jms.settings.store import Thresholds
from spark_jms.store import Handle, Put, open_store
from spark_jms.store.errors import MemoryLimitError, ObjectTooLargeError, ResourceAllocationException, StoreFullError
from spark_jms.store.regions.admin.api import Admin
from spark_jms.store.regions.admin.formats import regions_table
from spark_jms.store.regions.client import attachment as attachments
from spark_jms.store.regions.client import instance as instances
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.directory.global_directory import GlobalDirectory
from spark_jms.store.regions.directory.overload import SendAdmission
from spark_jms.testing.domain import wait_until
from tests.harness.domains.feed import QUEUE, send_numbers
from tests.harness.services.daemons import Daemons
from tests.harness.stores.regions_cluster import MB, FaultyDaemons, Make, lists

ON_SERVERS = {"on-a": ["a"], "on-b": ["b"], "on-both": ["a", "b"]}


@pytest.fixture
def daemons(make_daemons: Make, monkeypatch: pytest.MonkeyPatch) -> FaultyDaemons:
    monkeypatch.setattr(instances, "WATCH_S", 0.05)
    return make_daemons(2, "8M")


async def opened(path: Path, store: str, region_mb: int = 1, **percent: int) -> StoreInstance:
    thresholds = Thresholds(**{f"{name}_percent": value for name, value in percent.items()})
    return await StoreInstance.open(
        GlobalDirectory(str(path)), store, region_bytes=region_mb * MB, daemon=0, thresholds=thresholds
    )


def admitted(path: Path, store: str) -> bool:
    """Whether a sender's messages are accepted."""
    try:
        SendAdmission(str(path), store).check()
    except ResourceAllocationException:
        return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def overloaded(store: StoreInstance) -> bool:
    try:
        await store.check_new_message(100)
    except ResourceAllocationException as error:
        return "SpaceOverloadYellowPercent is 40" in str(error)
    return False


def test_store_limits_the_message_size(daemons: FaultyDaemons) -> None:
    """R13: MaximumMessageSizePercent, 1 by default, of the region size."""

    async def run() -> None:
        store = await opened(daemons.path, "s")
        limit = MB // 100
        await store.check_new_message(limit)
        with pytest.raises(ResourceAllocationException, match="MaximumMessageSizePercent is 1"):
            await store.check_new_message(limit + 1)
        objects = await store.connection("c")
        assert objects.max_object_bytes == limit
        handle = await objects.create(b"x" * limit)
        with pytest.raises(ObjectTooLargeError):
            await objects.create(b"x" * (limit + 1))
        with pytest.raises(ObjectTooLargeError):
            await objects.update(handle, b"x" * (limit + 1))
        assert len(await objects.read(handle)) == limit
        await store.close()

    asyncio.run(run())


def test_store_rejects_messages_above_yellow(
    daemons: FaultyDaemons, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R13: while both the daemon and the store are above yellow, from that moment on."""
    caplog.set_level(logging.INFO, "store.replicated")

    async def run() -> None:
        settings = {"maximum_message_size": 25, "space_logging_start": 10, "space_overload_yellow": 40}
        store = await opened(daemons.path, "s", 2, **settings)  # a quarter of the daemon: above the start of logging
        objects = await store.connection("c")
        handles = [await objects.create(b"x" * (MB // 2)) for _ in range(2)]
        await store.check_new_message(100)  # the store is above, the daemon is not
        while not any("SpaceLoggingStartPercent" in record.message for record in caplog.records):
            await asyncio.sleep(0.01)  # the store asks its daemon every few seconds
        while "SpaceLoggingStartPercent" not in caplog.text:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(instances, "WATCH_S", 3600.0)
        await asyncio.sleep(0.1)  # the last look of the old period
        other = await opened(daemons.path, "other", 2)  # now both are above
        assert await overloaded(store), "judged when asked, not when the store looks next"
        await other.check_new_message(100)  # not above by its own settings
        await until(lambda: not admitted(daemons.path, "s"))
        assert admitted(daemons.path, "other")
        await objects.delete(handles[0])
        await store.check_new_message(100)  # the daemon is above, the store is not
        await until(lambda: admitted(daemons.path, "s"))
        await store.close()
        await other.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    lines = [
        (record.levelname, record.getMessage()) for record in caplog.records if "store s: daemon" in record.message
    ]
    assert [level for level, _ in lines] == ["INFO", "WARNING"]
    assert "2 of 8 MB used (25.00 %), SpaceLoggingStartPercent=10" in lines[0][1]
    assert "4 of 8 MB used (50.00 %), above SpaceOverloadYellowPercent=40" in lines[1][1]


def test_store_does_not_open_above_red(daemons: FaultyDaemons, caplog: pytest.LogCaptureFixture) -> None:
    """R13, R15: new stores and those from other daemons; an open store continues, and opens again where its regions are."""

    async def run() -> None:
        first = await opened(daemons.path, "first", 4)
        with pytest.raises(MemoryLimitError, match="store second: 4194304 of 8388608 bytes"):
            await opened(daemons.path, "second", 1, space_overload_red=49)
        assert [region.name for region in lists(daemons.path, 0)[1]] == ["first.000"]
        await (await first.connection("c")).create(b"served")
        await (await opened(daemons.path, "second", 1, space_overload_red=50)).close()
        await first.close()
        await (await opened(daemons.path, "first", 4, space_overload_red=49)).close()

    asyncio.run(run())
    assert "ERROR" in {record.levelname for record in caplog.records if "SpaceOverloadRedPercent=49" in record.message}


def test_consumer_receives_and_acknowledges_above_yellow(
    daemons: FaultyDaemons, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """R13: with a setting for this store alone; senders are refused, and what the tables have can be finished."""
    monkeypatch.setattr(instances, "NEAR_S", 0.05)
    monkeypatch.setenv("store.replicated.full.SpaceOverloadYellowPercent", "60")
    domain = create_domain(str(tmp_path / "domain"), daemons.uri("full", region_mb=2))
    apply_destinations(domain, [Destination(QUEUE, kind="queue")], lambda *_: True)
    send_numbers(Domain(domain.root), range(20))
    with open_store(domain.store_uri) as store, store.connect("c") as session:
        fill(session.open("r"), until=lambda: not admitted(daemons.path, "full"))
        with connect(domain.root) as context, context.consumer(QUEUE, prefetch=5) as consumer:
            for _ in range(20):
                message = consumer.receive("20 s")
                assert message is not None
                message.acknowledge()
            assert consumer.receive(0) is None
        assert not admitted(daemons.path, "full")


def test_replaced_values_do_not_count_above_yellow(daemons: FaultyDaemons, monkeypatch: pytest.MonkeyPatch) -> None:
    """R13: the log of a small store fills its regions many times over, and no write of a store with few values is refused,
    although only a snapshot gives the log's room back."""
    monkeypatch.setenv("store.replicated.small.SpaceOverloadYellowPercent", "60")
    with open_store(daemons.uri("small", region_mb=2)) as store, store.connect("c") as session:
        handle = session.open("r")
        for _ in range(300):
            handle.commit([Put("k", bytes(20_000))])

        def used() -> float:
            regions = lists(daemons.path, 0)[1]
            return sum(region.used_bytes for region in regions) / sum(region.size_bytes for region in regions)

        wait_until(lambda: used() > 0.6, 10.0)  # with its log, as lsr shows it
        handle.commit([Put("k", b"more")])


def test_sends_are_refused_above_yellow_of_the_domains_store(
    daemons: FaultyDaemons, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """R13: by name, though a sender opens no store; once the store has ended, they pass."""
    monkeypatch.setattr(instances, "NEAR_S", 0.05)
    monkeypatch.setenv("store.replicated.full.SpaceOverloadYellowPercent", "60")
    domain = create_domain(str(tmp_path / "domain"), daemons.uri("full", region_mb=2))
    apply_destinations(domain, [Destination(QUEUE, kind="distributed-queue", members=4)], lambda *_: True)
    sent = iter(range(1_000))

    def send() -> bool:
        """Whether the message was accepted."""
        number = next(sent)
        try:
            send_numbers(Domain(domain.root), range(number, number + 1))
        except ResourceAllocationException as error:
            return "store full: daemon memory is" not in str(error)
        return True

    assert send()
    with open_store(domain.store_uri) as store, store.connect("c") as session:
        handle = session.open("r")
        assert send()
        fill(handle, until=lambda: not send())
        before = Domain(domain.root).log(QUEUE).refresh().version
        assert not send()
        assert Domain(domain.root).log(QUEUE).refresh().version == before
    wait_until(send, 10.0)


def test_door_rejects_new_files_above_yellow(tmp_path: Path) -> None:
    """R13, R19: with a setting for all namespaces in the daemon's environment; deleting makes room."""
    settings = {"store.replicated.webhdfs.SpaceOverloadYellowPercent": "20", "RS_DOOR_REGION_MB": "2"}
    daemons = Daemons(tmp_path, 1, "8M", settings, doors=True)
    door = f"http://127.0.0.1:{daemons.doors[0]}/webhdfs/v1"

    def ask(method: str, path: str, op: str, data: bytes | None = None) -> int:
        request = urllib.request.Request(f"{door}{path}?op={op}&data=true", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                body = error.read()
                return -error.code if b"DSQuota" in body and b"YellowPercent is 20" in body else error.code

    try:
        wait_until(lambda: ask("PUT", "/d", "MKDIRS") == 200, 30.0)
        written = 0
        while (answer := ask("PUT", f"/d/{written}", "CREATE", b"x" * 50_000)) == 201:
            written += 1
        assert (answer, 0 < written < 10) == (-403, True)
        assert ask("PUT", "/d/large", "CREATE", b"x" * 50_000) == -403
        assert ask("GET", "/d/0", "OPEN") == 200
        for number in range(written):
            assert ask("DELETE", f"/d/{number}", "DELETE") == 200
        wait_until(lambda: ask("PUT", "/d/another", "CREATE", b"x") == 201, 30.0)
    finally:
        daemons.close()


def fill(handle: Handle, until: Callable[[], bool]) -> None:
    """Values of 50,000 bytes, until the store has said so."""
    numbers = iter(range(100))
    while not until():
        handle.commit([Put(f"k{next(numbers)}", b"x" * 50_000)])
        time.sleep(0.05)


def test_store_is_full_without_memory_for_another_region(daemons: FaultyDaemons) -> None:
    """R12: StoreFullError; the existing objects are complete, and deleting some makes room for others."""

    async def run() -> None:
        store = await opened(daemons.path, "s", 2, maximum_message_size=25)
        objects = await store.connection("c")
        handles: list[int] = []

        async def fill() -> None:
            while True:
                handles.append(await objects.create(b"%07d" % len(handles) * 60_000))

        with pytest.raises(StoreFullError):
            await fill()
        assert len(lists(daemons.path, 0)[1]) == 4
        used = [daemon.memory_used_bytes for daemon in lists(daemons.path, 0)[0]]
        assert max(used) == 8 * MB
        for number, handle in enumerate(handles):
            assert await objects.read(handle) == b"%07d" % number * 60_000
        for handle in handles[::2]:
            await objects.delete(handle)
        for _ in handles[::2]:
            await objects.create(b"x" * 420_000)  # into freed space
        assert len(lists(daemons.path, 0)[1]) == 4
        await store.close()

    asyncio.run(run())


def test_store_counts_its_operations(daemons: FaultyDaemons) -> None:
    """R14: for the store and for each connection; simultaneous requests share a physical write."""

    async def run() -> None:
        store = await opened(daemons.path, "s")
        one = await store.connection("weblogic.messaging.jmsServer.one")
        two = await store.connection("weblogic.messaging.jmsServer.durablesubs.two")
        before = store.statistics().physical_write_count
        handles = await asyncio.gather(*(one.create(b"data") for _ in range(100)))
        assert 1 <= store.statistics().physical_write_count - before <= 10
        await two.create(b"else")
        await one.update(handles[0], b"new")
        await one.delete(handles[1])
        assert await one.read(handles[0]) == b"new"
        mine, its, all_ = one.statistics(), two.statistics(), store.statistics()
        assert (mine.create_count, mine.read_count, mine.update_count, mine.delete_count) == (100, 1, 1, 1)
        assert (mine.object_count, its.object_count, all_.object_count) == (99, 1, 100)
        assert (all_.create_count, all_.connection_count) == (101, 2)
        await store.close()
        store = await opened(daemons.path, "s")
        again = await store.connection("weblogic.messaging.jmsServer.one")
        assert again.statistics().object_count == 99
        assert again.statistics().create_count == 0
        assert again.handles() == one.handles()
        await store.close()

    asyncio.run(run())


def test_lsr_shows_how_full_regions_are(daemons: FaultyDaemons, monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: as the store reports it, at any daemon, while the store is open and afterwards."""
    monkeypatch.setattr(attachments, "PING_S", 0.05)

    def shown(daemon: int) -> int:
        return sum(region.used_bytes for region in lists(daemons.path, daemon)[1])

    async def run() -> int:
        store = await opened(daemons.path, "s", 1, maximum_message_size=25)
        objects = await store.connection("c")
        handles = [await objects.create(b"x" * 200_000) for _ in range(6)]
        assert store.statistics().region_count == 2
        await asyncio.to_thread(wait_until, lambda: shown(1) == store.statistics().used_bytes, 10.0)
        assert store.statistics().used_bytes > 1_200_000
        for handle in handles[1:]:
            await objects.delete(handle)
        await store.close()
        return store.statistics().used_bytes

    left = asyncio.run(run())
    assert 200_000 < left < 210_000
    wait_until(lambda: [shown(0), shown(1)] == [left, left], 10.0)
    with Admin(str(daemons.path)) as admin:
        table = regions_table(admin.regions("s.000"), 0, timezone.utc)
    assert f"{left * 100 / MB:.2f}" in table


def test_daemon_memory_depends_on_regions_alone(daemons: FaultyDaemons) -> None:
    """R12: deleting objects frees no memory; removing their region does."""

    async def run() -> None:
        store = await opened(daemons.path, "s", 2, maximum_message_size=25)
        objects = await store.connection("c")
        for handle in [await objects.create(b"x" * 400_000) for _ in range(8)]:
            await objects.delete(handle)
        await store.close()

    asyncio.run(run())
    names = [region.name for region in lists(daemons.path, 0)[1]]
    assert len(names) == 2
    assert lists(daemons.path, 0)[0][0].memory_used_bytes == 4 * MB
    with Admin(str(daemons.path)) as admin:
        admin.remove_regions("s.*")
    wait_until(lambda: all(daemon.memory_used_bytes == 0 for daemon in lists(daemons.path, 0)[0]), 10.0)


def test_sends_are_refused_above_yellow_of_the_store_of_their_members(
    daemons: FaultyDaemons, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """R13, D1: the thresholds of a server are those of its own store, for the messages of its members alone; a send that has both
    kinds is refused as one."""
    monkeypatch.setattr(instances, "NEAR_S", 0.05)
    monkeypatch.setenv("store.replicated.full.SpaceOverloadYellowPercent", "60")
    on = {name: {"kind": "distributed-queue", "servers": servers} for name, servers in ON_SERVERS.items()}
    apply(
        str(tmp_path / "domain"),
        {
            "servers": {"a": {"store": daemons.uri("full", region_mb=2)}, "b": {"store": str(tmp_path / "b")}},
            "destinations": {**on, "plain": {"kind": "queue"}},
        },
    )
    domain, said = Domain(str(tmp_path / "domain")), set()

    def accepted() -> set[str]:
        found = set()
        with connect(domain.root, housekeeping=False) as context:
            for name in (*ON_SERVERS, "plain"):
                try:
                    context.producer(name).send_many({"text": str(number)} for number in range(4))
                    found.add(name)
                except ResourceAllocationException as error:
                    said.add("store full: daemon memory is" in str(error))
        return found

    assert accepted() == {*ON_SERVERS, "plain"}
    with open_store(domain.server_uri("a"), create=False) as store, store.connect("c") as session:
        fill(session.open("r"), until=lambda: not admitted(daemons.path, "full"))
        assert accepted() == {"on-b", "plain"}
        assert said == {True}
    wait_until(lambda: accepted() == {*ON_SERVERS, "plain"}, 10.0)
