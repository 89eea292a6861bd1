"""The Global Directory in memory: its contents, the laws that every change obeys, and its faults."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_jms.store.errors import DirectoryUnavailableError, RegionEntryDamagedError, RegionEntryVersionError
from spark_jms.store.regions.core.directory import Absent, DirectoryListing, DirectoryPort, Holder, RegionEntry
from tests.simulator import laws
from tests.simulator.errors import Promise, Violation

Changed = Callable[[Holder, str, RegionEntry | None, RegionEntry | None, bool], None]
Refused = Callable[[Holder, str, str], None]


class DirectoryContents:
    """The entries, and which daemons are alive. `opens`: per region the epoch of its last OPENED."""

    def __init__(self, changed: Changed, refused: Refused) -> None:
        self.entries: dict[str, RegionEntry] = {}
        self.removed: set[str] = set()  # regions whose removal is recorded
        self._gathering: set[str] = set()  # of those, whose entry is being gathered up when the next creation comes
        self.alive: set[Holder] = set()
        self.opens: dict[str, int] = {}
        self.unwanted: set[str] = set()  # regions whose removal was asked for
        self._changed = changed
        self.refused = refused
        self._epochs: dict[tuple[str, str], int] = {}  # the highest one used, per region and id

    def fits(self, name: str, old: RegionEntry | None) -> bool:
        current = self.entries.get(name)
        return (current.tag if current else None) == (old.tag if old else None)

    def apply(self, me: Holder, name: str, current: RegionEntry | None, new: RegionEntry | None) -> None:
        self._check(me, current, new)
        opened = False
        if new is None:
            if current is None:
                return
            del self.entries[name]
            self.removed.add(name)
            if (current.epoch + len(name)) % 3 == 0:  # not drawn: seeds keep their course
                self._gathering.add(name)
            opened = self.opens.pop(name, None) is not None
        else:
            if new.opener and (current is None or current.opener is None):
                self.opens[name] = new.epoch
            self.entries[name] = new
            self.removed.discard(name)
            if current is not None and new.primary.incarnation == "" != current.primary.incarnation:
                opened = self.opens.pop(name, None) is not None
        self._changed(me, name, current, new, opened)

    def is_gathered_up(self, name: str) -> bool:
        """The first creation on an old entry may find that a daemon gathers it up, and has to be repeated."""
        if name not in self._gathering:
            return False
        self._gathering.discard(name)
        return True

    def discard(self, me: Holder, name: str) -> None:
        """An administrator removes a region whose entry is damaged, whichever daemon serves it."""
        old = self.entries.pop(name)
        self.removed.add(name)
        self._changed(me, name, old, None, self.opens.pop(name, None) is not None)

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


@dataclass
class DirectoryFaults:
    """How often the directory fails, drawn from the seed. The default never does."""

    chance: random.Random
    later: Callable[[float, Callable[[], None]], None]
    failing: float = 0.0  # share of calls that fail; half of the failed swaps have happened
    late: float = 0.0  # share of swaps without an answer that happen later, if they still fit
    stalling: float = 0.0  # share of requests after which the daemon stands still
    slow_ms: float = 0.0  # what a request takes longer, at most; so does its answer
    empty: bool = False  # the path leads to an empty mount point
    hangs_until_ms: float = 0.0  # no request reaches it, and no answer leaves it, before that
    torn: set[str] = field(default_factory=set)  # regions whose file cannot be read for a while
    newer: set[str] = field(default_factory=set)  # regions whose file has a newer format for a while
    pending: list[RegionEntry] = field(default_factory=list)  # entries that changes on their way would write

    def fails(self) -> bool:
        return self.failing > 0 and self.chance.random() < self.failing

    def delays(self) -> bool:
        return self.late > 0 and self.chance.random() < self.late

    def stalls(self) -> bool:
        return self.stalling > 0 and self.chance.random() < self.stalling

    def extra_ms(self) -> float:
        return self.chance.uniform(0, self.slow_ms) if self.slow_ms else 0.0

    def unreadable(self, name: str) -> DirectoryUnavailableError | None:
        if name in self.torn:
            return RegionEntryDamagedError(name, "torn")
        return RegionEntryVersionError(name, 2, 1) if name in self.newer else None

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


class SimDirectory(DirectoryPort):
    """The directory as one life of a daemon sees it. Tests set `available`, `answering`, `empty` and `late_change` by hand."""

    def __init__(self, contents: DirectoryContents, faults: DirectoryFaults, me: Holder) -> None:
        self.contents = contents
        self.faults = faults
        self.me = me
        self.available = True
        self.empty = False
        self.answering = True  # False: swaps happen, and the caller gets an error
        self.late_change: LateChange | None = None

    def _fails(self) -> bool:
        if not self.available:
            raise DirectoryUnavailableError("the directory is away")
        return self.faults.fails()

    def _is_empty(self) -> bool:
        return self.empty or self.faults.empty

    def read(self, name: str) -> RegionEntry | Absent:
        if self._fails():
            raise DirectoryUnavailableError("read")
        found = self._found(name)
        unreadable = self.faults.unreadable(name)
        if unreadable is not None and isinstance(found, RegionEntry):
            raise unreadable
        return found

    def _found(self, name: str) -> RegionEntry | Absent:
        if self._is_empty():
            return Absent.UNSEEN
        return self.contents.entries.get(name) or (Absent.REMOVED if name in self.contents.removed else Absent.NOTHING)

    def entries(self) -> DirectoryListing:
        if self._fails():
            raise DirectoryUnavailableError("read")
        if self._is_empty():
            raise DirectoryUnavailableError("the directory is empty")
        entries = self.contents.entries
        unreadable = {name: error for name in entries if (error := self.faults.unreadable(name)) is not None}
        return DirectoryListing(
            {name: entry for name, entry in entries.items() if name not in unreadable},
            frozenset(self.contents.removed),
            unreadable,
        )

    def discard(self, name: str) -> bool:
        if not isinstance(self._found(name), RegionEntry) or name not in self.faults.torn:
            return False
        self.faults.torn.discard(name)
        self.contents.discard(self.me, name)
        return True

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        done = self._swap(name, old, new)
        if not self.answering:
            raise self._unanswered(name, "it happened, and the answer was lost")
        return done

    def _unanswered(self, name: str, reason: str) -> DirectoryUnavailableError:
        self.contents.refused(self.me, name, reason)
        return DirectoryUnavailableError("write: no answer")

    def _swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        if not self.available:
            raise self._unanswered(name, "the directory is away")
        if self._is_empty():
            raise self._unanswered(name, "the directory is empty")
        if old is None and self.contents.is_gathered_up(name):
            raise self._unanswered(name, "its old entry is being gathered up")
        self._delay(name, old, new)
        failing = self._fails() or self.faults.unreadable(name) is not None
        if failing and self.faults.chance.random() < 0.5:
            raise self._unanswered(name, "refused")
        if failing and not self.contents.fits(name, old):
            raise self._unanswered(name, "torn")
        done = self._land(name, old, new)
        if failing:
            raise self._unanswered(name, "it happened, and the answer was lost")
        return done

    def _delay(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> None:
        change = self.late_change
        if change is not None and not change.given_up and change.which(new):
            change.give_up(lambda: self._land(name, old, new))
            self.available = not change.then_unavailable
        elif self.faults.delays():
            self._land_later(name, old, new)
        else:
            return
        raise self._unanswered(name, "it is on its way")

    def _land(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        self.available = True
        if not self.contents.fits(name, old):
            self.contents.refused(self.me, name, "changed meanwhile")
            return False
        self.apply(name, self.contents.entries.get(name), new)
        return True

    def _land_later(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> None:
        """The change happens later, even after its writer's death."""
        faults = self.faults

        def land() -> None:
            if new is not None:
                faults.pending.remove(new)
            self._land(name, old, new)

        if new is not None:
            faults.pending.append(new)
        faults.later(faults.chance.choice((20, 200, 1_000, 4_000)) * faults.chance.uniform(0.5, 1.5), land)

    def apply(self, name: str, current: RegionEntry | None, new: RegionEntry | None) -> None:
        self.contents.apply(self.me, name, current, new)

    def running(self, holder: Holder) -> bool:
        if self._fails() or self._is_empty():
            raise DirectoryUnavailableError("read")
        return holder in self.contents.alive
