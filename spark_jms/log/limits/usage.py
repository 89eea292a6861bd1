"""The usage of destinations as senders read it, without a store.

ROOT/_jmsq/published-usage/<table id>/<number> has what was unfinished when a process with the record sets looked. The newest
number counts. A process reads it, looks at the record sets, and creates the next number, which only one process can: so what is
published never becomes older, however long a process stands still in between. The one that was late looks again. Files before the
newest one are deleted; one that is created late, below the newest, is never read. A missing or damaged file is like none: all
messages in the log then count. core/limits/quota.py has the rule.

Features: T1, T3, T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from spark_jms.core.limits.quota import MessageUsage, PublishedUsage, total
from spark_jms.core.messages.ranges import Ranges
from spark_jms.log.tables.files import DataFile, MemberFiles, overlapping
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import Storage

log = logging.getLogger("spark_jms")
USAGE = "_jmsq/published-usage"
FLOW = "_jmsq/flow"

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
        found = self.by_member(published, snapshot)
        return total(usage for member, usage in found.items() if only is None or member in only)

    def by_member(self, published: PublishedUsage | None, snapshot: Snapshot) -> dict[int, MessageUsage]:
        """The same of each member."""
        subscriptions, found = snapshot.destination.subscriptions.values(), dict[int, MessageUsage]()
        for member, files in snapshot.members.items():
            then = published.of(member, subscriptions) if published else None
            after = then.last if then is not None else 0
            behind = self._of_base((snapshot.table_id, member), files, after)
            behind += _behind((file for file in files.tail if file.last > after), after)
            found[member] = behind if then is None else then.unfinished + behind
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
        first = max(file.first, after + 1)
        messages += file.last - first + 1
        size += file.bytes_of(Ranges.of((first, file.last)))
    return MessageUsage(messages, size)
