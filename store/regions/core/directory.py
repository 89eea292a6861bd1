"""What the Global Directory says of a region, and the only ways in which it may change. Pure.

Theory. Two copies are no quorum, so the directory decides. A region's entry names its copies and carries an epoch that
rises by 1 with every change; every change is a compare-and-swap. A copy is listed only while it holds every
acknowledged write: it is listed after it has caught up, and struck off before anything is acknowledged without it. So
whoever is listed may serve, and a primary that was struck off finds out by the first thing it tries.

    event      who does it                  what it needs                        primary  secondary  opener
    CREATED    the daemon that opens        no entry                             it       next / -   -
    OPENED     the primary                  closed, all writes on both copies    =        =          the client
    CLOSED     the primary                  open                                 =        =          -
    PROMOTED   the secondary                the primary is dead                  it       -          -
    DROPPED    the primary                  a secondary that is dead             =        -          =
    JOINED     the primary                  a copy that has caught up            =        the copy   =
    MOVED      the primary                  closed, a copy that has caught up    the copy it         -
    RENOUNCED  who holds an unlisted copy   the primary may still list it        =        =          =
    RENEWED    whoever had no answer       the change has not happened          =        =          =
    DELETED    the primary, or anyone if its life is over for certain            no entry

RENOUNCED says nothing new but raises the epoch: a listing that is on its way fails, and then the copy may be freed. So
does RENEWED: the change that nobody answered cannot happen any more (core/settling.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum


class Event(Enum):
    CREATED = "created"
    OPENED = "opened"
    CLOSED = "closed"
    PROMOTED = "promoted"
    DROPPED = "dropped"
    JOINED = "joined"
    MOVED = "moved"
    RENOUNCED = "renounced"
    RENEWED = "renewed"
    DELETED = "deleted"


@dataclass(frozen=True)
class Holder:
    """A daemon in one of its lives: a restarted one has another incarnation, and none of the old one's memory."""

    daemon: int
    incarnation: str


@dataclass(frozen=True)
class RegionEntry:
    """`region_id` is another one when a deleted name is used again; with `epoch` it orders all that was ever said."""

    name: str
    region_id: str
    size: int
    epoch: int
    primary: Holder
    secondary: Holder | None
    opener: str | None
    created_us: int
    version: int = 1

    def holders(self) -> tuple[Holder, ...]:
        return (self.primary,) if self.secondary is None else (self.primary, self.secondary)

    @property
    def tag(self) -> tuple[str, int]:
        return (self.region_id, self.epoch)


def created(
    name: str, region_id: str, size: int, primary: Holder, secondary: Holder | None, opener: str | None, now_us: int
) -> RegionEntry:
    return RegionEntry(name, region_id, size, 1, primary, secondary, opener, now_us)


def opened(entry: RegionEntry, opener: str) -> RegionEntry:
    _require(entry.opener is None, entry, Event.OPENED)
    return replace(entry, epoch=entry.epoch + 1, opener=opener)


def closed(entry: RegionEntry) -> RegionEntry:
    return replace(entry, epoch=entry.epoch + 1, opener=None)


def promoted(entry: RegionEntry, by: Holder) -> RegionEntry:
    _require(entry.secondary == by, entry, Event.PROMOTED)
    return replace(entry, epoch=entry.epoch + 1, primary=by, secondary=None, opener=None)


def dropped(entry: RegionEntry) -> RegionEntry:
    _require(entry.secondary is not None, entry, Event.DROPPED)
    return replace(entry, epoch=entry.epoch + 1, secondary=None)


def joined(entry: RegionEntry, copy: Holder) -> RegionEntry:
    _require(copy.daemon != entry.primary.daemon, entry, Event.JOINED)
    return replace(entry, epoch=entry.epoch + 1, secondary=copy)


def moved(entry: RegionEntry, to: Holder) -> RegionEntry:
    _require(entry.opener is None and to.daemon != entry.primary.daemon, entry, Event.MOVED)
    return replace(entry, epoch=entry.epoch + 1, primary=to, secondary=entry.primary)


def renounced(entry: RegionEntry, by: Holder) -> RegionEntry:
    _require(by not in entry.holders(), entry, Event.RENOUNCED)
    return replace(entry, epoch=entry.epoch + 1)


def renewed(entry: RegionEntry) -> RegionEntry:
    return replace(entry, epoch=entry.epoch + 1)


def _require(condition: bool, entry: RegionEntry, event: Event) -> None:
    if not condition:
        raise ValueError(f"region {entry.name} cannot be {event.value}: {entry}")


class DirectoryPort(ABC):
    """The Global Directory as the core sees it. Every method may raise DirectoryUnavailableError. A swap that
    raised may have happened, and may still happen, for as long as `old` is what the directory says."""

    @abstractmethod
    def read(self, name: str) -> RegionEntry | None: ...

    @abstractmethod
    def entries(self) -> Mapping[str, RegionEntry]: ...

    @abstractmethod
    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        """True when `old` was what it said (by region_id and epoch) and `new` is what it says from now on."""

    @abstractmethod
    def running(self, holder: Holder) -> bool:
        """False only when this life of the daemon is certainly over (its lock is free, or a later one has it)."""
