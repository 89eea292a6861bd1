"""The Global Directory of a cluster: the real one on a disk in memory, the laws that every change obeys, and its faults."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.directory.entries import DirectoryFiles, EntryGathering, GatheredBy, decode_entry
from spark_jms.store.regions.directory.global_directory import CONFIG, ENTRIES, GlobalDirectory, quoted
from spark_jms.store.regions.protocol.region_entry import Absent, DirectoryListing, DirectoryPort, Holder, RegionEntry
from tests.models.regions import laws
from tests.models.regions.errors import Promise, Violation
from tests.models.regions.memory_disk import ROOT, MemoryDisk, MemoryFile, MemoryFolder

Changed = Callable[[Holder, str, RegionEntry | None, RegionEntry | None, bool], None]
Refused = Callable[[Holder, str, str], None]


class DirectoryContents:
    """What is on the disk, and which daemons are alive. `entries`: what a reader finds; kept by each change. `opens`: per region
    the epoch of its last OPENED."""

    def __init__(self, changed: Changed, refused: Refused, now_s: Callable[[], int]) -> None:
        self.entries: dict[str, RegionEntry] = {}
        self.alive: set[Holder] = set()
        self.opens: dict[str, int] = {}
        self.unwanted: set[str] = set()  # regions whose removal was asked for
        self.discards = False  # the next removal is that of a damaged entry
        self.now_s = now_s
        self.root = MemoryFolder({CONFIG: MemoryFile(b"127.0.0.1 7100 7100 1M\n")})
        self._changed = changed
        self.refused = refused
        self._gathering: set[str] = set()  # removed, and to be gathered up when the next creation comes
        self._epochs: dict[tuple[str, str], int] = {}  # the highest one used, per region and id
        directory = GlobalDirectory(ROOT, MemoryDisk(lambda: self.root, now_s))
        directory.prepare()
        self.identity = directory.read_identity()

    def _node(self, path: str) -> MemoryFolder | None:
        node: MemoryFile | MemoryFolder | None = self.root
        for name in path.split("/"):
            node = node.nodes.get(name) if isinstance(node, MemoryFolder) else None
        return node if isinstance(node, MemoryFolder) else None

    def newest(self, name: str) -> MemoryFile | None:
        """The version of the region's entry that counts."""
        folder = self._node(f"{ENTRIES}/{quoted(name)}")
        versions = {int(number): node for number, node in folder.nodes.items() if number.isdigit()} if folder else {}
        newest = versions[max(versions)] if versions else None
        return newest if isinstance(newest, MemoryFile) else None

    def linked(self, me: Holder, folder: MemoryFolder, file: MemoryFile) -> bool:
        """A daemon linked a version of an entry into this folder. False: no reader looks at it, as it is not the newest one."""
        entries = self._node(ENTRIES)
        name = next((name for name, node in entries.nodes.items() if node is folder), "") if entries else ""
        if not name or self.newest(unquote(name)) is not file:
            return False
        found = decode_entry(name, file.data)
        if not isinstance(found, GatheredBy):
            self._apply(me, unquote(name), self.entries.get(unquote(name)), found)
        return True

    def _apply(self, me: Holder, name: str, current: RegionEntry | None, new: RegionEntry | None) -> None:
        if not self.discards:
            self._check(me, current, new)
        opened = False
        if new is None:
            if current is None:
                return
            del self.entries[name]
            if (current.epoch + len(name)) % 3 == 0:  # not drawn: seeds keep their course
                self._gathering.add(name)
            opened = self.opens.pop(name, None) is not None
        else:
            if new.opener and (current is None or current.opener is None):
                self.opens[name] = new.epoch
            self.entries[name] = new
            if current is not None and new.primary.incarnation == "" != current.primary.incarnation:
                opened = self.opens.pop(name, None) is not None
        self._changed(me, name, current, new, opened)

    def is_to_be_gathered(self, name: str) -> bool:
        """Once: the first creation on an old entry may find that a daemon gathers it up, and has to be repeated."""
        if name not in self._gathering:
            return False
        self._gathering.discard(name)
        return True

    def _check(self, me: Holder, current: RegionEntry | None, new: RegionEntry | None) -> None:
        if new is not None:
            key = (new.name, new.region_id)
            if new.epoch <= self._epochs.get(key, 0):
                raise Violation(Promise.ONE_EPOCH, f"region {new.name}: epoch {new.epoch} was used before")
            self._epochs[key] = new.epoch
            if new.secondary is not None and new.secondary.daemon == new.primary.daemon:
                raise Violation(Promise.PLACED, f"region {new.name}: both copies on daemon {new.primary.daemon}")
        if current is None and new is not None:
            laws.check_created(me, new)
        elif current is not None and new is None:
            wanted = current.name in self.unwanted or current.name not in self.opens
            copy_lives = any(holder in self.alive for holder in current.holders())
            laws.check_deleted(me, current, current.primary in self.alive, copy_lives, wanted)
        elif current is not None and new is not None:
            wanted = current.name in self.unwanted
            laws.check_changed(me, current, new, current.primary in self.alive, wanted)


