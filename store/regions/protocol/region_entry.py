"""A region's entry in the Global Directory, and the only ways in which it may change. Pure.

Theory. Two copies are no quorum: when one is silent, the other cannot know whether it is dead or cut off. So the directory
decides. An entry names the region's copies and carries an epoch that rises by 1 with every change; every change is a
compare-and-swap. A copy is listed only while it holds every acknowledged write: it is listed after it has caught up, and
the directory stops listing it before a write is acknowledged without it. So each listed copy may serve, and a primary
that is no longer listed finds out with the first thing it tries.

`RULES` is the table, and every change goes through it. RENOUNCED and RENEWED change nothing but the epoch. After
RENOUNCED a listing that is on its way fails, so the copy may be freed. After RENEWED a change that the directory did not
answer can no longer happen (core/directory_view.py), nor one of daemons that have ended (core/replicas.py).

DESTROYED is a removal by force while a store has the region open. The entry stays, and lists a life that no daemon ever had,
so the region is lost, as if all daemons with a copy had died: without it, the store would begin again, empty, unasked.

Features: R8, R9, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace

from spark_jms.store.errors import DirectoryUnavailableError


class EntryEvent(Enum):
    CREATED = "created"
    OPENED = "opened"
    CLOSED = "closed"
    PROMOTED = "promoted"
    DROPPED = "dropped"
    JOINED = "joined"
    MOVED = "moved"
    RENOUNCED = "renounced"
    RENEWED = "renewed"
    DESTROYED = "destroyed"
    DELETED = "deleted"


NO_LIFE = ""  # the incarnation of no daemon


class Holder(msgspec.Struct, frozen=True):
    """A daemon in one incarnation. A restarted daemon has another incarnation, and none of the old one's memory."""

    daemon: int
    incarnation: str


class RegionEntry(msgspec.Struct, frozen=True):
    """A deleted name that is used again gets another `region_id`. Together with `epoch` it orders all entries of a name."""

    name: str
    region_id: str
    size: int
    epoch: int
    primary: Holder
    secondary: Holder | None
    opener: str | None
    created_us: int
    version: int = 1

    @property
    def is_destroyed(self) -> bool:
        """Removed by force while `opener` had it open, and not removed again since."""
        return self.primary.incarnation == NO_LIFE

    def holders(self) -> tuple[Holder, ...]:
        return (self.primary,) if self.secondary is None else (self.primary, self.secondary)

    @property
    def tag(self) -> tuple[str, int]:
        return (self.region_id, self.epoch)


class Becomes(Enum):
    """What a change makes of one field; `it` is the subject of the change."""

    SAME = "="
    NONE = "-"
    IT = "it"
    OLD_PRIMARY = "the old primary"
    NO_DAEMON = "no daemon"


@dataclass(frozen=True)
class EntryRule:
    """`writer`, `subject` and `needs` are words for the documentation. `allows` is the part of `needs` that the entry
    and the subject show; the rest is the writer's business."""

    event: EntryEvent
    writer: str
    subject: str
    needs: str
    allows: Callable[[RegionEntry, Any], bool]
    primary: Becomes = Becomes.SAME
    secondary: Becomes = Becomes.SAME
    opener: Becomes = Becomes.SAME


def _always(entry: RegionEntry, subject: Any) -> bool:
    return True


RULES = {
    rule.event: rule
    for rule in (
        EntryRule(
            EntryEvent.OPENED,
            writer="the primary",
            subject="a client",
            needs="closed; all writes are on both copies",
            allows=lambda entry, client: entry.opener is None,
            opener=Becomes.IT,
        ),
        EntryRule(
            EntryEvent.CLOSED,
            writer="the primary",
            subject="",
            needs="open",
            allows=lambda entry, _: entry.opener is not None,
            opener=Becomes.NONE,
        ),
        EntryRule(
            EntryEvent.PROMOTED,
            writer="the secondary",
            subject="the secondary",
            needs="the primary is dead",
            allows=lambda entry, copy: entry.secondary is not None and entry.secondary == copy,
            primary=Becomes.IT,
            secondary=Becomes.NONE,
            opener=Becomes.NONE,
        ),
        EntryRule(
            EntryEvent.DROPPED,
            writer="the primary",
            subject="",
            needs="a secondary, which is dead or has refused",
            allows=lambda entry, _: entry.secondary is not None,
            secondary=Becomes.NONE,
        ),
        EntryRule(
            EntryEvent.JOINED,
            writer="the primary",
            subject="a copy",
            needs="the copy has caught up, on another daemon",
            allows=lambda entry, copy: copy.daemon != entry.primary.daemon,
            secondary=Becomes.IT,
        ),
        EntryRule(
            EntryEvent.MOVED,
            writer="the primary",
            subject="a copy",
            needs="closed; the copy has caught up, on another daemon",
            allows=lambda entry, copy: entry.opener is None and copy.daemon != entry.primary.daemon,
            primary=Becomes.IT,
            secondary=Becomes.OLD_PRIMARY,
        ),
        EntryRule(
            EntryEvent.RENOUNCED,
            writer="a daemon with an unlisted copy",
            subject="that daemon",
            needs="the primary may still be listing the copy",
            allows=lambda entry, copy: copy not in entry.holders(),
        ),
        EntryRule(
            EntryEvent.RENEWED,
            writer="a daemon that had no answer, or that finds the region lost",
            subject="",
            needs="its change has not happened yet, or all copies are dead for certain",
            allows=_always,
        ),
        EntryRule(
            EntryEvent.DESTROYED,
            writer="the primary; any daemon once the primary has certainly ended",
            subject="",
            needs="open, and not lost; by force",
            allows=lambda entry, _: entry.opener is not None,
            primary=Becomes.NO_DAEMON,
            secondary=Becomes.NONE,
        ),
    )
}


