"""A backup of a domain, consistent beside running senders and consumers.

The order makes it consistent:

1. All record sets, as of one moment of the store; of each server's store, one after the other, the domain's own last.
2. Each table at one later version, with the files that are staged there for open transactions and transfers.

So no record set names a message that its table lacks because it was sent later: the store numbers nothing, it follows the
tables. A record set is compared with its table, so the stores of several servers need not be read at the same moment. Only a
transaction's acknowledgement depends on another record, its coordinator in the domain's own store: read later, the coordinator has
decided whatever a server's store says is acknowledged. What happened in between makes a record set older than its table, and
`core/restored_state.py` mends that. Files that a purge or a compaction removes meanwhile stay on disk for `fileGrace`; when one
is deleted all the same, its table is copied at a newer version, which is as good.

Features: C19 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from spark_jms.admin.backup_files import (
    DOMAIN,
    CopiedFile,
    Manifest,
    TableCopy,
    copy,
    described,
    write_records,
)
from spark_jms.admin.backup_staged import StagedTarget, staged_targets
from spark_jms.claims.acknowledgement_table import position_id
from spark_jms.claims.left_out import LEFT_OUT
from spark_jms.claims.record_sets import label_of
from spark_jms.claims.stores import store_of
from spark_jms.core.placement import HOME
from spark_jms.core.ranges import Ranges, union
from spark_jms.core.record_names import member_record
from spark_jms.core.record_set import RecordSet
from spark_jms.core.record_set_form import from_objects, to_objects
from spark_jms.core.restored_state import restored
from spark_jms.core.subscription_place import record_server
from spark_jms.errors import BackupError
from spark_jms.log.checkpoint_writer import LAST_CHECKPOINT, checkpoint_path, write_checkpoint
from spark_jms.log.connection_factories import CONNECTION_FACTORIES
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.life_cycle import events_id
from spark_jms.log.quotas import QUOTAS
from spark_jms.log.register import REGISTER, Register
from spark_jms.log.root import open_storage
from spark_jms.log.server_terms import TERMS, ServerTerms
from spark_jms.log.servers import STOPPED, Servers
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import Storage, now_ms
from spark_jms.store import RecordCorruptError, Store, StoreError
from spark_jms.store.admin import dump
from spark_jms.store.reports import DumpedRecord

log = logging.getLogger("spark_jms")
_MAX_VERSIONS = 10  # of one table, until a version's files could all be copied


def back_up(domain: Domain, store: Store, target_uri: str) -> Manifest:
    """Copy the domain into the empty directory or URL `target_uri`. Changes nothing in the domain.

    `store`: the stores of all servers. Raises BackupError when the target is not empty, a server is away, a record set is
    damaged, a prepared transaction is in doubt, or a data file cannot be read; the target then holds no complete backup.
    """
    target = open_storage(target_uri)
    if target.uri == domain.root or target.uri.startswith(f"{domain.root.rstrip('/')}/"):
        raise BackupError(f"{target.uri} lies inside the domain {domain.root}: write the backup somewhere else")
    if next(iter(target.list("")), None) is not None:
        raise BackupError(f"{target.uri} is not empty: name an empty or a new place for the backup")
    entries = {name: domain.servers.entry(name) for name in domain.servers.names()}
    servers = {name: entry.store for name, entry in entries.items()}
    left_out = _left_out(domain)  # before the stores: messages may be released meanwhile
    records = {server: stored_records(store, server) for server in (*servers, HOME)}
    store_read_ms = now_ms()
    staged = staged_targets(record for own in records.values() for record in own.values())
    files: list[CopiedFile] = []
    tables: list[TableCopy] = []
    stopped: dict[str, int] = {}
    for name in domain.destinations():
        entry = domain.register.entry(name)
        if entry is None:  # dropped since the names were listed
            continue
        history = _Table(domain.acknowledgements(name), entry.acknowledgements)
        acknowledged = history.copy(target)
        table = domain.life_cycle(name)
        events = _Table(table, entry.life_cycle) if table is not None else None
        logged = events.copy(target) if events is not None else None
        messages = _Table(domain.log(name), entry.path, staged)
        snapshot = messages.copy(target)
        if added := set(snapshot.destination.servers_in_use()) - records.keys():
            raise BackupError(f"server {min(added)} was added while the backup was made: back up again")
        backlog = 0
        for place, state in _restored_states(records, name, snapshot, acknowledged, logged):
            backlog += state.unfinished(1, snapshot.last_sequence(place.member)).count
            own = records[place.server]
            own[place.record] = _with_state(own.get(place.record), place.record, state)
        stopped |= snapshot.destination.stopped
        Register(target.child(DOMAIN)).add(name, entry)
        files += events.files if events is not None else []
        files += [*history.files, *messages.files, described(target, f"{DOMAIN}/{REGISTER}/{name}")]
        tables.append(TableCopy(name, snapshot.version, sum(f.rows for f in snapshot.files.values()), backlog))
    for name in domain.connection_factories.names():
        path = f"{CONNECTION_FACTORIES}/{name}"
        files.append(copy(domain.storage, path, target, f"{DOMAIN}/{path}"))
    for name in domain.quotas.names(servers=True):  # their ledgers begin again: what is in the tables counts
        path = f"{QUOTAS}/{name}"
        files.append(copy(domain.storage, path, target, f"{DOMAIN}/{path}"))
    files += [write_records(target, server, own.values()) for server, own in records.items()]
    files += _states_of_servers(domain, target, stopped)
    for path in sorted(left_out | _left_out(domain)):
        target.put(f"{DOMAIN}/{path}", b"")
        files.append(described(target, f"{DOMAIN}/{path}"))
    target.sync([file.path for file in files])
    manifest = Manifest(
        domain.declaration,
        store_read_ms,
        now_ms(),
        sum(map(len, records.values())),
        tuple(tables),
        tuple(files),
        servers,
        {name: entry.lease_ms for name, entry in entries.items()},
        {name: entry.thresholds.to_json() for name, entry in entries.items() if entry.thresholds},
    )
    manifest.write(target)
    return manifest


def _left_out(domain: Domain) -> set[str]:
    """The marks of queries: claims/left_out.py."""
    return {info.path for info in domain.storage.list(LEFT_OUT)}


def stored_records(store: Store, server: str) -> dict[str, DumpedRecord]:
    """By name. Raises BackupError."""
    try:
        own = store_of(store, server)
        in_doubt = own.in_doubt()
        records = {record.name: record for record in dump(own)}
    except RecordCorruptError:
        raise
    except StoreError as error:
        raise BackupError(
            f"the store of server {server} cannot be read ({type(error).__name__}: {error}): a backup has the positions of all "
            "servers, so back up when it answers"
        ) from error
    if in_doubt:
        raise BackupError(
            f"prepared transactions are in doubt: {', '.join(in_doubt)}. Resolve them, then back up again"
        )
    if damaged := [f"{record.name}: {record.damage}" for record in records.values() if record.damage]:
        raise BackupError(
            f"{len(damaged)} record set(s) of the store of server {server} are damaged and cannot be backed up ({damaged[0]}): "
            "`jmsq store check` lists them; restore them or drop their subscriptions"
        )
    return records


def _states_of_servers(domain: Domain, target: Storage, stopped: Mapping[str, int]) -> list[CopiedFile]:
    """Which servers are down. An administrator's stop is what the copied tables say. The newest terms of leases are read after
    the tables, which may lack them and none that is newer; whether all tables have them is for restored processes to find out."""
    here = Servers(target.child(DOMAIN))
    for server, since_ms in stopped.items():
        here.stop(server, since_ms)
    copies = ServerTerms(target.child(DOMAIN))
    for server, known in domain.terms.newest().items():
        copies.begin(server, known.term)
    found = [info.path for where in (STOPPED, TERMS) for info in target.list(f"{DOMAIN}/{where}")]
    return [described(target, path) for path in found]


class _Place(NamedTuple):
    """Of one record set."""

    server: str
    record: str
    member: int


def _restored_states(
    records: Mapping[str, Mapping[str, DumpedRecord]],
    destination: str,
    snapshot: Snapshot,
    acknowledged: Snapshot,
    logged: Snapshot | None,
) -> Iterator[tuple[_Place, RecordSet]]:
    """Each record set of the destination that the table's version knows."""
    declared = snapshot.destination
    for subscription in declared.subscription_names():
        for member in declared.member_ids:
            server = record_server(declared, subscription, member)
            record = member_record(snapshot.table_id, subscription, member)
            known = records.get(server, {}).get(record)
            label = label_of(destination, subscription, member)
            state = from_objects(dict(known.objects) if known else {}, label)
            state = state.start_at(declared.start_floor(subscription, member))
            present = union(Ranges.of((file.first, file.last)) for file in snapshot.member_files(member).files)
            written = acknowledged.transactions.get(position_id(snapshot.table_id, subscription, member), 0)
            events = logged.transactions.get(events_id(snapshot.table_id, subscription, member), 0) if logged else 0
            restored_state = restored(state, snapshot.last_sequence(member), present, written, events)
            yield _Place(server, record, member), restored_state


