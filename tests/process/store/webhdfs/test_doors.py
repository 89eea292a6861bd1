"""WebHDFS doors of several daemons, with TLS and tokens or with neither (R17, R19)."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path

from spark_jms.store.net.sockets import client_context
from spark_jms.store.regions.admin.cluster import stop_daemon as stop
from spark_jms.store.regions.directory.entries import DirectoryFiles
from spark_jms.store.regions.protocol.region_entry import RegionEntry, closed
from spark_jms.testing.domain import wait_until
from tests.harness.programs.other_user import OTHER_UID, asked_by_other_user
from tests.harness.services.certificates import certificate
from tests.harness.services.daemons import Daemons
from tests.harness.stores.regions_cluster import has_all_copies

TOKEN = "0123456789abcdef-secret"


def server_of(daemons: Daemons) -> int:
    """The number of the daemon whose door serves the namespace."""
    told = daemons.cluster.directory.published_service("webhdfs")
    return daemons.doors.index(int(told["door"].rpartition(":")[2]))


class Doors:
    def __init__(self, path: Path, daemons: int = 3) -> None:
        cert, key = certificate(path)
        tokens = path / "tokens"
        tokens.write_text(f"alice {TOKEN}\n")
        tokens.chmod(0o600)
        self.trust = client_context(cert.read_text())
        settings = {
            "RS_DOOR_CERTIFICATE": str(cert),
            "RS_DOOR_KEY": str(key),
            "RS_DOOR_TOKENS": str(tokens),
            "RS_DOOR_REGION_MB": "8",
        }
        self.daemons = Daemons(path / "global", daemons, "64M", settings, doors=True)

    def ask(self, number: int, method: str, path: str, op: str, data: bytes | None = None) -> bytes | int:
        """The body, or the status of a refusal; 0 when the door is down."""
        url = f"https://127.0.0.1:{self.daemons.doors[number]}/webhdfs/v1{path}?op={op}&data=true"
        request = urllib.request.Request(url, data, {"Authorization": f"Bearer {TOKEN}"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.trust) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0


def test_stopped_door_that_wakes_answers_no_stale_read(tmp_path: Path) -> None:
    """R8, R19: another door serves the namespace meanwhile, and a file changes. Questions wait at the stopped door."""
    doors = Doors(tmp_path)
    try:
        wait_until(lambda: all(doors.ask(n, "PUT", "/d", "MKDIRS") == b'{"boolean":true}' for n in range(3)), 30.0)
        serving = server_of(doors.daemons)
        other = (serving + 1) % 3
        assert doors.ask(serving, "PUT", "/d/f", "CREATE", b"old") == b""
        assert doors.ask(serving, "GET", "/d/f", "OPEN") == b"old"
        wait_until(lambda: has_all_copies(doors.daemons.path, range(3)), 30.0)
        doors.daemons.signal(serving, signal.SIGSTOP)
        answers: list[bytes | int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(doors.ask(serving, "GET", "/d/f", "OPEN"))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: doors.ask(other, "PUT", "/d/f", "CREATE&overwrite=true", b"new") == b"", 60.0)
        doors.daemons.signal(serving, signal.SIGCONT)
        for thread in threads:
            thread.join(60)
        assert len(answers) == 8
        assert b"old" not in answers
        wait_until(lambda: doors.ask(serving, "GET", "/d/f", "OPEN") == b"new", 30.0)
    finally:
        doors.daemons.close()


def test_doors_forward_requests_over_tls(tmp_path: Path) -> None:
    """R17, R19: any door forwards to the one that serves, with TLS throughout; when that one dies, another one serves."""
    doors = Doors(tmp_path)
    data = os.urandom(2_000_000)
    try:
        wait_until(lambda: all(doors.ask(n, "PUT", "/d", "MKDIRS") == b'{"boolean":true}' for n in range(3)), 30.0)
        serving = server_of(doors.daemons)
        others = [number for number in range(3) if number != serving]
        assert doors.ask(others[0], "PUT", "/d/f", "CREATE", data) == b""
        assert [doors.ask(number, "GET", "/d/f", "OPEN") for number in range(3)] == [data] * 3
        wait_until(lambda: has_all_copies(doors.daemons.path, range(3)), 30.0)
        doors.daemons.signal(serving, 9)
        wait_until(lambda: [doors.ask(number, "GET", "/d/f", "OPEN") for number in others] == [data] * 2, 30.0)
        assert server_of(doors.daemons) in others
    finally:
        doors.daemons.close()


def test_door_closes_its_namespace_when_its_daemon_stops_by_force(tmp_path: Path) -> None:
    """R4, R19: the daemon serves its own door until that has closed its regions, so the stop does not wait for a time-out."""
    doors = Doors(tmp_path, daemons=1)
    try:
        wait_until(lambda: doors.ask(0, "PUT", "/d", "MKDIRS") == b'{"boolean":true}', 30.0)
        files = DirectoryFiles(doors.daemons.cluster.directory)
        before = files.read("webhdfs.000")
        assert isinstance(before, RegionEntry)
        assert before.opener is not None
        assert stop(["-dir", str(doors.daemons.path), "-force"]) == 0
        assert doors.daemons.processes[0].wait(30) == 0
        assert files.read("webhdfs.000") == closed(before)
    finally:
        doors.daemons.close()


class LocalDoors:
    """Doors on loopback without tokens, which admit the user that runs their daemons."""

    def __init__(self, path: Path, **environment: str) -> None:
        self.daemons = Daemons(path / "global", 3, "64M", {"RS_DOOR_REGION_MB": "8", **environment}, doors=True)

    def ask(self, number: int, op: str, uid: int | None = None, method: str = "GET") -> tuple[int, str]:
        """Status and body of the answer to this user, or to another one; 0 when the door is down."""
        target, port = f"/webhdfs/v1/d?op={op}", self.daemons.doors[number]
        if uid is not None:
            return asked_by_other_user(port, target, uid=uid, method=method)
        url = f"http://127.0.0.1:{port}{target}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""


def test_all_doors_admit_their_own_user_also_after_fail_over(tmp_path: Path) -> None:
    """R17, R19: at the door that serves, at those that forward to it, and at the one that takes over."""
    doors = LocalDoors(tmp_path)
    try:
        alive = list(range(3))
        wait_until(lambda: all(doors.ask(n, "MKDIRS", method="PUT")[0] == 200 for n in alive), 30.0)
        wait_until(lambda: has_all_copies(doors.daemons.path, range(3)), 30.0)
        for _ in range(2):
            for number in alive:
                status, body = doors.ask(number, "DELETE&recursive=true", OTHER_UID, "DELETE")
                assert (status, json.loads(body)["RemoteException"]["exception"]) == (403, "AccessControlException")
                assert doors.ask(number, "GETFILESTATUS")[0] == 200
            if len(alive) == 3:
                dead = server_of(doors.daemons)
                doors.daemons.signal(dead, signal.SIGKILL)
                alive.remove(dead)
                wait_until(lambda: all(doors.ask(n, "GETFILESTATUS")[0] == 200 for n in alive), 30.0)
        assert server_of(doors.daemons) in alive
    finally:
        doors.daemons.close()


def test_open_doors_warn_in_the_log_of_their_daemon(tmp_path: Path) -> None:
    """R17: RS_DOOR_OPEN admits every user, and each daemon logs it."""
    doors = LocalDoors(tmp_path, RS_DOOR_OPEN="true")
    try:
        wait_until(lambda: all(doors.ask(n, "MKDIRS", method="PUT")[0] == 200 for n in range(3)), 30.0)
        assert [doors.ask(number, "GETFILESTATUS", OTHER_UID)[0] for number in range(3)] == [200] * 3
        logs = "".join(file.read_text() for file in (doors.daemons.path / "logs").rglob("*") if file.is_file())
        for port in doors.daemons.doors:
            assert f"the WebHDFS door at 127.0.0.1:{port} is open: every user of this machine may read" in logs
    finally:
        doors.daemons.close()
