"""The usage of destinations as senders read it, without a store, and whether it tells them to slow down.

ROOT/_jmsq/published-usage/<table id>/<number> has what was unfinished when a process with the record sets looked. The newest
number counts. A process reads it, looks at the record sets, and creates the next number, which only one process can: so what is
published never becomes older, however long a process stands still in between. The one that was late looks again. Files before the
newest one are deleted; one that is created late, below the newest, is never read. A missing or damaged file is like none: all
messages in the log then count. core/limits/quota.py has the rule.

A FlowWatch looks at the usage once a second at most, while its process sends; and not at all where there are no thresholds.
core/limits/flow_control.py has the rule.

Features: T1, T3, T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from spark_jms.core.limits.flow_control import UNARMED, Arming, FlowThresholds
from spark_jms.core.limits.quota import MessageUsage, PublishedUsage, total
from spark_jms.errors import JmsqError
from spark_jms.log.tables.files import DataFile, MemberFiles, overlapping
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import Storage

log = logging.getLogger("spark_jms")
USAGE = "_jmsq/published-usage"
FLOW = "_jmsq/flow"
LOOK_EVERY_S = 1.0

# -- published usage ---------------------------------------------------------------------------------------------------


class UsageFiles:
    """The published usage of destinations. Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[str, _Publication] = {}  # by table: the newest one
        self._bases: dict[tuple[str, int], _Known] = {}  # by table and member

    def read(self, table_id: str) -> PublishedUsage | None:
        return self._newest(table_id, self._numbers(table_id)).usage

    def _numbers(self, table_id: str) -> list[int]:
        return sorted(_numbers(info.path.rsplit("/", 1)[1] for info in self._storage.list(f"{USAGE}/{table_id}")))

    def _newest(self, table_id: str, numbers: Sequence[int]) -> _Publication:
        """Of these numbers, or a later one. What a number says never changes, so it is read once."""
        while numbers:
            known = self._read.get(table_id)
            if known is not None and known.number == numbers[-1]:
                return known
            data = self._storage.get(_path(table_id, numbers[-1]))
            if data is not None:
                found = self._read[table_id] = _Publication(numbers[-1], data, self._parsed(table_id, data))
                return found
            numbers = self._numbers(table_id)  # a later one has replaced it
        return _NONE

    def _parsed(self, table_id: str, data: bytes) -> PublishedUsage | None:
        try:
            return PublishedUsage.from_json(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s/%s/%s is damaged and counts as missing: %r", self._storage.uri, USAGE, table_id, error)
            return None

    def at(self, snapshot: Snapshot, only: Collection[int] | None = None) -> MessageUsage:
        """What the table, or `only` these members of it, hold at this version, at most. With a publication this looks at the files
        that were sent since, without one at every file; in a series of calls only at the newest ones."""
        return self.by(self.read(snapshot.table_id), snapshot, only)

    def by(
        self, published: PublishedUsage | None, snapshot: Snapshot, only: Collection[int] | None = None
    ) -> MessageUsage:
        """The same by a publication that was read before."""
        subscriptions, found = snapshot.destination.subscriptions.values(), MessageUsage()
        for member, files in snapshot.members.items():
            if only is not None and member not in only:
                continue
            then = published.of(member, subscriptions) if published else None
            after = then.last if then is not None else 0
            behind = self._of_base((snapshot.table_id, member), files, after)
            behind += _behind((file for file in files.tail if file.last > after), after)
            found += behind if then is None else then.unfinished + behind
        return found

    def _of_base(self, member: tuple[str, int], files: MemberFiles, after: int) -> MessageUsage:
        known = self._bases.get(member)
        if known is None or known.base is not files.base or known.after != after:
            found = overlapping(files.base_firsts, files.base, after + 1, files.base[-1].last) if files.base else ()
            known = self._bases[member] = _Known(files.base, after, _behind(found, after))
        return known.usage

    def publish(self, table_id: str, look: Callable[[], PublishedUsage | None]) -> bool:
        """`look` finds the usage, or None when the table is another one. False: another process has published meanwhile,
        perhaps the same."""
        numbers = self._numbers(table_id)
        before = self._newest(table_id, numbers)
        found = look()
        if found is None:
            return True
        data = json.dumps(found.to_json()).encode()
        if data == before.data:
            return True
        if not self._storage.create(_path(table_id, before.number + 1), data):
            return False
        for number in numbers:
            if number <= before.number:
                self._storage.delete(_path(table_id, number))
        return True

    def delete(self, table_id: str) -> None:
        self._storage.delete_all(f"{USAGE}/{table_id}")

    def of_server(self, server: str) -> MessageUsage:
        """The sum over all destinations that publish, as far as they have published."""
        numbers: dict[str, list[int]] = {}
        for info in self._storage.list(USAGE):
            table, _, name = info.path.removeprefix(f"{USAGE}/").partition("/")
            numbers.setdefault(table, []).extend(_numbers([name]))
        found = [self._newest(table, sorted(of)).usage for table, of in numbers.items()]
        return total(one.on_server(server) for one in found if one is not None)


@dataclass(frozen=True)
class _Publication:
    """`usage` None: it is damaged, or a later spark-jms wrote it."""

    number: int
    data: bytes
    usage: PublishedUsage | None


_NONE = _Publication(0, b"", None)


def _numbers(names: Iterable[str]) -> Iterator[int]:
    return (int(name) for name in names if name.isdecimal())  # a dot marks a temporary file


def _path(table_id: str, number: int) -> str:
    return f"{USAGE}/{table_id}/{number:012d}"


@dataclass(frozen=True)
class _Known:
    """What the files of one `base` hold behind a sequence: snapshots share the base of a member's files."""

    base: Sequence[DataFile]
    after: int
    usage: MessageUsage


def _behind(files: Iterable[DataFile], after: int) -> MessageUsage:
    messages = size = 0
    for file in files:
        messages += file.last - max(file.first - 1, after)
        size += file.bytes
    return MessageUsage(messages, size)


# -- flow control ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched:
    """A destination or a server. `usage` raises JmsqError or OSError when it cannot be read."""

    name: str
    thresholds: Callable[[], FlowThresholds]
    usage: Callable[[], MessageUsage]

    def after(self, before: Arming) -> Arming:
        """Whether it is armed now. What changes is logged."""
        thresholds = self.thresholds()
        try:
            used = self.usage() if thresholds else MessageUsage()
        except (JmsqError, OSError) as error:
            log.warning("%s: its usage cannot be read, so flow control stays as it is: %s", self.name, error)
            return before
        now = before.after(thresholds, used.messages, used.bytes)
        self._tell("messages", used, was=before.messages, armed=now.messages)
        self._tell("bytes", used, was=before.bytes, armed=now.bytes)
        return now

    def _tell(self, measure: str, used: MessageUsage, *, was: bool, armed: bool) -> None:
        held = f"{used.messages:,} messages, {used.bytes:,} bytes"
        if armed and not was:
            log.warning("%s exceeds its %sThresholdHigh: senders slow down (%s)", self.name, measure, held)
        elif was and not armed:
            log.info("%s is below its %sThresholdLow: senders may go faster (%s)", self.name, measure, held)


class FlowWatch:
    """Whether a destination, or a server that it is on, tells its senders to slow down. Of a destination and its servers, for the
    senders of one process. Thread-safe. One that begins while the usage is between low and high takes them for unarmed."""

    def __init__(self, watched: Iterable[Watched], monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._watched, self._monotonic_s = tuple(watched), monotonic_s
        self._armed: Mapping[str, Arming] = {}
        self._next_look_s = float("-inf")
        self._lock = threading.Lock()

    @property
    def has_thresholds(self) -> bool:
        return any(one.thresholds() for one in self._watched)

    def armed(self) -> bool:
        """As of the last second."""
        with self._lock:
            if not self.has_thresholds:
                self._armed, self._next_look_s = {}, float("-inf")
            elif self._monotonic_s() >= self._next_look_s:
                self._armed = {one.name: one.after(self._armed.get(one.name, UNARMED)) for one in self._watched}
                self._next_look_s = self._monotonic_s() + LOOK_EVERY_S
            return any(self._armed.values())
