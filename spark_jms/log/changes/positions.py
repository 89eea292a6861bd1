"""Where the tables of a domain stand now, for a reader of the change feed.

A table belongs to a reader by its id: a renamed destination stays, one that is created again is another. Whether a table was dropped
is decided by two looks at the register, because a rename enters the new name before it removes the old one.

A reader of all destinations may keep going without those that cannot be read (`isolates`): such a table keeps the position that it
had, and `problems` names the destination. While there is one, no table counts as dropped: the unreadable one may be it, renamed.

Features: M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from spark_jms.core.changes.change import ALL_DESTINATIONS, FeedPosition, TablePosition
from spark_jms.errors import (
    DestinationDroppedError,
    DomainError,
    ForeignCheckpointError,
    InvalidDestinationError,
    JmsqError,
    OptionError,
    StaleDomainError,
)
from spark_jms.log.destinations.domain import DOMAIN_FILE, RESTORED, Domain
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms


class FeedTable(NamedTuple):
    """One destination as it stands: its messages, and the rows that tell how they ended. `rows` was looked at first."""

    destination: str
    rows: Snapshot
    messages: Snapshot
    rows_uri: str
    messages_uri: str

    @property
    def position(self) -> TablePosition:
        declared = self.messages.destination
        members = sorted(self.messages.numbered_members())
        quotas = {member: quota for member in declared.member_ids if (quota := declared.quota_of(member)) is not None}
        return TablePosition(
            self.destination,
            {member: self.messages.last_sequence(member) for member in members},
            {member: self.rows.last_sequence(member) for member in sorted(self.rows.numbered_members())},
            quotas,
        )

    def floors(self) -> dict[int, int]:
        """By member: the messages up to here have left the table, because all have finished them."""
        found = {}
        for member in sorted(self.messages.numbered_members()):
            files = self.messages.member_files(member).files
            found[member] = files[0].first - 1 if files else self.messages.last_sequence(member)
        return found


class FeedTables:
    """The tables that one reader follows: of one destination, or of all. Not thread-safe."""

    def __init__(
        self,
        domain: Domain,
        destination: str,
        clock_ms: Callable[[], int] = now_ms,
        *,
        floors: bool = False,
        isolates: bool = False,
    ) -> None:
        """`destination`: a name, or ALL_DESTINATIONS. `floors`: its positions have them. `isolates`: a destination that cannot be read
        prevents no other. Raises OptionError."""
        if "@" in destination:
            raise OptionError(
                f"the change feed is of whole destinations, and destination is {destination!r}: leave the server out, and select by "
                "the column member"
            )
        self._domain, self._name, self._clock_ms, self._floors = domain, destination, clock_ms, floors
        self.isolates = isolates
        self.found: dict[str, FeedTable] = {}  # by table id, as of the newest look
        self.problems: dict[str, Exception] = {}  # by destination, of that look: why it cannot be read

    def check(self) -> None:
        """Raises InvalidDestinationError when the destination does not exist."""
        if self._name != ALL_DESTINATIONS:
            self._domain.log(self._name).refresh()

    def newest(self, before: FeedPosition) -> FeedPosition:
        """Where everything stands now, for a reader that stands at `before`. Raises ForeignCheckpointError, DomainError, and what a
        table raises that cannot be read."""
        life = self._life()
        self.problems = {}
        found = self._look(before.tables.keys())
        self._check_scope(before, found)
        if before.tables.keys() - found.keys():
            found |= self._look(before.tables.keys(), all_names=True)
        self.found = found
        tables = {
            table: replace(one.position, floors=one.floors()) if self._floors else one.position
            for table, one in found.items()
        }
        if self.isolates and before.life in ("", life):
            self._keep_fallen(before, tables)
        if self.problems:
            tables |= {table: one for table, one in before.tables.items() if table not in found}
        return FeedPosition(life, max(self._clock_ms(), before.at_ms), tables, self._name)

    def _keep_fallen(self, before: FeedPosition, tables: dict[str, TablePosition]) -> None:
        """A table that has less than was read of it."""
        for table, one in list(tables.items()):
            if (known := before.tables.get(table)) is not None and known.is_ahead_of(one):
                self.problems[one.destination] = StaleDomainError(
                    f"{one.destination} has fewer messages than were read of it: an older copy of its table was restored"
                )
                tables[table] = known
                del self.found[table]

    def _check_scope(self, before: FeedPosition, found: Mapping[str, FeedTable]) -> None:
        """A position of another destination, unless that is this one by an earlier name."""
        renamed = ALL_DESTINATIONS not in (before.scope, self._name) and before.tables.keys() & found.keys()
        if before.scope not in ("", self._name) and not renamed:
            raise ForeignCheckpointError(
                f"the change feed of {self._name} cannot continue at a position of {before.scope}: name that one again, or begin with "
                "a fresh checkpointLocation, or with earliest or latest"
            )

    def _life(self) -> str:
        """The domain, and which restored copy of it."""
        data = self._domain.storage.get(DOMAIN_FILE)
        if data is None:
            raise DomainError(f"{self._domain.root} cannot be reached: its domain file is missing")
        declared = json.loads(data)
        return "/".join(filter(None, (str(declared["id"]), str(declared.get(RESTORED, "")))))

    def _look(self, wanted: Set[str], *, all_names: bool = False) -> dict[str, FeedTable]:
        """The tables of this reader: those in `wanted`, and that of the destination's name."""
        everything = self._name == ALL_DESTINATIONS
        names: Iterable[str] = self._domain.registered() if everything or all_names else [self._name]
        found = {}
        for name in names:
            try:
                table = self._table(name)
            except (JmsqError, OSError) as error:
                if not self.isolates:
                    raise
                self.problems[name] = error
                continue
            self.problems.pop(name, None)  # an earlier look may have met it in the middle of a change
            if table is not None and (everything or name == self._name or table.messages.table_id in wanted):
                found[table.messages.table_id] = table
        return found

    def _table(self, name: str) -> FeedTable | None:
        """None: it is dropped, or was renamed since its name was read. Raises InvalidDestinationError when a table was deleted by
        hand: that is no drop."""
        try:
            rows, messages = self._domain.acknowledgements(name), self._domain.log(name)
            return FeedTable(name, rows.refresh(), messages.refresh(), rows.storage.uri, messages.storage.uri)
        except DestinationDroppedError:
            return None
        except InvalidDestinationError:
            entry = self._domain.register.entry(name)
            if entry is not None and entry.dropping is None:
                raise
            return None


def log_of_table(domain: Domain, table_id: str, name: str, *, rows: bool) -> DeltaLog | None:
    """The messages of a table, or its `rows`, whatever its name is now; `name` is tried first. None: it was dropped. Raises the error
    of a table that cannot be read, once no other is the one: it may be it."""
    failed: Exception | None = None
    for known in dict.fromkeys([name, *domain.registered()]):
        try:
            messages = domain.log(known)
            if messages.verify().table_id == table_id:
                return domain.acknowledgements(known) if rows else messages
        except DestinationDroppedError:
            continue
        except InvalidDestinationError as error:
            entry = domain.register.entry(known)
            if entry is not None and entry.dropping is None:  # deleted by hand
                failed = failed or error
        except (JmsqError, OSError) as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return None
