"""Daemons start, leave and return; what they refuse; which files they make, with which modes (R1-R6, R8, R11, R12,
R17)."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spark_jms.cli.__main__ import cli
from spark_jms.store.errors import (
    AuthenticationError,
    ClusterMismatchError,
    DaemonUnavailableError,
    NoLocalDaemonError,
    ShutdownRefusedError,
    StoreError,
)
from spark_jms.store.regions.admin.api import Admin
from spark_jms.store.regions.admin.cluster import DaemonAdmin
from spark_jms.store.regions.admin.cluster import stop_daemon as stop
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.daemon.daemon import Daemon
from spark_jms.store.regions.daemon.options import StartOptions
from spark_jms.store.regions.daemon.shared_memory import can_lock
from spark_jms.store.regions.directory.global_directory import GlobalDirectory
from spark_jms.store.regions.protocol.connection import connect
from spark_jms.store.regions.protocol.messages import Open
from spark_jms.testing.domain import wait_until
from tests.harness.processes import forked
from tests.harness.services.daemons import segments
from tests.harness.stores.regions_cluster import (
    Make,
    has_all_copies,
    lists,
    opened,
    store_at,
    wait_for_copies,
    wait_until_missed,
)

MB = 1 << 20


def run(*words: str, limit_s: float = 60.0, address_space: int = 0) -> tuple[int, str, str]:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (address_space, address_space))

    done = forked.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        timeout=limit_s,
        preexec_fn=limited if address_space else None,
    )
    return done.returncode, done.stdout, done.stderr


def start_fails(path: Path, localindex: int = 0, address_space: int = 0) -> str:
    """The single line that a failed start prints."""
    code, _, err = run(
        "spark_jms.store.kinds.daemon", "-dir", str(path), "-localindex", str(localindex), address_space=address_space
    )
    assert code == 1
    assert len(err.splitlines()) == 1, err
    return err


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write_some(path: Path, store: str, daemon: int, data: bytes = b"data") -> None:
    async def write() -> None:
        async with store_at(path, store, daemon) as instance:
            await (await instance.connection("c")).create(data)

    asyncio.run(write())


def read_all(path: Path, store: str, daemon: int) -> list[bytes]:
    async def read() -> list[bytes]:
        async with store_at(path, store, daemon) as instance:
            objects = await instance.connection("c")
            return [await objects.read(handle) for handle in objects.handles()]

    return asyncio.run(read())


# ---- leaving and returning


def test_safe_shutdown_in_four_steps(make_daemons: Make) -> None:
    """R4, R6: refused while a region is open, and without room; then opens wait, regions move, and the daemon stops."""
    daemons = make_daemons(3, "8M")
    path = daemons.path

    async def first_steps() -> None:
        async with store_at(path, "s", 0, region_mb=3):
            admin = await asyncio.to_thread(DaemonAdmin, str(path), 0)
            with pytest.raises(ShutdownRefusedError, match=r"s\.000 is open"):
                await asyncio.to_thread(admin.shutdown, [0], False)
            await asyncio.to_thread(admin.close)

    asyncio.run(first_steps())
    # A primary in doubt, as on a machine that stalled, closes as soon as the directory has answered it.
    wait_until(lambda: "OPEN" not in {region.status for region in lists(path, 0)[1]}, 10.0)
    with Admin(str(path), 0) as admin:
        with pytest.raises(ShutdownRefusedError, match="1 daemon would be left"):
            admin.shutdown("0,1")
        assert all(daemon.up for daemon in admin.daemons())
        before = {region.name for region in admin.regions()}
        admin.shutdown("local")
        assert not admin.attached
    daemons.processes[0].wait(10)
    assert daemons.processes[0].returncode == 0
    wait_until(lambda: has_all_copies(path, [1, 2], 1), 30.0)
    assert {region.name for region in lists(path, 1)[1]} == before == {"s.000"}
    assert segments(path)
    with Admin(str(path), 1) as admin:
        with pytest.raises(ShutdownRefusedError, match="no daemon would be left"):
            admin.shutdown("all")
        admin.shutdown("all", force=True)
    for process in daemons.processes.values():
        assert process.wait(10) == 0
    assert segments(path) == set()


def test_daemon_that_stops_with_the_only_copy_names_it(make_daemons: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """R18: on SIGTERM without another daemon, and on a forced stop; a region that has a copy elsewhere is not lost."""
    daemons = make_daemons(2)
    write_some(daemons.path, "s", 0)
    wait_for_copies(daemons)
    assert stop(["-dir", str(daemons.path), "-localindex", "1", "-force"]) == 0
    assert daemons.processes[1].wait(10) == 0
    assert "is lost" not in capfd.readouterr().err + daemons.output()
    write_some(daemons.path, "t", 0)
    wait_until_missed(daemons, 1, by=0)
    daemons.signal(0, signal.SIGTERM)
    assert daemons.processes[0].wait(40) == 0
    for name in ("s.000", "t.000"):
        assert f"region {name} is lost with this daemon, which stops with its only copy" in daemons.output()
    daemons.start(0)
    daemons.start(1)
    daemons.cluster.wait_healthy()
    assert sorted((region.name, region.status) for region in lists(daemons.path, 0)[1]) == [
        ("s.000", "LOST"),
        ("t.000", "LOST"),
    ]
    write_some(daemons.path, "u", 0)
    daemons.signal(1, signal.SIGKILL)
    wait_until_missed(daemons, 1, by=0)
    assert stop(["-dir", str(daemons.path), "-force"]) == 0
    assert "region u.000 is lost: no other daemon had a copy" in capfd.readouterr().err


def test_daemon_moves_its_regions_on_sigterm_and_returns(make_daemons: Make) -> None:
    """R4, R10, R15: open regions too, and their client continues elsewhere. Started again, the daemon gets copies again."""
    daemons = make_daemons(3)
    write_some(daemons.path, "closed", 0)

    async def leave() -> None:
        instance = await opened(daemons.path, "open", 0)
        await (await instance.connection("c")).create(b"data")
        daemons.signal(0, signal.SIGTERM)
        assert await asyncio.to_thread(daemons.processes[0].wait, 30) == 0
        with pytest.raises(StoreError):
            await (await instance.connection("d")).create(b"late")
        await instance.close()

    asyncio.run(leave())
    assert has_all_copies(daemons.path, [1, 2], 1)  # no region had a single copy at any moment
    assert read_all(daemons.path, "open", 1) == [b"data"]
    assert read_all(daemons.path, "closed", 2) == [b"data"]
    daemons.start(0)
    wait_for_copies(daemons)
    assert read_all(daemons.path, "open", 0) == [b"data"]


# ---- what is refused


def test_changed_cfg_is_refused(make_daemons: Make) -> None:
    """R2: to new daemons, stores and administrators; running ones continue."""
    daemons = make_daemons(2)
    path = daemons.path

    async def check() -> None:
        async with store_at(path, "s", 0) as instance:
            objects = await instance.connection("c")
            daemons.signal(1, signal.SIGKILL)
            cfg = path / "rs_daemons.cfg"
            before = cfg.read_bytes()
            cfg.write_bytes(before + b"# edited\n")
            await objects.create(b"served")
            assert "ClusterMismatchError" in await asyncio.to_thread(start_fails, path, 1)
            with pytest.raises(ClusterMismatchError):
                await StoreInstance.open(GlobalDirectory(str(path)), "other")
            with pytest.raises(ClusterMismatchError):
                await asyncio.to_thread(DaemonAdmin, str(path), 0)
            await objects.create(b"still served")
            cfg.write_bytes(b"nonsense\n")
            assert "DaemonConfigError" in await asyncio.to_thread(start_fails, path, 1)
            await objects.create(b"still")
            cfg.write_bytes(before)
            daemons.start(1)
            await asyncio.to_thread(wait_for_copies, daemons)
            await objects.create(b"two copies again")

    asyncio.run(check())


def test_daemon_refuses_before_the_first_frame(make_daemons: Make, tmp_path: Path) -> None:
    """R17: a wrong secret, another directory with the same cfg, and a peer that sends no Hello."""
    daemons = make_daemons(2)
    directory = GlobalDirectory(str(daemons.path))
    config = directory.config()
    spec, identity = config.daemons[0], directory.identity(config)
    secret = directory.secret(0)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(daemons.path, elsewhere)

    async def check() -> None:
        for wrong in (secret[:-1], bytes(32), directory.secret(1)):
            with pytest.raises(AuthenticationError):
                await connect(spec.address, spec.port, wrong, identity)
        with pytest.raises(ClusterMismatchError):
            await StoreInstance.open(GlobalDirectory(str(elsewhere)), "s")
        link = tmp_path / "link"
        link.symlink_to(daemons.path)
        async with store_at(link, "s", 0):  # the same directory by another name
            pass
        connection = await connect(spec.address, spec.port, secret, identity)
        connection.send(Open(1, "s.000", 0))  # without a Hello
        with pytest.raises(OSError):
            await connection.first()
        connection.abort()

    asyncio.run(check())
    for error in ("AuthenticationError", "ClusterMismatchError", "ProtocolError"):
        wait_until(lambda error=error: f"refused: {error}" in daemons.output(), 10.0)  # type: ignore[misc]
    daemons.signal(0, signal.SIGKILL)
    daemons.start(0)
    daemons.cluster.wait_healthy()
    assert directory.secret(0) != secret


# ---- files


def test_modes_of_files_and_shared_memory(make_daemons: Make) -> None:
    """R5, R8, R12, R17: secrets and locks are for the user, logs readable by the group, shared memory for the group."""
    daemons = make_daemons(2)
    path = daemons.path

    async def check() -> None:
        async with store_at(path, "s", 0) as instance:
            await (await instance.connection("c")).create(b"data")
            assert (path / "regions/s.000.RGN").exists()
            assert mode(path / "regions/s.000_client_meta.f") == 0o640
            for segment in segments(path):
                assert mode(segment) == 0o660
                assert segment.stat().st_blocks * 512 >= MB  # its pages are allocated
            assert len(segments(path)) == 2

    asyncio.run(check())
    assert (path / "regions/s.000.RGN").exists()
    assert not (path / "regions/s.000_client_meta.f").exists()
    assert mode(path / "daemons") == 0o700
    for file in (path / "daemons").rglob("*"):
        assert mode(file) == (0o700 if file.is_dir() else 0o600), file
    logs = sorted(log.name for log in (path / "logs").glob("rs_daemon_*"))
    ports = [daemon.port for daemon in GlobalDirectory(str(path)).config().daemons]
    assert logs == [f"rs_daemon_00{index}_127.0.0.1_{port:05d}_000.log" for index, port in enumerate(ports)]
    assert {mode(path / "logs" / name) for name in logs} == {0o640}
    assert not list(path.rglob(".*"))  # no temporary file remains


@pytest.mark.skipif(not can_lock(256 * MB), reason="this user may not lock memory")
def test_daemons_lock_their_regions(make_daemons: Make) -> None:
    """R12, R17: on both copies; the system's tools show the segments with their size and group permission."""
    daemons = make_daemons(2)
    write_some(daemons.path, "s", 0)
    for process in daemons.processes.values():
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        assert [line.split()[1:] for line in status if line.startswith("VmLck")] == [["1024", "kB"]]
    found = [path.stat() for path in segments(daemons.path)]
    assert [(each.st_size, stat.S_IMODE(each.st_mode)) for each in found] == [(MB, 0o660)] * 2


