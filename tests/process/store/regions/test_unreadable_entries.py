"""One entry of the Global Directory is damaged or newer under real daemons: only its region is refused (R6, R8, R16)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from pathlib import Path

import pytest

from spark_jms.store.errors import RegionEntryDamagedError, RegionEntryVersionError
from spark_jms.store.regions.admin.api import Admin
from spark_jms.store.regions.admin.formats import regions_list
from spark_jms.testing.domain import wait_until
from tests.harness.stores.regions_cluster import Make, lists, opened, store_at, wait_for_copies


def newest(path: Path, region: str) -> Path:
    return max((path / "daemons" / "entries" / region).glob("[0-9]*"), key=lambda file: int(file.name))


def add_version(path: Path, region: str, data: bytes) -> None:
    last = newest(path, region)
    (last.parent / str(int(last.name) + 1)).write_bytes(data)


def newer_entry(path: Path, region: str) -> bytes:
    fields = json.loads(newest(path, region).read_text().split("\n")[0])
    body = json.dumps({**fields, "version": 2, "colour": "red"})
    return f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n".encode()


@pytest.mark.parametrize("newer", [True, False], ids=["newer", "torn"])
def test_unreadable_entry_refuses_one_region(make_daemons: Make, newer: bool) -> None:
    """R6, R8, R16: daemons continue, and start; all other stores work; by force a damaged region is removed."""
    daemons = make_daemons(3)
    path, error = daemons.path, RegionEntryVersionError if newer else RegionEntryDamagedError

    async def run() -> None:
        async with store_at(path, "bad", 0) as bad, store_at(path, "good", 0) as good:
            await (await bad.connection("c")).create(b"bad")
            handle = await (await good.connection("c")).create(b"good")
        await asyncio.to_thread(wait_for_copies, daemons)
        add_version(path, "bad.000", newer_entry(path, "bad.000") if newer else b"torn")
        daemons.signal(0, signal.SIGKILL)
        daemons.start(0)
        await asyncio.to_thread(daemons.cluster.wait_healthy)
        for index in (0, 1, 2):
            async with store_at(path, "good", index) as good:
                assert await (await good.connection("c")).read(handle) == b"good"
            with pytest.raises(error, match=r"bad\.000"):
                await opened(path, "bad", index, limit_s=0.0)
        async with store_at(path, "third", 1):
            pass
        status = {region.name: region.status for region in lists(path, 1)[1]}
        assert status.pop("bad.000") == "UNAVAILABLE"
        assert status.keys() == {"good.000", "third.000"}
        assert "UNAVAILABLE" not in status.values()

    def refusals(index: int) -> int:
        """Log lines of the daemon about the region; each daemon writes one when its audit meets the entry."""
        files = (path / "logs").glob(f"rs_daemon_{index:03d}_*")
        return "".join(file.read_text() for file in files).count("region bad.000 is refused")

    asyncio.run(run())
    for index in (1, 2):
        wait_until(lambda index=index: refusals(index) > 0, 10.0)  # type: ignore[misc]
    with Admin(str(path), 1) as admin:
        assert f"Reason : {path.resolve()}" in regions_list(admin.regions("bad*"), None)
        assert [type(refusal) for _, refusal in admin.remove_regions("bad*").refused] == [error]
        removal = admin.remove_regions("bad*", force=True)
        if newer:
            assert [type(refusal) for _, refusal in removal.refused] == [error]
        else:
            assert removal.removed == ("bad.000",)
            wait_until(lambda: "bad.000" not in {region.name for region in lists(path, 2)[1]}, 10.0)
    for index in (1, 2):
        log = "".join(file.read_text() for file in (path / "logs").glob(f"rs_daemon_{index:03d}_*"))
        assert refusals(index) == 1
        assert "a fault of the daemon itself" not in log
    assert all(process.poll() is None for process in daemons.processes.values())
