"""Temporary destinations: tables that go with the context that created them.

ROOT/_jmsq/temporary/owners/<name>      the owner's session in the domain's store
ROOT/_jmsq/temporary/tables/<name>/     the tables of its messages and of its acknowledgements

They are in no register, so whatever lists destinations (`jmsq stat`, backup, apply) does not see them. Any process may send
to one; only its owner opens it for anything else, and keeps its record sets in its own memory.

    create   the owner's session lives -> its file under owners -> the tables
    delete   a commit marks the table dropped -> the tables' files -> the file under owners

The owner deletes. When it has died, its session is dead for good, and housekeeping deletes in its place. A deletion that
was interrupted anywhere is repeated by the next round.

Features: C15 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import asdict, dataclass

from spark_jms.core.destinations.destination import TEMPORARY_PREFIX
from spark_jms.errors import (
    InvalidDestinationError,
    JmsqError,
    TemporaryDestinationDeletedError,
    TemporaryDestinationError,
)
from spark_jms.log.limits.usage import USAGE
from spark_jms.log.tables.commit import commit, decide_drop, delete_dropped_table
from spark_jms.log.tables.delta_log import DeltaLog, QuotaAdmission
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import NamedFiles, Storage

log = logging.getLogger("spark_jms")
OWNERS, TABLES = "_jmsq/temporary/owners", "_jmsq/temporary/tables"
_LOGS_KEPT = 256  # of other owners: a process that replies to more loads some of them again


@dataclass(frozen=True)
class TemporaryEntry:
    """`session` is the owner's, in the domain's store."""

    name: str
    kind: str
    session: str
    created_ms: int


class TemporaryLog(DeltaLog):
    """The log of a temporary destination: once it is deleted, every use raises TemporaryDestinationDeletedError."""

    def refresh(self, *, dropped: bool = False) -> Snapshot:
        try:
            return super().refresh(dropped=dropped)
        except InvalidDestinationError as error:
            raise TemporaryDestinationDeletedError(
                f"the temporary destination {self.name} does not exist any more: its context was closed, has died, or has "
                "deleted it"
            ) from error


class TemporaryTables:
    """The temporary destinations of a domain. Thread-safe. `own` has the names of those that this process has created."""

    def __init__(self, storage: Storage, quotas: QuotaAdmission | None = None) -> None:
        """`quotas`: of the domain, whose own server's counts their messages."""
        self._storage, self._owners, self._quotas = storage, NamedFiles(storage, OWNERS), quotas
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, TemporaryLog] = OrderedDict()
        self.own: set[str] = set()

    def messages_path(self, name: str) -> str:
        return f"{TABLES}/{name}/messages"

    def acknowledgements_path(self, name: str) -> str:
        return f"{TABLES}/{name}/acknowledgements"

    def enter(self, entry: TemporaryEntry) -> None:
        """Before the tables are created."""
        self._storage.create(f"{OWNERS}/{entry.name}", json.dumps(asdict(entry)).encode())
        self.own.add(entry.name)

    def entries(self) -> list[TemporaryEntry]:
        """Those of all contexts. One that is damaged is left out, with a warning."""
        found = []
        for name in self._owners.names():
            data = self._owners.get(name)
            if data is None:  # deleted meanwhile
                continue
            try:
                found.append(TemporaryEntry(**json.loads(data)))
            except (ValueError, TypeError) as error:
                where = self._owners.shown(name)
                log.warning("%s is damaged (%s): delete it, and housekeeping deletes its destination", where, error)
        return found

    def own_log(self, name: str) -> TemporaryLog:
        """Raises TemporaryDestinationError when another context has created it."""
        if name not in self.own:
            raise TemporaryDestinationError(
                f"{name} is a temporary destination of another context: only that context may consume, browse or change it; "
                "any other can only send to it"
            )
        return self.log(name)

    def existing_log(self, name: str) -> TemporaryLog:
        """As `log`. Raises TemporaryDestinationDeletedError when the destination has ended, which its log shows only while its files
        are deleted."""
        if not self._storage.exists(f"{OWNERS}/{name}"):
            raise TemporaryDestinationDeletedError(f"the temporary destination {name} does not exist any more")
        return self.log(name)

    def log(self, name: str) -> TemporaryLog:
        """For sending."""
        with self._lock:
            found = self._logs.pop(name, None)
            if found is None:
                found = TemporaryLog(self._storage.child(self.messages_path(name)), name, quotas=self._quotas)
            self._logs[name] = found
            while len(self._logs) > _LOGS_KEPT + len(self.own):
                self._logs.popitem(last=False)
            return found

    def acknowledgements(self, name: str) -> DeltaLog:
        return DeltaLog(self._storage.child(self.acknowledgements_path(name)), f"acknowledgements of {name}")

    def delete(self, name: str) -> None:
        """Repeatable, by several processes at once. A send that was committed before it is lost with the destination; a later
        one is refused."""
        with suppress(JmsqError):  # deleted in part, or damaged
            table = TemporaryLog(self._storage.child(self.messages_path(name)), name)
            table_id = table.refresh(dropped=True).table_id
            with suppress(JmsqError):  # it was dropped
                commit(table, decide_drop)
            self._storage.delete_all(f"{USAGE}/{table_id}")
        delete_dropped_table(self._storage, self.messages_path(name))
        self._storage.delete_all(f"{TABLES}/{name}")
        self._storage.delete(f"{OWNERS}/{name}")
        with self._lock:
            self._logs.pop(name, None)
            self.own.discard(name)

    def delete_abandoned(self, live_sessions: Callable[[], Collection[str]]) -> list[str]:
        """Delete those whose owner has died, and files that a sender wrote too late. Returns their names. The sessions are
        read after the entries: a session that is not alive then never will be."""
        entries = self.entries()
        written = {info.path.removeprefix(f"{TABLES}/").split("/", 1)[0] for info in self._storage.list(TABLES)}
        if not entries and not written:
            return []
        live = live_sessions()
        gone = [entry.name for entry in entries if entry.session not in live]
        # An owner enters the destination before it creates a table.
        for name in (*gone, *sorted(written.difference(self._owners.names()))):
            self.delete(name)
        return gone


def check_not_temporary(name: str) -> None:
    """Raises InvalidDestinationError for a name that only temporary destinations have."""
    if name.startswith(TEMPORARY_PREFIX):
        raise InvalidDestinationError(
            f"{name!r} cannot be the name of a destination: {TEMPORARY_PREFIX}… are temporary destinations, which "
            "Context.create_temporary_queue() names"
        )