def test_shared_memory_of_a_killed_daemon_is_removed(make_daemons: Make) -> None:
    """R12: by the tracker beside it or, if that was killed too, by the next start, even with another cfg."""
    daemons = make_daemons(2)
    write_some(daemons.path, "s", 0)
    assert len(segments(daemons.path)) == 2
    for index in (0, 1):
        os.killpg(daemons.processes[index].pid, signal.SIGKILL)  # the daemon and its tracker, which share a session
        daemons.processes[index].wait()
    assert len(segments(daemons.path)) == 2
    cfg = daemons.path / "rs_daemons.cfg"
    cfg.write_bytes(cfg.read_bytes() + b"# edited\n")
    for index in (0, 1):
        daemons.start(index)
    daemons.cluster.wait_healthy()
    assert segments(daemons.path) == set()
    assert [region.status for region in lists(daemons.path, 0)[1]] == ["LOST"]


# ---- starts that fail


def test_failed_start_prints_its_reason_in_one_line(make_daemons: Make, tmp_path: Path) -> None:
    """R1, R3, R12, R18: with the file, the value and the limit."""
    daemons = make_daemons(2)
    path = daemons.path
    output = start_fails(path)
    assert f"daemon 0 runs already, as process {daemons.processes[0].pid}" in output
    spec = GlobalDirectory(str(path)).config().daemons[1]
    daemons.signal(1, signal.SIGKILL)
    with socket.create_server((spec.address, spec.port)):
        assert f"cannot listen at 127.0.0.1:{spec.port}: " in start_fails(path, 1)
    assert "above RLIMIT_FSIZE, 1 MB" in start_fails(path, 1, address_space=MB)
    with pytest.raises(NoLocalDaemonError):
        GlobalDirectory(str(elsewhere(tmp_path, "192.0.2.7 7000 7000 1M"))).local_daemon(
            GlobalDirectory(str(tmp_path / "c0")).config(), 0
        )
    assert "192.0.2.7" in start_fails(tmp_path / "c0")
    assert "above /dev/shm's" in start_fails(elsewhere(tmp_path, "127.0.0.1 7000 7000 900000G"))
    two = "127.0.0.1 7000 7000 1M\nlocalhost 7001 7000 1M"
    assert "key 0x1b58 is already taken" in start_fails(elsewhere(tmp_path, two))  # two names of one machine
    assert "the same shared memory key" in start_fails(elsewhere(tmp_path, two.replace("localhost", "::1")))
    assert "rs_daemons.cfg" in start_fails(tmp_path / "nowhere")
    assert "port '80'" in start_fails(elsewhere(tmp_path, "127.0.0.1 80 7000 1M"))
    daemons.start(1)
    daemons.cluster.wait_healthy()


