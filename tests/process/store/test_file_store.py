"""The file store with real processes: killed, stopped, forked (S9, R8, C9)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from spark_jms.store import Put, Store, open_store
from tests.harness.processes import forked
from tests.harness.project import PROJECT

HOLDER = """
import sys
from spark_jms.store import FencedError, Put, open_store
store = open_store(sys.argv[1], session_timeout_ms=int(sys.argv[2]))
session = store.connect("child")
handle = session.open("r", timeout_ms=20_000)
handle.commit([Put("by", b"child")])
print("open", handle.epoch, flush=True)
for line in sys.stdin:
    try:
        handle.commit([Put("by", line.strip().encode())])
        print("committed", flush=True)
    except FencedError as error:
        print(type(error).__name__, flush=True)
"""

STORM = """
import sys, threading
from spark_jms.store import FencedError, OutcomeUnknownError, Put
from spark_jms.store.file import FileStore
store = FileStore(sys.argv[1], session_timeout_ms=int(sys.argv[2]), compact_min_bytes=20_000)
session = store.connect("storm")
out = threading.Lock()
def tell(text):
    with out:
        sys.stdout.write(text + "\\n")
        sys.stdout.flush()
def work(name):
    handle = session.open(name, timeout_ms=20_000)
    number = int(handle.read("n") or b"0")
    try:
        while True:
            number += 1
            handle.commit([Put("n", b"%d" % number), Put("twin", b"%d" % number), Put("pad", b"x" * 200)])
            tell(f"{name} {number}")
    except (FencedError, OutcomeUnknownError) as error:
        tell(f"{name} {type(error).__name__}")
