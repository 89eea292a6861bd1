"""The usage of destinations as senders read it, without a store (T1, T3, T5). core/usage.py has the rule.

ROOT/_jmsq/usage/<table id>     what was unfinished when a process with the record sets looked last

The file is replaced as a whole; of two processes that publish at once the later one counts, and both look again soon. A missing
or damaged file is like none: all messages in the log then count.
"""

from __future__ import annotations

import json
import logging

from spark_jms.core.usage import MessageUsage, PublishedUsage, total
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import Storage

log = logging.getLogger("spark_jms")
USAGE = "_jmsq/usage"


class UsageFiles:
    """Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def read(self, table_id: str) -> PublishedUsage | None:
        data = self._storage.get(f"{USAGE}/{table_id}")
        if data is None:
            return None
        try:
            return PublishedUsage.from_json(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s/%s/%s is damaged and counts as missing: %r", self._storage.uri, USAGE, table_id, error)
            return None

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


def usage_at(snapshot: Snapshot, published: PublishedUsage | None) -> MessageUsage:
    """What the table holds at this version, at most. With a publication this costs what was sent since; without one it looks
    at every file."""
    known, found = published.members if published else {}, []
    for member, files in snapshot.members.items():
        newest, then, after = files.newest, known.get(member), 0
        if newest is None:
            continue  # nothing is left
        if then is not None:
            found.append(then.unfinished)
            after = then.last
        later = files.overlapping(after + 1, newest.last) if newest.last > after else ()
        found += [MessageUsage(file.last - max(file.first - 1, after), file.bytes) for file in later]
    return total(found)