def elsewhere(tmp_path: Path, cfg: str) -> Path:
    path = tmp_path / f"c{len(list(tmp_path.glob('c*')))}"
    path.mkdir()
    (path / "rs_daemons.cfg").write_text(cfg)
    return path


def test_daemons_starting_together_accept_a_new_cfg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R2: a daemon that has locked its file and not yet published its incarnation does not count for the old cfg."""
    path = elsewhere(tmp_path, "127.0.0.1 7000 7000 1M\n127.0.0.1 7001 7001 1M")
    directory = GlobalDirectory(str(path))
    lock = directory.lock_daemon(1, "old", "another checksum")
    try:
        first = Daemon(StartOptions(str(path)))
        monkeypatch.setattr("spark_jms.store.regions.daemon.daemon.OTHERS_START_S", 0.0)
        with pytest.raises(ClusterMismatchError, match="daemon 1 runs with an earlier"):
            first.check_others()
        monkeypatch.setattr("spark_jms.store.regions.daemon.daemon.OTHERS_START_S", 60.0)
        checksum = directory.config().checksum
        monkeypatch.setattr(
            "spark_jms.store.regions.daemon.daemon.time.sleep", lambda seconds: directory.tell(lock, "new", checksum)
        )
        first.check_others()
    finally:
        os.close(lock)


def test_open_fails_when_no_daemon_runs(make_daemons: Make) -> None:
    """R18: for stores and administrators, with an error of its own."""
    daemons = make_daemons(2)
    for index in (0, 1):
        daemons.signal(index, signal.SIGKILL)

    async def check() -> None:
        with pytest.raises(NoLocalDaemonError):
            await StoreInstance.open(GlobalDirectory(str(daemons.path)), "s")

    asyncio.run(check())
    with pytest.raises(DaemonUnavailableError):
        DaemonAdmin(str(daemons.path), 0)


# ---- the administration utility on a real cluster


def test_dry_run_of_store_down(make_daemons: Make) -> None:
    """R4, C14: names the daemons and the regions that no other daemon holds, and what a safe stop would be refused for; nothing is
    stopped. With --force it announces them."""
    daemons = make_daemons(2)
    write_some(daemons.path, "kept", 0)

    def down(*words: str) -> Result:
        done = CliRunner().invoke(cli, ["store", "down", "--dir", str(daemons.path), *words])
        assert done.exit_code == 0, done.output
        return done

    assert down("--dry-run").stdout == (
        "would refuse to stop 0, 1: no daemon would be left, and 1 region(s) need two\n"
        "only these daemons hold 1 region(s) with all their data: kept.000\n"
    )
    assert down("--dry-run", "--force").stdout == (
        "would stop: 0, 1\nwould lose 1 region(s) with all their data: kept.000\n"
    )
    assert json.loads(down("--dry-run", "--json").stdout) == {
        "stopped": [],
        "refused": "no daemon would be left, and 1 region(s) need two",
        "lost_regions": ["kept.000"],
        "dry_run": True,
    }
    assert json.loads(down("--dry-run", "--force", "--json").stdout)["stopped"] == [0, 1]
    assert all(info.up for info in daemons.cluster.wait_healthy())
    stopped = down("--force")
    assert stopped.stderr == "jmsq: stopping daemons 0, 1; this loses 1 region(s) with all their data: kept.000\n"
    assert stopped.stdout == "stopped: 0, 1\n"
    assert json.loads(down("--dry-run", "--json").stdout)["stopped"] == []


def test_storeadmin_runs_every_command(make_daemons: Make) -> None:
    """R6: lsd, lsr, rmr, shutdown, one command at a time."""
    daemons = make_daemons(3)
    path = str(daemons.path)
    write_some(daemons.path, "closed", 0)

    def admin(command: str, *words: str) -> tuple[int, str, str]:
        return run("spark_jms.cli", "store", "admin", command, "-dir", path, *words)

    async def check() -> None:
        async with store_at(daemons.path, "open", 1) as instance:
            await (await instance.connection("c")).create(b"data")
            code, out, err = await asyncio.to_thread(admin, "lsr")
            assert (code, err) == (0, "")
            lines = {line.split()[0]: line.split() for line in out.splitlines() if ".000" in line}
            assert lines["closed.000"][1:4] == ["CLOSED", "000", "001"]
            assert lines["open.000"][1:4] == ["OPEN", "001", "002"]
            code, out, _ = await asyncio.to_thread(admin, "lsd", "-format", "list")
            assert code == 0
            assert out.count("127.0.0.1") == 3
            code, out, err = await asyncio.to_thread(admin, "rmr", "open.000")
            assert code == 1
            assert "Another client has the region open" in out + err
            code, out, err = await asyncio.to_thread(admin, "rmr", "-force", "open.000")
            assert (code, err) == (0, "")
            assert "Region open.000 was open: its store fails until Region open.000 is removed again." in out
            with pytest.raises(StoreError):
                await (await instance.connection("d")).create(b"late")
        for expression in ("open.000", "closed.*"):
            code, out, err = await asyncio.to_thread(admin, "rmr", expression)
            assert (code, err) == (0, "")

    asyncio.run(check())
    assert lists(daemons.path, 0)[1] == []
    wait_until(lambda: not segments(daemons.path), 10.0)
    assert admin("shutdown", "-daemon", "2")[0] == 0
    assert daemons.processes[2].wait(10) == 0
    wait_until_missed(daemons, 2, by=0)
    assert admin("shutdown", "-daemon", "all", "-safe")[0] == 0
    assert [daemons.processes[index].wait(10) for index in (0, 1)] == [0, 0]
    assert admin("lsd")[0] == 1


def test_daemon_with_other_timeouts_is_refused(make_daemons: Make) -> None:
    """R10: a primary's lease would not end before its secondary takes over. The others do not link up with it, and it gets no
    copy."""
    daemons = make_daemons(3)
    daemons.signal(2, signal.SIGKILL)
    daemons.environment["RS_FAILURE_TIMEOUT_MS"] = "5000"
    daemons.start(2)
    refusal = "daemon 2 has RS_HEARTBEAT_MS=200, RS_FAILURE_TIMEOUT_MS=5000, this daemon has RS_HEARTBEAT_MS=200, RS_"
    wait_until(lambda: daemons.output().count(refusal) == 2, 30.0)
    assert [info.up for info in lists(daemons.path, 0)[0]] == [True, True, False]

    async def run() -> None:
        async with store_at(daemons.path, "s", 0) as store:
            objects = await store.connection("c")
            assert await objects.read(await objects.create(b"kept")) == b"kept"

    asyncio.run(run())