threads = [threading.Thread(target=work, args=(f"r{i}",)) for i in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""

FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")
from spark_jms.store import Put, StoreClosedError, open_store
store = open_store(sys.argv[1])
session = store.connect("parent")
handle = session.open("r")
handle.commit([Put("by", b"parent")])
pid = os.fork()
if pid == 0:
    for call in (store.names, store.statistics, handle.objects, lambda: handle.commit([Put("by", b"child")]),
                 store.connect, lambda: session.open("x"), store.sessions):
        try:
            call()
        except StoreClosedError as error:
            assert "fork" in str(error)
            continue
        print("not refused", call, flush=True)
    session.close()
    store.close()
    with open_store(sys.argv[1]) as own:
        print("child sees", sorted(own.peek("r")), len(own.sessions()), own.info("r").epoch, flush=True)
    print("ready", os.getpid(), flush=True)
    sys.stdin.readline()
    os._exit(0)
os.waitpid(pid, 0)
"""


class Children:
    """The processes of one test; each is ended by its own id."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(self, code: str, *arguments: object) -> subprocess.Popen[str]:
        child = forked.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(child)
        return child

    def close(self) -> None:
        for child in self.started:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.kill()
            child.wait(20)
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    yield made
    made.close()


def out(child: subprocess.Popen[str]) -> IO[str]:
    assert child.stdout is not None
    return child.stdout


def tell(child: subprocess.Popen[str], line: str) -> str:
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()
    return out(child).readline().strip()


def wait_stopped(child: subprocess.Popen[str]) -> None:
    """Waits until SIGSTOP has taken effect."""
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_a_killed_holder_frees_its_record_sets_at_once(tmp_path: Path, children: Children) -> None:
    """R8: another process gets them within 1 s, though the session time-out is 10 s."""
    child = children.start(HOLDER, tmp_path / "s", 10_000)
    assert out(child).readline() == "open 1\n"
    with open_store(str(tmp_path / "s")) as store, store.connect() as session:
        assert len(store.sessions()) == 2
        child.kill()
        killed_s = time.monotonic()
        handle = session.open("r", timeout_ms=5_000)
        assert time.monotonic() - killed_s < 1.0
        assert (handle.epoch, handle.objects()) == (2, {"by": b"child"})
        assert len(store.sessions()) == 1


def test_a_waiting_process_gets_the_record_set_of_a_killed_holder(tmp_path: Path, children: Children) -> None:
    first = children.start(HOLDER, tmp_path / "s", 10_000)
    assert out(first).readline() == "open 1\n"
    second = children.start(HOLDER, tmp_path / "s", 10_000)
    with open_store(str(tmp_path / "s")) as store:
        wait_for_waiters(store, 1)
        first.kill()
        assert out(second).readline() == "open 2\n"
        assert tell(second, "second") == "committed"
        assert store.peek("r") == {"by": b"second"}


def wait_for_waiters(store: Store, count: int) -> None:
    deadline_s = time.monotonic() + 20
    while (info := store.info("r")) is None or len(info.waiters) != count:
        assert time.monotonic() < deadline_s
        os.sched_yield()


@pytest.mark.parametrize("kill_after", [1, 40, 155])
def test_a_kill_under_load_loses_no_acknowledged_commit(tmp_path: Path, children: Children, kill_after: int) -> None:
    """S9: kill -9 during concurrent commits and compactions."""
    path = tmp_path / "s"
    for _ in range(2):
        child = children.start(STORM, path, 10_000)
        acknowledged: dict[str, int] = {}
        for count, line in enumerate(out(child), start=1):
            if line.endswith("\n"):
                name, number = line.split()
                acknowledged[name] = int(number)
            if count == kill_after:
                child.kill()
        assert acknowledged, "the child ended before its first commit"
        with open_store(str(path)) as store:
            for name, number in acknowledged.items():
                objects = store.peek(name)
                assert number <= int(objects["n"]) <= number + 1
                assert objects["n"] == objects["twin"]
            assert store.sessions() == {}


def test_a_stopped_holder_is_overtaken_and_fenced(tmp_path: Path, children: Children) -> None:
    """C9: SIGSTOP for longer than session_timeout_ms; after SIGCONT it changes nothing."""
    child = children.start(HOLDER, tmp_path / "s", 1_500)
    assert out(child).readline() == "open 1\n"
    assert tell(child, "child") == "committed"
    child.send_signal(signal.SIGSTOP)
    wait_stopped(child)
    with open_store(str(tmp_path / "s"), session_timeout_ms=1_500) as store, store.connect() as session:
        handle = session.open("r", timeout_ms=10_000)
        assert (handle.epoch, handle.objects()) == (2, {"by": b"child"})
        handle.commit([Put("by", b"parent")])
        child.send_signal(signal.SIGCONT)
        assert tell(child, "late") == "StaleEpochError"
        assert tell(child, "later") == "StaleEpochError"
        handle.close()
        assert tell(child, "latest") in ("StaleEpochError", "SessionLostError")
        assert store.peek("r") == {"by": b"parent"}
        assert set(store.sessions()) == {session.session_id}


@pytest.mark.parametrize("stop_after", [50, 51, 52])
def test_a_process_stopped_under_load_is_overtaken_and_fenced(
    tmp_path: Path, children: Children, stop_after: int
) -> None:
    """C9: most likely stopped during a write, with the journal locked."""
    path = tmp_path / "s"
    child = children.start(STORM, path, 700)
    acknowledged: dict[str, int] = {}
    lines = 0
    while lines < stop_after or len(acknowledged) < 3:  # on a fast disk one thread writes often before another opens
        name, number = out(child).readline().split()
        acknowledged[name] = int(number)
        lines += 1
    child.send_signal(signal.SIGSTOP)
    wait_stopped(child)
    with open_store(str(path), session_timeout_ms=700) as store, store.connect() as session:
        handles = [session.open(f"r{number}", timeout_ms=20_000) for number in range(3)]
        found = {handle.name: int(handle.read("n") or b"0") for handle in handles}
        child.send_signal(signal.SIGCONT)
        fenced, unknown = set(), set()
        for line in out(child):
            name, word = line.split()
            if word.isdigit():
                acknowledged[name] = int(word)
            else:
                assert word in ("StaleEpochError", "SessionLostError", "OutcomeUnknownError")
                fenced.add(name)
                unknown |= {name} if word == "OutcomeUnknownError" else set()
        assert fenced == {"r0", "r1", "r2"}
        for handle in handles:
            assert handle.epoch == 2
            assert int(handle.read("n") or b"0") == found[handle.name]
            assert found[handle.name] - acknowledged[handle.name] in ({0, 1} if handle.name in unknown else {0})
            handle.commit([Put("n", b"0")])


def test_a_forked_child_neither_uses_nor_keeps_the_parents_store(tmp_path: Path, children: Children) -> None:
    """C9: the child gets a named error, may open its own store, and does not keep the parent's locks alive."""
    parent = children.start(FORK, tmp_path / "s")
    assert out(parent).readline() == "child sees ['by'] 1 1\n"
    line = out(parent).readline().split()
    assert line[0] == "ready"
    child_pid = int(line[1])
    try:
        with open_store(str(tmp_path / "s")) as store, store.connect() as session:
            parent.kill()
            assert session.open("r", timeout_ms=2_000).epoch == 2
            assert store.peek("r") == {"by": b"parent"}
    finally:
        os.kill(child_pid, signal.SIGKILL)