class Damage:
    """Regions whose newest file reads as something else for a while."""

    def __init__(self, contents: DirectoryContents, damage: Callable[[bytes], bytes]) -> None:
        self._contents = contents
        self._damage = damage
        self._files: dict[str, MemoryFile] = {}

    def add(self, name: str) -> None:
        self.discard(name)
        file = self._contents.newest(name)
        if file is not None:
            file.damages.append(self._damage)
            self._files[name] = file

    def discard(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None:
            file.damages.remove(self._damage)

    def clear(self) -> None:
        for name in list(self._files):
            self.discard(name)


def torn(data: bytes) -> bytes:
    return data[: len(data) // 2]


def newer(data: bytes) -> bytes:
    """As a daemon of a later version writes it; what is torn as well stays torn."""
    if not data.endswith(b"\n"):
        return data
    fields = json.loads(data.split(b"\n")[0])
    body = json.dumps({**fields, "version": 2})
    return f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n".encode()


@dataclass
class DirectoryFaults:
    """How often the directory fails, drawn from the seed. The default never does."""

    chance: random.Random
    later: Callable[[float, Callable[[], None]], None]
    torn: Damage
    newer: Damage
    failing: float = 0.0  # share of requests whose calls of the system fail; half of the failed swaps have happened
    late: float = 0.0  # share of swaps without an answer that happen later, if they still fit
    stalling: float = 0.0  # share of requests after which the daemon stands still
    slow_ms: float = 0.0  # what a request takes longer, at most; so does its answer
    empty: bool = False  # the path leads to an empty mount point
    hangs_until_ms: float = 0.0  # no request reaches it, and no answer leaves it, before that
    steps: random.Random = field(default_factory=lambda: random.Random(0))  # which calls: seeds keep their course
    pending: list[RegionEntry] = field(default_factory=list)  # entries that changes on their way would write

    def fails(self) -> bool:
        return self.failing > 0 and self.chance.random() < self.failing

    def delays(self) -> bool:
        return self.late > 0 and self.chance.random() < self.late

    def stalls(self) -> bool:
        return self.stalling > 0 and self.chance.random() < self.stalling

    def extra_ms(self) -> float:
        return self.chance.uniform(0, self.slow_ms) if self.slow_ms else 0.0

    def end(self) -> None:
        self.failing, self.late, self.stalling, self.slow_ms, self.empty = 0.0, 0.0, 0.0, 0.0, False
        self.hangs_until_ms = 0.0
        self.torn.clear()
        self.newer.clear()


@dataclass
class LateChange:
    """The first change that `which` accepts gets no answer, and happens when the test calls `land`. With
    `then_unavailable`, the directory answers nothing from then on until the change lands."""

    which: Callable[[RegionEntry | None], bool]
    then_unavailable: bool
    _land: Callable[[], bool] | None = None

    @property
    def given_up(self) -> bool:
        return self._land is not None

    def give_up(self, land: Callable[[], bool]) -> None:
        self._land = land

    def land(self) -> bool:
        """False: the change does not fit any more."""
        assert self._land is not None, "no such change was asked for"
        return self._land()


class SimFiles(DirectoryFiles):
    """Which daemons run, the simulator knows: their locks are not on this disk."""

    def __init__(self, contents: DirectoryContents, directory: GlobalDirectory) -> None:
        super().__init__(directory, contents.identity)
        self._alive = contents.alive

    def running(self, holder: Holder) -> bool:
        return holder in self._alive


class FaultyDisk(MemoryDisk):
    """As one life of a daemon sees it. `late`: gets the link of the request under way, which may happen later."""

    def __init__(self, contents: DirectoryContents, faults: DirectoryFaults, me: Holder) -> None:
        super().__init__(lambda: MemoryFolder() if self.empty or faults.empty else contents.root, contents.now_s)
        self._contents = contents
        self._me = me
        self.available = True
        self.empty = False
        self.refuses = ""  # a call that fails
        self.late: Callable[[Callable[[], bool]], None] | None = None
        self._succeed: int | None = None  # that many calls, before one fails
        self._and_on = self._after_link = False

    def request(self) -> None:
        """A new one, of which nothing fails."""
        self.refuses, self.late, self._succeed, self._and_on, self._after_link = "", None, None, False, False

    def fail(self, succeed: int, and_on: bool, after_link: bool = False) -> None:
        """After that many calls one fails, `and_on`: and those after it. `after_link`: only calls after a link count."""
        self._succeed, self._and_on, self._after_link = succeed, and_on, after_link

    def before(self, call: str) -> None:
        if not self.available:
            raise OSError("the directory is away")
        if call == self.refuses:
            raise OSError(f"{call} fails")
        if self._succeed is None or self._after_link:
            return
        self._succeed -= 1
        if self._succeed < 0:
            if not self._and_on:
                self._succeed = None
            raise OSError(f"{call} fails")

    def land(self, folder: MemoryFolder, name: str, file: MemoryFile) -> bool:
        self._after_link = False
        if self.late is None:
            return self._land(folder, name, file)
        late, self.late = self.late, None
        late(partial(self._land, folder, name, file))
        raise OSError("it is on its way")

    def _land(self, folder: MemoryFolder, name: str, file: MemoryFile) -> bool:
        return super().land(folder, name, file) and self._contents.linked(self._me, folder, file)


class SimDirectory(DirectoryPort):
    """The directory as one life of a daemon sees it. Tests set `answering`, `late_change`, `disk.available` and `disk.empty`."""

    def __init__(self, contents: DirectoryContents, faults: DirectoryFaults, me: Holder) -> None:
        self.contents = contents
        self.faults = faults
        self.me = me
        self.disk = FaultyDisk(contents, faults, me)
        directory = GlobalDirectory(ROOT, self.disk)
        self._files = SimFiles(contents, directory)
        self._gathering = EntryGathering(directory, self._files, me)
        self.answering = True  # False: swaps happen, and the caller gets an error
        self.late_change: LateChange | None = None

    def _begin(self, calls: int) -> None:
        """A request. If it fails, one of its first calls does."""
        self.disk.request()
        if self.faults.fails():
            self.disk.fail(self.faults.steps.randrange(calls), self.faults.steps.random() < 0.5)

    def read(self, name: str) -> RegionEntry | Absent:
        self._begin(3)
        return self._files.read(name)

    def entries(self) -> DirectoryListing:
        self._begin(self.faults.steps.choice((3, 10 + 4 * len(self.contents.entries))))
        return self._files.entries()

    def discard(self, name: str) -> bool:
        self.disk.request()
        self.contents.discards = True
        try:
            return self._files.discard(name)
        finally:
            self.contents.discards = False

    def running(self, holder: Holder) -> bool:
        if not self.disk.available or self.faults.fails() or self.disk.empty or self.faults.empty:
            raise DirectoryUnavailableError("read")
        return self._files.running(holder)

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        self.disk.request()
        gathers = old is None and self.contents.is_to_be_gathered(name)
        if gathers:
            self._gather(but="rename")
        self._draw_faults(name, new)
        try:
            done = self._files.swap(name, old, new)
        except DirectoryUnavailableError as error:
            self.contents.refused(self.me, name, error.detail())
            raise
        finally:
            self.disk.request()
            if gathers:
                self._gather()
        if not done:
            self.contents.refused(self.me, name, "changed meanwhile")
        if not self.answering:
            self.contents.refused(self.me, name, "it happened, and the answer was lost")
            raise DirectoryUnavailableError("write: no answer")
        return done

    def _gather(self, but: str = "") -> None:
        """The entries of removed regions, on another thread of this daemon. `but`: not beyond this call."""
        self.disk.refuses = but
        with contextlib.suppress(DirectoryUnavailableError):
            self._gathering.gather(self.contents.now_s() + 1, 0.0)
        self.disk.request()

    def _draw_faults(self, name: str, new: RegionEntry | None) -> None:
        change, faults = self.late_change, self.faults
        if change is not None and not change.given_up and change.which(new):
            self.disk.late = partial(self._give_up, change)
        elif faults.delays():
            self.disk.late = partial(self._land_later, new)
        elif faults.fails():
            happens = faults.chance.random() >= 0.5
            self.disk.fail(faults.steps.randrange(15 if happens else 6), faults.steps.random() < 0.5, happens)

    def _give_up(self, change: LateChange, happens: Callable[[], bool]) -> None:
        def land() -> bool:
            self.disk.available = True
            return happens()

        change.give_up(land)
        self.disk.available = not change.then_unavailable

    def _land_later(self, new: RegionEntry | None, happens: Callable[[], bool]) -> None:
        """The change happens later, even after its writer's death."""
        faults = self.faults

        def land() -> None:
            if new is not None:
                faults.pending.remove(new)
            happens()

        if new is not None:
            faults.pending.append(new)
        faults.later(faults.chance.choice((20, 200, 1_000, 4_000)) * faults.chance.uniform(0.5, 1.5), land)