def _with_state(record: DumpedRecord | None, name: str, state: RecordSet) -> DumpedRecord:
    epoch = record.epoch if record else 1
    return DumpedRecord(name, epoch, None, tuple(to_objects(state).items()))


class _Table:
    """Copies one table. `files` names what the backup has of it. `staged`: by the id of a table, what may be appended to it."""

    def __init__(self, log: DeltaLog, path: str, staged: Mapping[str, Sequence[StagedTarget]] | None = None) -> None:
        self._log, self._path, self._staged = log, path, staged or {}
        self._copied: dict[str, CopiedFile] = {}
        self.files: list[CopiedFile] = []

    def copy(self, target: Storage) -> Snapshot:
        for _ in range(_MAX_VERSIONS):
            snapshot = self._log.refresh()
            if self._copy_data(target, snapshot):
                break
        else:
            raise BackupError(
                f"files of {self._log.name} were deleted while they were copied, {_MAX_VERSIONS} times in a row: raise "
                "fileGrace above the time that a backup takes"
            )
        staged = self._staged_files(snapshot)
        for path in self._copied.keys() - set(snapshot.files) - staged:
            target.delete(f"{DOMAIN}/{self._path}/{path}")
        table = target.child(f"{DOMAIN}/{self._path}")
        write_checkpoint(table, snapshot)
        log_files = (checkpoint_path(snapshot.version), LAST_CHECKPOINT)
        self.files = [self._copied[path] for path in (*snapshot.files, *sorted(staged & self._copied.keys()))]
        self.files += [described(target, f"{DOMAIN}/{self._path}/{path}") for path in log_files]
        return snapshot

    def _staged_files(self, snapshot: Snapshot) -> frozenset[str]:
        targets = self._staged.get(snapshot.table_id, ())
        return frozenset().union(*(staged.needed(snapshot.transactions) for staged in targets))

    def _copy_data(self, target: Storage, snapshot: Snapshot) -> bool:
        """False when a file is not there any more because a newer version does not need it."""
        for path in (*snapshot.files, *self._staged_files(snapshot)):
            if path in self._copied:
                continue
            try:
                self._copied[path] = copy(self._log.storage, path, target, f"{DOMAIN}/{self._path}/{path}")
            except OSError as error:
                newer = self._log.refresh()
                if path in snapshot.files and path in newer.files:
                    raise BackupError(
                        f"data file {self._path}/{path} cannot be read ({error}): restore it, or purge its messages, then "
                        "back up again"
                    ) from error
                if path in snapshot.files or path not in self._staged_files(newer):
                    return False
                log.warning(
                    "staged file %s/%s cannot be read (%s): its transaction or transfer is blocked, in the backup too",
                    self._path,
                    path,
                    error,
                )
        return True
