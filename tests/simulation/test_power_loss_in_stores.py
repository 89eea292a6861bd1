"""The file store on a machine that loses power at every step (S9): harness/stores/power_loss.py says what may be left on the disk.

After each loss the store opens without a manual step, has every acknowledged commit, and of the one under way all or nothing.
Then it takes more commits, and loses power again at some steps of that.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from spark_jms.store import Handle, OutcomeUnknownError, Put, StoreError
from spark_jms.store.file.store import FileStore
from tests.harness.stores.journal_files import bury
from tests.harness.stores.power_loss import Death, Machine, PowerLossDisk

RECORDS = ("a", "b", "c")
PLACE = "above/of/store"  # none of these folders exists before the store
LIMIT_S = 30.0
LOCK_SLOT_BYTES = 25  # at most, of what a writer notes in the lock file
IMAGES = 3  # for each step, beside the one that loses power again


@dataclass
class Promise:
    """The number of the last commit that was acknowledged, and of the last one that was begun."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)

    def commit(self, handle: Handle, random: Random) -> None:
        number = self.begun.get(handle.name, 0) + 1
        self.begun[handle.name] = number
        keys = [f"k{key}" for key in range(random.randrange(2, 5))]
        size = random.choice((1, 40, 700, 3000))
        handle.commit([Put("n", b"%d" % number), *(Put(key, _value(number, key, size)) for key in keys)])
        self.acknowledged[handle.name] = number

    def check(self, store: FileStore, acknowledged: dict[str, int], begun: dict[str, int]) -> None:
        for name in begun:
            found = store.peek(name)
            number = int(found.pop("n", b"0"))
            assert acknowledged.get(name, 0) <= number <= begun[name], f"{name}: commit {number} of {acknowledged}"
            latest = [int(value.split(b":")[0]) for value in found.values()]
            assert max(latest, default=0) == number, f"{name}: half of commit {number}"
            for key, value in found.items():
                assert value == _value(int(value.split(b":")[0]), key, len(value))


def _value(number: int, key: str, size: int) -> bytes:
    head = f"{number}:{key}:".encode()
    return head + bytes((number + at) % 251 for at in range(max(0, size - len(head))))


class Losses:
    """Losses of power of one machine, one before each of its steps, each on an image of its disk. `again`: the share of the
    steps after it at which power is lost once more."""

    def __init__(self, machine: Machine, promise: Promise, random: Random, folder: Path, again: float | None) -> None:
        self.machine, self.promise, self.random, self.folder, self.again = machine, promise, random, folder, again
        self.count = 0
        machine.before_step = self.lose

    def lose_sometimes(self, share: float) -> None:
        if self.random.random() < share:
            self.lose()

    def lose(self) -> None:
        for _ in range(IMAGES if self.again else 0):
            self.lose_once(None)
        self.lose_once(self.again)

    def lose_once(self, again: float | None) -> None:
        acknowledged = dict(self.promise.acknowledged)
        image = self.machine.after_power_loss(self.random, self.folder / f"{self.again}-{self.count}")
        begun = dict(self.promise.begun)
        self.count += 1
        with running(image) as machine:
            disk = PowerLossDisk(machine)
            if again:
                after, share = Promise(acknowledged, begun), again
                second = Losses(machine, after, self.random, self.folder, None)
                machine.before_step = lambda: second.lose_sometimes(share)
            with FileStore(str(image / PLACE), disk=disk) as store:
                Promise().check(store, acknowledged, begun)
                if again:
                    recommit(store, after, self.random)
            machine.before_step = lambda: None
        shutil.rmtree(image)


def recommit(store: FileStore, promise: Promise, random: Random) -> None:
    """The numbers continue behind what is there."""
    with store.connect() as session:
        for name in random.sample(RECORDS, 2):
            handle = session.open(name)
            promise.begun[name] = max(promise.begun.get(name, 0), int(handle.read("n") or b"0"))
            promise.commit(handle, random)


@contextmanager
def running(root: Path) -> Iterator[Machine]:
    machine = Machine(root)
    try:
        yield machine
    finally:
        machine.close()


