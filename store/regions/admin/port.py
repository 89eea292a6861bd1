"""The administration of a daemon cluster as a port, with its values; and which daemons and regions a command selects.

Features: R4, R6, R18 (docs/FEATURES.md)
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from spark_jms.store.contract import StoreInfo
from spark_jms.store.regions.core.peers import Candidate, HeldCopies, refusal_to_leave

Waits = Callable[[int, str], None]  # a daemon that is being shut down, and what it waits for
GRAMMAR = "all|local|n[,n]*|n-n"
SORTS = ("name", "time", "size")
MAX_DAEMON = 999
_LIST = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")
_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


@dataclass(frozen=True)
class DaemonInfo:
    """One line of rs_daemons.cfg and the daemon that runs there. The fields after `up` are 0 while it is down."""

    index: int
    address: str
    port: int
    shmkey: int
    memory_limit_bytes: int
    up: bool
    reachable: bool = False
    started_us: int = 0  # microseconds since the epoch
    now_us: int = 0  # the daemon's own clock
    memory_used_bytes: int = 0
    regions_closed: int = 0
    regions_open_primary: int = 0
    regions_open_replica: int = 0
    resilvers_in_progress: int = 0
    draining: bool = False
    waits_for: str = ""  # a daemon that is being shut down safely and cannot: for which memory

    @property
    def regions_total(self) -> int:
        return self.regions_closed + self.regions_open_primary + self.regions_open_replica


@dataclass(frozen=True)
class RegionInfo:
    """`status`: OPEN, CLOSED, RESILVERING, SINGLE (one copy left), UNAVAILABLE, LOST."""

    name: str
    size_bytes: int
    status: str
    epoch: int
    primary: int | None  # daemon index
    secondary: int | None
    opener: str  # "" when closed
    created_us: int
    used_bytes: int  # allocated inside the region, as its store last reported; 0 when unknown
    reason: str = ""  # why the region's entry cannot be read; everything but the name and UNAVAILABLE is unknown then


@dataclass(frozen=True)
class DaemonSelection:
    """`all`, or `local`, or the `indexes` (sorted, each once)."""

    text: str
    indexes: tuple[int, ...] = ()

    @classmethod
    def parse(cls, word: str) -> DaemonSelection:
        """Raises ValueError."""
        if word in ("all", "local"):
            return cls(word)
        if _LIST.fullmatch(word):
            indexes = {int(number) for number in word.split(",")}
        elif match := _RANGE.fullmatch(word):
            first, last = int(match[1]), int(match[2])
            if first > last:
                raise ValueError(f"the range {word} begins after its end")
            if last > MAX_DAEMON:
                raise ValueError(f"there is no daemon {last}")
            indexes = set(range(first, last + 1))
        else:
            raise ValueError(f"{word!r} is not {GRAMMAR}")
        return cls(word, tuple(sorted(indexes)))

    def of(self, count: int, local_index: int) -> tuple[int, ...]:
        """The numbers of the daemons, in a cluster of `count`. A ValueError names one that there is not."""
        if self.text == "all":
            return tuple(range(count))
        if self.text == "local":
            return (local_index,)
        if self.indexes[-1] >= count:
            raise ValueError(f"there is no daemon {self.indexes[-1]}, the last is {count - 1}")
        return self.indexes


def waiting_text(index: int, reason: str) -> str:
    return f"daemon {index} waits {reason}" if reason else f"daemon {index} no longer waits"


def silently(index: int, reason: str) -> None:
    pass


class AdminPort(ABC):
    """An attachment to one daemon of the cluster. Calls block and raise StoreErrors."""

    local_index: int  # of the daemon it is attached to
    directory: str

    @abstractmethod
    def daemons(self) -> Sequence[DaemonInfo]:
        """All daemons of rs_daemons.cfg in its order, running or not."""

    @abstractmethod
    def regions(self) -> Sequence[RegionInfo]:
        """All regions of the cluster, by name."""

    @abstractmethod
    def stores(self) -> Sequence[StoreInfo]:
        """All stores that are open, by name."""

    @abstractmethod
    def remove_region(self, name: str, force: bool) -> None:
        """Removes both copies and the entry. RegionOpenError when the region is open and not `force`."""

    @abstractmethod
    def shutdown(self, indexes: Sequence[int], force: bool, waits: Waits = silently) -> None:
        """Returns when the daemons are down. Without `force` it takes the four steps of an orderly stop; after
        ShutdownRefusedError nothing was changed. While they have no room it blocks, and calls `waits` whenever the reason
        changes. A KeyboardInterrupt breaks the shutdown off; ShutdownBrokenOffError then, and when another administrator did."""

    @abstractmethod
    def break_off(self, indexes: Sequence[int]) -> None:
        """The safe shutdown of these daemons, if one is under way."""

    @abstractmethod
    def close(self) -> None: ...


# -- what a command selects: -daemon, -sort and expressions; pure ------------------------------------------------------


def matches(expression: str, name: str) -> bool:
    """`*` matches zero or more characters, every other character itself. Linear in both lengths: the leftmost match of each
    piece leaves the most for the rest."""
    first, *middle = expression.split("*")
    if not middle:
        return expression == name
    last = middle.pop()
    if not name.startswith(first) or len(name) < len(first) + len(last) or not name.endswith(last):
        return False
    position, end = len(first), len(name) - len(last)
    for piece in middle:
        found = name.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True


def sort_daemons(daemons: Iterable[DaemonInfo], sort: str) -> list[DaemonInfo]:
    """name: by number. time: started last first, those that are down at the end. size: least memory used first."""
    keys = {
        "name": lambda daemon: daemon.index,
        "time": lambda daemon: (-daemon.started_us, daemon.index),
        "size": lambda daemon: (daemon.memory_used_bytes, daemon.index),
    }
    return sorted(daemons, key=keys[sort])


def sort_regions(regions: Iterable[RegionInfo], sort: str) -> list[RegionInfo]:
    """name: by the number of the daemon with the primary copy (none last), then by name. time: created last first.
    size: smallest first; of one size, the least used first."""
    keys = {
        "name": lambda region: (region.primary is None, region.primary or 0, region.name),
        "time": lambda region: (-region.created_us, region.name),
        "size": lambda region: (region.size_bytes, region.used_bytes, region.name),
    }
    return sorted(regions, key=keys[sort])


def regions_of(
    regions: Iterable[RegionInfo], selection: DaemonSelection, indexes: Sequence[int], expression: str
) -> list[RegionInfo]:
    """Those with a copy on one of the daemons (of all daemons: also those with no copy left) and a matching name."""
    wanted = set(indexes)
    return [
        region
        for region in regions
        if (selection.text == "all" or wanted & {region.primary, region.secondary}) and matches(expression, region.name)
    ]


def lost_with(regions: Iterable[RegionInfo], daemons: Iterable[DaemonInfo], leaving: Collection[int]) -> list[str]:
    """The regions of which only these daemons have a copy, among those that are up."""
    up = {daemon.index for daemon in daemons if daemon.up}
    held = {region.name: {region.primary, region.secondary} & up for region in regions}
    return sorted(name for name, holders in held.items() if holders and holders <= set(leaving))


def refusal_of_leaving(regions: Iterable[RegionInfo], daemons: Iterable[DaemonInfo], leaving: Collection[int]) -> str:
    """Why the daemons would refuse to stop safely, as far as this look shows it; empty: they would not."""
    up = {daemon.index: daemon for daemon in daemons if daemon.up}
    known = [region for region in regions if not region.reason]
    holders = {region.name: (region.primary, region.secondary) for region in known}
    copies = {
        region.name: HeldCopies(region.size_bytes, tuple(one for one in holders[region.name] if one in up))
        for region in known
    }
    candidates = {
        index: Candidate(index, daemon.memory_limit_bytes - daemon.memory_used_bytes, daemon.draining)
        for index, daemon in up.items()
    }
    openers = {region.name: region.opener for region in known if region.opener}
    return refusal_to_leave(leaving, copies, openers, candidates)
