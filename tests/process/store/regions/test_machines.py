"""A region store on three machines, with processes of its domain on each; machines and networks fail (R10, R15, R17)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jms.store.regions.directory.global_directory import GlobalDirectory
from spark_jms.testing.domain import wait_until
from tests.harness.project import PROJECT
from tests.harness.services.certificates import certificate
from tests.harness.services.daemons import segments
from tests.harness.services.machines import Machines, kill, why_not
from tests.process.store.replicated.test_records import PEER, Peer

COUNT = 3
LOOK = """
import json, sys
from spark_jms.store.regions.admin import Admin
with Admin(sys.argv[1]) as admin:
    up = [daemon.up for daemon in admin.daemons()]
    print(json.dumps([up, [[r.status, r.primary, r.secondary, r.opener] for r in admin.regions()]]))
"""


class Remote(Peer):
    """A process of the domain on one machine."""

    def __init__(self, site: Site, number: int, name: str) -> None:
        command = site.machines[number].command([sys.executable, "-c", PEER, site.uri, name])
        self.process = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.answer() == "ready"

    def kill(self) -> None:
        kill(self.process)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # the machine went down
                stream.close()


class Site:
    """A daemon on each machine, and a store with the same URI on all of them."""

    def __init__(self, machines: Machines, path: Path, names: bool = False) -> None:
        """`names`: the cfg has names, which the hosts files of the machines know."""
        self.machines = machines
        self.path = path / "global"
        self.path.mkdir()
        known = {machine.address: f"node{machine.number}.test" for machine in machines.all}
        lines = [f"{known[machine.address] if names else machine.address} 4545 4545 256M" for machine in machines.all]
        if names:
            hosts = path / "hosts"
            hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{where} {name}\n" for where, name in known.items()))
            for machine in machines.all:
                machine.use_hosts(hosts)
        (self.path / "rs_daemons.cfg").write_text("\n".join(lines))
        cert, key = certificate(path)
        engine = f"engine_host=daemon&engine_certificate={cert}&engine_key={key}"
        self.uri = f"replicated://{self.path}?store=records&region_mb=8&{engine}"
        self.directory = GlobalDirectory(str(self.path))
        self.directory.prepare()
        self.daemons = [self.start(number) for number in range(len(machines.all))]
        self.peers: list[Remote] = []
        wait_until(lambda: self.look(0)[0] == [True] * COUNT, 30.0)

    def start(self, number: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "spark_jms.store.kinds.daemon", "-dir", self.path]
        return self.machines[number].start(words, {}, self.path / f"daemon{number}.out")

    def peer(self, number: int) -> Remote:
        self.peers.append(Remote(self, number, f"p{number}"))
        return self.peers[-1]

    def look(self, number: int) -> tuple[list[bool], list[list[object]]]:
        command = self.machines[number].command([sys.executable, "-c", LOOK, self.path])
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            return [], []
        up, regions = json.loads(done.stdout)
        return up, regions

    def wait_for_copies(self, number: int) -> None:
        wait_until(lambda: {row[0] for row in self.look(number)[1]} <= {"OPEN", "CLOSED"}, 30.0, "two copies")

    def wait_until_missed(self, number: int) -> None:
        wait_until(lambda: sum(self.look(number)[0]) == COUNT - 1, 30.0, "the others miss one daemon")

    def engine(self) -> int:
        """The machine whose process serves the records now."""
        host = self.directory.published_service("records")["host"]
        return next(machine.number for machine in self.machines.all if machine.address == host)

    def close(self) -> None:
        for peer in self.peers:
            peer.kill()
        for daemon in self.daemons:
            kill(daemon)


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    if reason := why_not():
        pytest.skip(reason)
    machines = Machines(COUNT)
    try:
        made = Site(machines, tmp_path, names=getattr(request, "param", False))
        yield made
        made.close()
    finally:
        machines.close()
        for segment in segments(tmp_path / "global"):  # a real machine that goes down loses its memory
            segment.unlink()


def opened(site: Site) -> list[Remote]:
    peers = [site.peer(number) for number in range(COUNT)]
    for number, peer in enumerate(peers):
        assert peer.do(f"open r{number}") == "open 1"
        assert peer.do(f"put r{number} first v{number}") == "done"
    site.wait_for_copies(0)
    return peers


def test_engine_moves_to_another_machine(site: Site) -> None:
    """R15, R17: processes on three machines use one store over TLS. After its engine is killed, the store opens on another
    machine, and a process that starts on the old machine finds it there."""
    peers = opened(site)
    assert site.engine() == 0
    regions = site.look(1)[1]
    assert [row[1] for row in regions] == [0]
    assert str(regions[0][3]).startswith("records@machine0:")
    peers[1].begin("open r0")
    peers[0].kill()
    assert int(peers[1].answer().split()[1]) == 2
    assert peers[1].do("get r0 first") == "v0"
    for number in (1, 2):
        assert peers[number].do(f"put r{number} second w{number}") == "done"
    assert site.engine() in (1, 2)
    assert [row[1] for row in site.look(0)[1]] == [site.engine()]
    again = site.peer(0)
    assert again.do("open new") == "open 1"
    assert again.do("put new a b") == "done"
    assert site.engine() in (1, 2)


@pytest.mark.parametrize("site", [True, False], indirect=True, ids=["names", "numbers"])
def test_store_survives_a_machine_that_goes_down(site: Site) -> None:
    """R1, R10, R15: with its daemon and engine; acknowledged writes remain, and every region gets two copies again."""
    peers = opened(site)
    site.machines[site.engine()].power_off()
    for number in (1, 2):
        assert peers[number].do(f"get r{number} first") == f"v{number}"
        assert peers[number].do(f"put r{number} second w{number}") == "done"
        assert peers[number].do(f"get r{number} second") == f"w{number}"
    assert peers[1].do("open r0") == "open 2"
    assert peers[1].do("get r0 first") == "v0"
    site.wait_for_copies(1)
    assert [{row[1], row[2]} for row in site.look(1)[1]] == [{1, 2}]


def test_store_survives_a_cut_network(site: Site) -> None:
    """R10, R15: the network of the engine's machine is cut; one side continues, the other waits. Once it is back, all
    processes agree, and each handle has its epoch."""
    peers = opened(site)
    for round_ in range(2):
        cut = site.machines[site.engine()]
        cut.plug(False)
        for number, peer in enumerate(peers):
            peer.begin(f"put r{number} round{round_} x{number}")
        site.wait_until_missed((cut.number + 1) % COUNT)
        cut.plug(True)
        for number, peer in enumerate(peers):
            answer = peer.answer()
            if answer != "done":  # its session expired while it was cut off
                assert answer.split()[0] in ("SessionLostError", "StaleEpochError"), answer
                peer.kill()
                peers[number] = site.peer(number)
                assert peers[number].do(f"open r{number}").startswith("open ")
                assert peers[number].do(f"put r{number} round{round_} x{number}") == "done"
        site.wait_for_copies(0)
    for number, peer in enumerate(peers):
        assert peer.do(f"get r{number} first") == f"v{number}"
        assert [peer.do(f"get r{number} round{round_}") for round_ in range(2)] == [f"x{number}"] * 2


def test_store_starts_again_on_its_machine(site: Site) -> None:
    """R15: the daemon there was restarted too; the others kept the region, and it moves back."""
    peer = site.peer(0)
    assert peer.do("open r") == "open 1"
    assert peer.do("put r a b") == "done"
    site.wait_for_copies(1)
    peer.kill()
    kill(site.daemons[0])
    site.wait_for_copies(1)
    assert site.look(1)[1][0][1:3] == [1, 2]
    site.daemons[0] = site.start(0)
    wait_until(lambda: site.look(0)[0] == [True] * COUNT, 30.0)
    again = site.peer(0)
    assert again.do("open r") == "open 2"
    assert again.do("get r a") == "b"
    assert site.engine() == 0
    site.wait_for_copies(0)
    assert site.look(0)[1][0][1:3] == [0, 1]