def created(
    name: str, region_id: str, size: int, primary: Holder, secondary: Holder | None, now_us: int
) -> RegionEntry:
    """CREATED, by the daemon that wants to open it: there must be no entry."""
    return RegionEntry(name, region_id, size, 1, primary, secondary, None, now_us)


def opened(entry: RegionEntry, opener: str) -> RegionEntry:
    return change(EntryEvent.OPENED, entry, opener)


def closed(entry: RegionEntry) -> RegionEntry:
    return change(EntryEvent.CLOSED, entry)


def promoted(entry: RegionEntry, by: Holder) -> RegionEntry:
    return change(EntryEvent.PROMOTED, entry, by)


def dropped(entry: RegionEntry) -> RegionEntry:
    return change(EntryEvent.DROPPED, entry)


def joined(entry: RegionEntry, copy: Holder) -> RegionEntry:
    return change(EntryEvent.JOINED, entry, copy)


def moved(entry: RegionEntry, to: Holder) -> RegionEntry:
    return change(EntryEvent.MOVED, entry, to)


def renounced(entry: RegionEntry, by: Holder) -> RegionEntry:
    return change(EntryEvent.RENOUNCED, entry, by)


def renewed(entry: RegionEntry) -> RegionEntry:
    return change(EntryEvent.RENEWED, entry)


def destroyed(entry: RegionEntry) -> RegionEntry:
    return change(EntryEvent.DESTROYED, entry)


def change(event: EntryEvent, entry: RegionEntry, subject: Holder | str | None = None) -> RegionEntry:
    rule = RULES[event]
    if not rule.allows(entry, subject) or (entry.is_destroyed and event is not EntryEvent.RENEWED):
        raise ValueError(f"region {entry.name} cannot be {event.value}: {entry}")

    def value(becomes: Becomes, old: Any) -> Any:
        match becomes:
            case Becomes.SAME:
                return old
            case Becomes.NONE:
                return None
            case Becomes.IT:
                return subject
            case Becomes.OLD_PRIMARY:
                return entry.primary
            case Becomes.NO_DAEMON:
                return Holder(entry.primary.daemon, NO_LIFE)

    return replace(
        entry,
        epoch=entry.epoch + 1,
        primary=value(rule.primary, entry.primary),
        secondary=value(rule.secondary, entry.secondary),
        opener=value(rule.opener, entry.opener),
    )


class Absent(Enum):
    """Why a region has no entry. A removed region keeps a record of its removal."""

    REMOVED = "the directory records its removal"
    NOTHING = "the directory has neither an entry nor a record of a removal"
    UNSEEN = "the path does not lead to the directory: its identity is missing, as in an empty mount point"


@dataclass(frozen=True)
class DirectoryListing:
    """The regions by name, the names whose removal the directory records, and why an entry cannot be read."""

    entries: Mapping[str, RegionEntry]
    removed: frozenset[str] = frozenset()
    unreadable: Mapping[str, DirectoryUnavailableError] = field(default_factory=dict)


class DirectoryPort(ABC):
    """The Global Directory as the core needs it. Every method may raise DirectoryUnavailableError. A swap that raised it
    may have happened, and may still happen for as long as the directory has `old`. Only `read` returns UNSEEN; the other
    methods raise DirectoryUnavailableError then. `read` and `swap` of an unreadable entry raise RegionEntryDamagedError or
    RegionEntryVersionError; `entries` lists it."""

    @abstractmethod
    def read(self, name: str) -> RegionEntry | Absent: ...

    @abstractmethod
    def entries(self) -> DirectoryListing: ...

    @abstractmethod
    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        """True when the directory had `old` (by region_id and epoch; None: no entry) and now has `new`."""

    @abstractmethod
    def discard(self, name: str) -> bool:
        """Replaces a damaged entry by the record of its removal. False when it is not damaged."""

    @abstractmethod
    def running(self, holder: Holder) -> bool:
        """False only when this incarnation has certainly ended: its lock is free, or a later incarnation has it."""


class ReadEntry(msgspec.Struct, frozen=True):
    name: str


class ChangeEntry(msgspec.Struct, frozen=True):
    name: str
    old: RegionEntry | None
    new: RegionEntry | None


class DiscardEntry(msgspec.Struct, frozen=True):
    name: str


class ListEntries(msgspec.Struct, frozen=True):
    pass


class AskRunning(msgspec.Struct, frozen=True):
    holder: Holder


DirectoryRequest = ReadEntry | ChangeEntry | DiscardEntry | ListEntries | AskRunning
DirectoryAnswer = RegionEntry | Absent | bool | DirectoryListing | DirectoryUnavailableError


def unexpected(error: Exception) -> DirectoryUnavailableError:
    """What an error without a name means to the one who asked: the directory did not answer."""
    failure = DirectoryUnavailableError(f"unexpected {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def perform(port: DirectoryPort, request: DirectoryRequest) -> DirectoryAnswer:
    """The answer of the directory; a failure is an answer. Waits for the directory, so a daemon calls it off its loop."""
    try:
        match request:
            case ReadEntry(name):
                return port.read(name)
            case ChangeEntry(name, old, new):
                return port.swap(name, old, new)
            case DiscardEntry(name):
                return port.discard(name)
            case AskRunning(holder):
                return port.running(holder)
            case ListEntries():
                return port.entries()
    except DirectoryUnavailableError as error:
        return error
