"""Record sets on a replicated store when the process of the engine dies, its daemon dies, or a process forks (C9, R10, R15)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_jms.store import open_store
from spark_jms.store.errors import SettingInvalidError
from tests.harness.processes import forked
from tests.harness.project import PROJECT
from tests.harness.services.certificates import certificate
from tests.harness.stores.regions_cluster import FaultyDaemons, Make, wait_for_copies

PEER = """
import os, sys
from spark_jms.store import Put, open_store
store = open_store(sys.argv[1], session_timeout_ms=6_000)
session = store.connect(sys.argv[2])
handles = {}
def do(what, words):
    if what == "open":
        handles[words[0]] = session.open(words[0], timeout_ms=60_000)
        return f"open {handles[words[0]].epoch}"
    if what == "put":
        handles[words[0]].commit([Put(words[1], words[2].encode())])
        return "done"
    if what == "get":
        return (handles[words[0]].read(words[1]) or b"-").decode()
    if what == "waiters":
        return str(len(handles[words[0]].waiters()))
    if what == "fork":  # the child opens the store for itself, and ends without closing the parent's
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                with open_store(sys.argv[1]) as own, own.connect("child") as mine, mine.open(words[0]) as handle:
                    handle.commit([Put("by", b"child")])
                    os.write(write, b"child wrote")
            except BaseException as error:
                os.write(write, repr(error).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return os.read(read, 10_000).decode()
print("ready", flush=True)
for line in sys.stdin:
    what, *words = line.split()
    try:
        print(do(what, words), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


class Peer:
    def __init__(self, uri: str, name: str) -> None:
        self.process = forked.Popen(
            [sys.executable, "-c", PEER, uri, name],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def begin(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, text: str) -> str:
        self.begin(text)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


Start = Callable[[str], Peer]


@pytest.fixture
def daemons(make_daemons: Make) -> FaultyDaemons:
    return make_daemons(3)


@pytest.fixture
def start(daemons: FaultyDaemons) -> Iterator[Start]:
    uri = daemons.uri("records")
    peers: list[Peer] = []

    def begin(name: str) -> Peer:
        peers.append(Peer(uri, name))
        return peers[-1]

    yield begin
    for peer in peers:
        if peer.process.poll() is None:
            peer.kill()


def test_another_process_takes_over_the_engine(daemons: FaultyDaemons, start: Start) -> None:
    """C9, R15: after a kill -9 the next process becomes the engine; its handles stay valid, it gets the record set it waited
    for, and nothing is lost."""
    engine = start("p0")
    assert engine.do("open mine0") == "open 1"
    for number in range(4):
        other = start(f"p{number + 1}")
        assert other.do(f"open mine{number + 1}") == "open 1"
        assert other.do(f"put mine{number + 1} a before") == "done"
        assert engine.do(f"put mine{number} last word") == "done"
        other.begin(f"open mine{number}")
        while engine.do(f"waiters mine{number}") != "1":
            pass
        engine.kill()
        epoch = int(other.answer().split()[1])
        assert epoch == 2
        assert other.do(f"get mine{number} last") == "word"
        assert other.do(f"put mine{number + 1} a after") == "done"
        assert other.do(f"get mine{number + 1} a") == "after"
        engine = other
    engine.kill()
    with open_store(daemons.uri("records")) as store:
        assert [store.peek(f"mine{number}").get("last") for number in range(4)] == [b"word"] * 4


def test_sessions_survive_the_daemon_of_the_engine(daemons: FaultyDaemons, start: Start) -> None:
    """R10: when the daemon of the engine is killed or stopped, all sessions keep their record sets, at the same epoch."""
    peers = [start("p0"), start("p1")]
    for number, peer in enumerate(peers):
        assert peer.do(f"open r{number}") == "open 1"
    written = 0
    for fault in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL, signal.SIGUSR2):
        wait_for_copies(daemons)
        index = primary_of(daemons)
        daemons.signal(index, fault)
        for number, peer in enumerate(peers):
            written += 1
            assert peer.do(f"put r{number} k{written} v{written}") == "done"
            assert peer.do(f"get r{number} k{written}") == f"v{written}"
        if fault == signal.SIGKILL:
            daemons.start(index)
        elif fault == signal.SIGSTOP:
            daemons.signal(index, signal.SIGCONT)
    for peer in peers:
        peer.kill()
    with open_store(daemons.uri("records")) as store:
        for number in (0, 1):
            wanted = {f"k{n}": f"v{n}".encode() for n in range(1, written + 1) if n % 2 == 1 - number}
            assert store.peek(f"r{number}") == wanted


def test_forked_child_closes_nothing_of_its_parent(daemons: FaultyDaemons, start: Start) -> None:
    """C9: the end of the child closes nothing of its parent, whether the parent is the engine or not."""
    peers = [start("p0"), start("p1")]
    for number, peer in enumerate(peers):
        assert peer.do(f"open r{number}") == "open 1"
        assert peer.do(f"fork child{number}") == "child wrote"
        assert peer.do(f"put r{number} a b") == "done"
    with open_store(daemons.uri("records")) as store:
        assert [store.peek(f"child{number}") for number in (0, 1)] == [{"by": b"child"}] * 2
        assert [store.peek(f"r{number}") for number in (0, 1)] == [{"a": b"b"}] * 2
    assert os.path.exists(daemons.path / "daemons" / "records.engine")


def test_engine_refuses_an_address_of_another_machine(daemons: FaultyDaemons, tmp_path: Path) -> None:
    """R15: the engine cannot listen there, is refused by name, and gives the regions back."""
    cert, key = certificate(tmp_path)
    elsewhere = f"&engine_host=192.0.2.77&engine_certificate={cert}&engine_key={key}"
    with pytest.raises(SettingInvalidError, match="engine_host=192.0.2.77: this machine cannot listen there"):
        open_store(daemons.uri("records") + elsewhere)
    open_store(daemons.uri("records")).close()


def primary_of(daemons: FaultyDaemons) -> int:
    from tests.harness.stores.regions_cluster import lists

    primary = lists(daemons.path, daemons.living()[0])[1][0].primary
    assert primary is not None
    return primary