class StoppingDisk(PowerLossDisk):
    """Of a process that is stopped before its next write or sync of a frame once `stops` is set, until `wakes` is."""

    def __init__(self, machine: Machine, call: str) -> None:
        super().__init__(machine)
        self.stops, self.stopped, self.wakes = threading.Event(), threading.Event(), threading.Event()
        self._call = call

    def _reach(self, call: str) -> None:
        if self.stops.is_set() and call == self._call:
            self.stopped.set()
            assert self.wakes.wait(LIMIT_S)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if len(data) > LOCK_SLOT_BYTES:
            self._reach("pwrite")
        return super().pwrite(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._reach("sync")
        super().sync(fd)


class Course:
    """What processes do to one store of the machine."""

    def __init__(self, machine: Machine, random: Random) -> None:
        self.machine, self.random = machine, random
        self.promise = Promise()
        self.path = str(machine.root / PLACE)

    def store(self) -> tuple[FileStore, PowerLossDisk]:
        disk = PowerLossDisk(self.machine)
        reserve = self.random.choice((0, 1024, 8192))
        return FileStore(self.path, disk=disk, reserve_limit=reserve, compact_min_bytes=1 << 20), disk

    def two_instances(self) -> None:
        one, other = self.store()[0], self.store()[0]
        with one, other, one.connect() as first, other.connect() as second:
            handles = [first.open("a"), second.open("b"), first.open("c")]
            for _ in range(4):
                self.promise.commit(self.random.choice(handles), self.random)
            self.together(one, handles[0], [handles[2]])

    def together(self, store: FileStore, leader: Handle, others: list[Handle]) -> None:
        """The others queue up while the leader writes, and share the next write."""
        threads: list[threading.Thread] = []
        lose, queue = self.machine.before_step, store._backend._group._queue  # type: ignore[attr-defined]

        def queue_up() -> None:
            self.machine.before_step = lose
            pause = threading.Event()
            for number, handle in enumerate(others):
                threads.append(threading.Thread(target=self.promise.commit, args=(handle, Random(number))))
                threads[-1].start()
                while len(queue) <= number:
                    assert not pause.wait(0.001)
            lose()

        self.machine.before_step = queue_up
        self.promise.commit(leader, self.random)
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    def compacted(self) -> None:
        store, _ = self.store()
        with store, store.connect() as session:
            handle = session.open("b")
            self.promise.commit(handle, self.random)
            store.compact()
            self.promise.commit(handle, self.random)

    def death(self, call: str, act: Callable[[FileStore, Handle], object]) -> None:
        """One process dies at this call, and another one, which is open, writes next."""
        living, _ = self.store()
        with living, living.connect() as session:
            theirs = session.open("b")
            dead, disk = self.store()
            try:
                handle = dead.connect().open("a")
                disk.dies_at = call
                act(dead, handle)
            except Death:
                pass
            finally:
                bury(dead)
            self.promise.commit(theirs, self.random)
            self.promise.commit(theirs, self.random)

    def error(self, calls: list[str], act: Callable[[FileStore, Handle], object]) -> None:
        """The disk fails once at each of these calls; the process goes on, and so does another one."""
        living, _ = self.store()
        store, disk = self.store()
        with living, store, living.connect() as other, store.connect() as session:
            theirs, ours = other.open("b"), session.open("a")
            self.promise.commit(ours, self.random)
            disk.fails_at = calls
            for _ in calls:
                with contextlib.suppress(StoreError):
                    act(store, ours)
            disk.fails_at = []
            for handle in (theirs, ours, ours, theirs):
                self.promise.commit(handle, self.random)

    def stopped_writer(self, call: str) -> None:
        """A writer is stopped at this call for so long that another process breaks its lock; then it wakes."""
        disk = StoppingDisk(self.machine, call)
        other = FileStore(self.path, disk=PowerLossDisk(self.machine), session_timeout_ms=200)
        with FileStore(self.path, disk=disk) as stopped, other, stopped.connect() as ours, other.connect() as theirs:
            handle, their_handle = ours.open("a"), theirs.open("b")

            def commit() -> None:
                with contextlib.suppress(OutcomeUnknownError):
                    self.promise.commit(handle, Random(0))

            disk.stops.set()
            thread = threading.Thread(target=commit)
            thread.start()
            assert disk.stopped.wait(LIMIT_S)
            self.promise.commit(their_handle, self.random)
            assert other.statistics().lock_break_count == 1
            self.promise.commit(their_handle, self.random)
            disk.wakes.set()
            thread.join(LIMIT_S)
            assert not thread.is_alive()
            self.promise.commit(their_handle, self.random)

    def commit_by(self, store: FileStore, handle: Handle) -> None:
        self.promise.commit(handle, self.random)

    def compact_by(self, store: FileStore, handle: Handle) -> None:
        store.compact()


STEPS: dict[str, Callable[[Course], object]] = {
    "two instances": Course.two_instances,
    "compaction": Course.compacted,
    "torn write": lambda course: course.death("pwrite", course.commit_by),
    "death before the sync": lambda course: [course.death("sync", course.commit_by) for _ in range(3)],
    "a writer stopped before it writes": lambda course: course.stopped_writer("pwrite"),
    "a writer stopped before it syncs": lambda course: course.stopped_writer("sync"),
    "death before the link": lambda course: course.death("link", course.compact_by),
    "a sync that fails": lambda course: course.error(["sync"], course.commit_by),
    "a write that fails and cannot be cut off": lambda course: course.error(["sync", "truncate"], course.commit_by),
    "a link that fails": lambda course: course.error(["link"], course.compact_by),
    "a name that cannot be synced": lambda course: course.error(["sync_folder", "sync_folder"], course.compact_by),
    "death before the name is synced": lambda course: course.death("sync_folder", course.compact_by),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("seed", range(2))
def test_store_keeps_acknowledged_commits_through_losses_of_power(path_in_memory: Path, step: str, seed: int) -> None:
    """S9: one kind of event; power is lost at every step, also in recovery, and again after it."""
    follow(path_in_memory, Random(f"{step} {seed}"), [step])


def test_store_keeps_acknowledged_commits_through_a_long_course(path_in_memory: Path) -> None:
    """S9: several events, in any order."""
    random = Random(1)
    follow(path_in_memory, random, random.sample([*STEPS], 4))


def follow(path: Path, random: Random, steps: list[str]) -> None:
    root, images = path / "machine", path / "images"
    root.mkdir()
    images.mkdir()
    with running(root) as machine:
        course = Course(machine, random)
        losses = Losses(machine, course.promise, random, images, again=0.1)
        for step in steps:
            STEPS[step](course)
        losses.lose()
    assert losses.count > 15
