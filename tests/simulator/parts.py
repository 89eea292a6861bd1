"""What the simulator puts in place of a machine: the directory, memory, and connections."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from spark_jms.store.errors import DirectoryUnavailableError, ProtocolError
from spark_jms.store.regions.core.daemon import MemoryPort
from spark_jms.store.regions.core.directory import DirectoryPort, Holder, RegionEntry
from spark_jms.store.regions.core.protocol import FrameReader, RegionMessage


class Violation(AssertionError):
    """A promise was broken."""


class Killed(BaseException):
    """The process died in the middle of a call."""


class Truth:
    """The Global Directory itself, and who lives."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.entries: dict[str, RegionEntry] = {}
        self.alive: set[Holder] = set()
        self.failing = 0.0  # the share of calls that fail, half of the swaps among them after they happened
        self.torn: set[str] = set()  # names whose files nobody can read for a while
        self.late = 0.0  # the share of swaps that nobody answers, and that happen later, if they still fit
        self.on_the_way: list[RegionEntry] = []  # what these would make of their regions
        self.later: Callable[[float, Callable[[], None]], None] = lambda delay_ms, step: None
        self.stalling = 0.0  # the share of calls in which the process stands still, before or after
        self.stall: Callable[[Holder], None] = lambda holder: None
        self.swaps = 0
        self.opens: dict[str, int] = {}  # epoch of the last OPENED
        self.removed: Callable[[RegionEntry], None] = lambda entry: None
        self.made: Callable[[RegionEntry], None] = lambda entry: None
        self.seen: dict[tuple[str, str], int] = {}


class SimDirectory(DirectoryPort):
    def __init__(self, truth: Truth, me: Holder) -> None:
        self.truth = truth
        self.me = me

    def _fail(self) -> bool:
        return self.truth.failing > 0 and self.truth.chance.random() < self.truth.failing

    def _stall(self) -> None:
        if self.truth.stalling > 0 and self.truth.chance.random() < self.truth.stalling:
            self.truth.stall(self.me)

    def read(self, name: str) -> RegionEntry | None:
        found = self._read(name)
        self._stall()
        return found

    def _read(self, name: str) -> RegionEntry | None:
        if self._fail() or name in self.truth.torn:
            raise DirectoryUnavailableError("read")
        return self.truth.entries.get(name)

    def entries(self) -> Mapping[str, RegionEntry]:
        if self._fail():
            raise DirectoryUnavailableError("read")
        return dict(self.truth.entries)

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        self._stall()
        done = self._swap(name, old, new)
        self._stall()
        return done

    def _swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        if self.truth.late > 0 and self.truth.chance.random() < self.truth.late:
            self._late(name, old, new)
            raise DirectoryUnavailableError("write: on its way")
        failing = self._fail() or name in self.truth.torn
        if failing and self.truth.chance.random() < 0.5:
            raise DirectoryUnavailableError("write: refused")
        current = self.truth.entries.get(name)
        if (current.tag if current else None) != (old.tag if old else None):
            if failing:
                raise DirectoryUnavailableError("write: torn")
            return False
        self.apply(name, current, new)
        if failing:
            raise DirectoryUnavailableError("write: no answer")
        return True

    def _late(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> None:
        """It happens some time, whether its writer lives or not."""
        truth = self.truth

        def land() -> None:
            if new is not None:
                truth.on_the_way.remove(new)
            current = truth.entries.get(name)
            if (current.tag if current else None) == (old.tag if old else None):
                self.apply(name, current, new)

        if new is not None:
            truth.on_the_way.append(new)
        truth.later(truth.chance.choice((20, 200, 1_000, 4_000)) * truth.chance.uniform(0.5, 1.5), land)

    def apply(self, name: str, current: RegionEntry | None, new: RegionEntry | None) -> None:
        truth = self.truth
        truth.swaps += 1
        if current is not None:
            self._lawful(current, new)
        if new is None:
            if current is not None:
                del truth.entries[name]
                if truth.opens.pop(name, None) is not None:  # else nothing was ever in it
                    truth.removed(current)
            return
        key = (name, new.region_id)
        if new.epoch <= truth.seen.get(key, 0):
            raise Violation(f"region {name}: epoch {new.epoch} was used before")
        truth.seen[key] = new.epoch
        if new.secondary is not None and new.secondary.daemon == new.primary.daemon:
            raise Violation(f"region {name}: both copies on daemon {new.primary.daemon}")
        if new.opener and (current is None or current.opener is None):
            truth.opens[name] = new.epoch
        truth.entries[name] = new
        if current is None:
            truth.made(new)

    def _lawful(self, old: RegionEntry, new: RegionEntry | None) -> None:
        """What a change may do to an entry, told apart from how the core does it."""
        alive, name = self.truth.alive, old.name
        if new is None:
            if old.primary != self.me and old.primary in alive and old.epoch > 1:
                raise Violation(f"region {name}: removed by daemon {self.me.daemon}, while its primary lives")
            return
        if new.region_id != old.region_id:
            raise Violation(f"region {name}: replaced without being removed")
        if new.opener and old.opener and new.opener != old.opener:
            raise Violation(f"region {name}: {new.opener} opened what {old.opener} has open")
        if new.opener and not old.opener and old.primary != self.me:
            raise Violation(f"region {name}: opened by daemon {self.me.daemon}, which is not its primary")
        if new.primary != old.primary and self.me not in old.holders():
            raise Violation(f"region {name}: daemon {self.me.daemon} took over a copy that was not listed")
        if new.primary != old.primary and new.opener:
            raise Violation(f"region {name}: moved while {old.opener} has it open")
        if new.secondary not in (None, *old.holders()) and self.me != old.primary:
            raise Violation(f"region {name}: a copy listed by daemon {self.me.daemon}, which is not its primary")

    def running(self, holder: Holder) -> bool:
        if self._fail():
            raise DirectoryUnavailableError("read")
        return holder in self.truth.alive


class SimMemory(MemoryPort):
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: dict[str, int] = {}
        self.total = 0

    def allocate(self, region_id: str, size: int) -> memoryview:
        if region_id in self.held:
            raise Violation(f"the memory of {region_id} is taken twice")
        self.held[region_id] = size
        self.total += size
        if self.total > self.limit:
            raise Violation(f"{self.total} bytes of shared memory, the limit is {self.limit}")
        return memoryview(bytearray(size))

    def free(self, region_id: str) -> None:
        self.total -= self.held.pop(region_id)


Frame = tuple[int, RegionMessage] | bytes


class Wire:
    """One direction of one connection: frames in flight, with a reader at the end. `cut` is called when it breaks.

    Only a frame that something happens to is made bytes, for all others number and message do (and are 4 x faster).
    """

    def __init__(self, deliver: Callable[[RegionMessage], None], cut: Callable[[], None]) -> None:
        self.number = 0
        self.expected = 0
        self.deliver = deliver
        self.cut = cut
        self.last_ms = 0.0
        self.open = True

    def pack(self, message: RegionMessage) -> tuple[int, RegionMessage]:
        self.number += 1
        return self.number - 1, message

    def arrive(self, frame: Frame) -> None:
        if not self.open:
            return
        if isinstance(frame, bytes):
            try:
                (message,) = FrameReader(first=self.expected).feed(frame)
            except (ProtocolError, ValueError):
                self.cut()
                return
        else:
            number, message = frame
            if number != self.expected:
                self.cut()
                return
        self.expected += 1
        self.deliver(message)
