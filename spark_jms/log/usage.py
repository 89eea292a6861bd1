"""The usage of destinations as senders read it, without a store (T1, T3, T5). core/usage.py has the rule.

ROOT/_jmsq/usage/<table id>     what was unfinished when a process with the record sets looked last

The file is replaced as a whole; of two processes that publish at once the later one counts, and both look again soon. A missing
or damaged file is like none: all messages in the log then count.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from spark_jms.core.usage import MessageUsage, PublishedUsage, total
from spark_jms.log.data_file import DataFile
from spark_jms.log.member_files import MemberFiles, overlapping
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import Storage

log = logging.getLogger("spark_jms")
USAGE = "_jmsq/usage"


class UsageFiles:
    """Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[str, tuple[bytes, PublishedUsage | None]] = {}  # by table: the newest content
        self._bases: dict[tuple[str, int], _Known] = {}  # by table and member

    def read(self, table_id: str) -> PublishedUsage | None:
        data = self._storage.get(f"{USAGE}/{table_id}")
        if data is None:
            return None
        known = self._read.get(table_id)
        if known is not None and known[0] == data:
            return known[1]
        try:
            self._read[table_id] = data, PublishedUsage.from_json(json.loads(data))
            return self._read[table_id][1]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s/%s/%s is damaged and counts as missing: %r", self._storage.uri, USAGE, table_id, error)
            return None

    def at(self, snapshot: Snapshot, only: Collection[int] | None = None) -> MessageUsage:
        """What the table, or `only` these members of it, hold at this version, at most. With a publication this looks at the files
        that were sent since, without one at every file; in a series of calls only at the newest ones."""
        published = self.read(snapshot.table_id)
        subscriptions, messages, size = snapshot.destination.subscriptions.values(), 0, 0
        for member, files in snapshot.members.items():
            if not len(files) or (only is not None and member not in only):
                continue
            then, after = published.of(member, subscriptions) if published else None, 0
            if then is not None:
                messages, size, after = messages + then.unfinished.messages, size + then.unfinished.bytes, then.last
            for found in (
                self._of_base((snapshot.table_id, member), files, after),
                _behind((file for file in files.tail if file.last > after), after),
            ):
                messages, size = messages + found.messages, size + found.bytes
        return MessageUsage(messages, size)

    def _of_base(self, member: tuple[str, int], files: MemberFiles, after: int) -> MessageUsage:
        known = self._bases.get(member)
        if known is None or known.base is not files.base or known.after != after:
            found = overlapping(files.base_firsts, files.base, after + 1, files.base[-1].last) if files.base else ()
            known = self._bases[member] = _Known(files.base, after, _behind(found, after))
        return known.usage

    def publish(self, table_id: str, usage: PublishedUsage) -> None:
        if self.read(table_id) != usage:
            self._storage.put(f"{USAGE}/{table_id}", json.dumps(usage.to_json()).encode())

    def delete(self, table_id: str) -> None:
        self._storage.delete(f"{USAGE}/{table_id}")

    def of_server(self, server: str) -> MessageUsage:
        """The sum over all destinations that publish, as far as they have published."""
        names = [info.path.rsplit("/", 1)[1] for info in self._storage.list(USAGE)]
        found = [self.read(name) for name in names if not name.startswith(".")]
        return total(one.on_server(server) for one in found if one is not None)


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
