"""A backup of a domain, consistent beside running senders and consumers (C19).

The order makes it consistent:

1. All record sets, as of one moment of the store.
2. Each table at one later version.

So no record set names a message that its table lacks because it was sent later: the store numbers nothing, it follows the
tables. What happened in between makes a record set older than its table, and `core/restored_state.py` mends that. Files
that a purge or a compaction removes meanwhile stay on disk for `fileGrace`; when one is deleted all the same, its table is
copied at a newer version, which is as good.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_jms.admin.backup_files import (
    DOMAIN,
    RECORDS,
    CopiedFile,
    Manifest,
    TableCopy,
    copy,
    described,
    write_records,
)
from spark_jms.claims.acknowledgement_table import position_id
from spark_jms.claims.record_sets import label_of
from spark_jms.claims.stores import store_of
from spark_jms.core.placement import HOME
from spark_jms.core.ranges import Ranges, union
from spark_jms.core.record_names import member_record
from spark_jms.core.record_set import RecordSet
from spark_jms.core.record_set_form import from_objects, to_objects
from spark_jms.core.restored_state import restored
from spark_jms.errors import BackupError
from spark_jms.log.checkpoint_writer import LAST_CHECKPOINT, checkpoint_path, write_checkpoint
from spark_jms.log.connection_factories import CONNECTION_FACTORIES
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.register import REGISTER, Register
from spark_jms.log.root import open_storage
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import Storage, now_ms
from spark_jms.store import Store
from spark_jms.store.admin import dump
from spark_jms.store.reports import DumpedRecord

_MAX_VERSIONS = 10  # of one table, until a version's files could all be copied


def back_up(domain: Domain, store: Store, target_uri: str) -> Manifest:
    """Copy the domain into the empty directory or URL `target_uri`. Changes nothing in the domain.

    Raises BackupError when the target is not empty, a record set is damaged, a prepared transaction is in doubt, or a data
    file cannot be read; the target then holds no complete backup.
    """
    target = open_storage(target_uri)
    if target.uri == domain.root or target.uri.startswith(f"{domain.root.rstrip('/')}/"):
        raise BackupError(f"{target.uri} lies inside the domain {domain.root}: write the backup somewhere else")
    if next(iter(target.list("")), None) is not None:
        raise BackupError(f"{target.uri} is not empty: name an empty or a new place for the backup")
    if servers := domain.servers.names():
        raise BackupError(
            f"{domain.root} has the servers {', '.join(servers)}, and a backup of several stores is not possible yet: stop all "
            "jobs and clients, then copy the root and the store of each server by their own means"
        )
    store = store_of(store, HOME)
    if in_doubt := store.in_doubt():
        raise BackupError(
            f"prepared transactions are in doubt: {', '.join(in_doubt)}. Resolve them, then back up again"
        )
    records = _records(store)
    store_read_ms = now_ms()
    files: list[CopiedFile] = []
    tables: list[TableCopy] = []
    for name in domain.destinations():
        entry = domain.register.entry(name)
        if entry is None:  # dropped since the names were listed
            continue
        history = _Table(domain.acknowledgements(name), entry.acknowledgements)
        acknowledged = history.copy(target)
        messages = _Table(domain.log(name), entry.path)
        snapshot = messages.copy(target)
        backlog = 0
        for record, state in _restored_states(records, name, snapshot, acknowledged):
            backlog += state.unfinished(1, snapshot.last_sequence(record[1])).count
            records[record[0]] = _with_state(records.get(record[0]), record[0], state)
        Register(target.child(DOMAIN)).add(name, entry)
        files += [*history.files, *messages.files, described(target, f"{DOMAIN}/{REGISTER}/{name}")]
        tables.append(TableCopy(name, snapshot.version, sum(f.rows for f in snapshot.files.values()), backlog))
    for name in domain.connection_factories.names():
        path = f"{CONNECTION_FACTORIES}/{name}"
        files.append(copy(domain.storage, path, target, f"{DOMAIN}/{path}"))
    write_records(target, records.values())
    files.append(described(target, RECORDS))
    target.sync([file.path for file in files])
    manifest = Manifest(domain.declaration, store_read_ms, now_ms(), len(records), tuple(tables), tuple(files))
    manifest.write(target)
    return manifest


def _records(store: Store) -> dict[str, DumpedRecord]:
    records = {record.name: record for record in dump(store)}
    if damaged := [f"{record.name}: {record.damage}" for record in records.values() if record.damage]:
        raise BackupError(
            f"{len(damaged)} record set(s) of the store are damaged and cannot be backed up ({damaged[0]}): `jmsq store check` "
            "lists them; restore them or drop their subscriptions"
        )
    return records


def _restored_states(
    records: dict[str, DumpedRecord], destination: str, snapshot: Snapshot, acknowledged: Snapshot
) -> Iterator[tuple[tuple[str, int], RecordSet]]:
    """((record, member), state) for each record set of the destination that the table's version knows."""
    declared = snapshot.destination
    for subscription in declared.subscription_names():
        for member in declared.member_ids:
            record = member_record(snapshot.table_id, subscription, member)
            stored = dict(records[record].objects) if record in records else {}
            label = label_of(destination, subscription, member)
            state = from_objects(stored, label).start_at(declared.start_floor(subscription, member))
            present = union(Ranges.of((file.first, file.last)) for file in snapshot.member_files(member).files)
            written = acknowledged.transactions.get(position_id(snapshot.table_id, subscription, member), 0)
            yield (record, member), restored(state, snapshot.last_sequence(member), present, written)


def _with_state(record: DumpedRecord | None, name: str, state: RecordSet) -> DumpedRecord:
    epoch = record.epoch if record else 1
    return DumpedRecord(name, epoch, None, tuple(to_objects(state).items()))


class _Table:
    """Copies one table. `files` names what the backup has of it."""

    def __init__(self, log: DeltaLog, path: str) -> None:
        self._log, self._path = log, path
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
        for path in self._copied.keys() - set(snapshot.files):
            target.delete(f"{DOMAIN}/{self._path}/{path}")
        table = target.child(f"{DOMAIN}/{self._path}")
        write_checkpoint(table, snapshot)
        log_files = (checkpoint_path(snapshot.version), LAST_CHECKPOINT)
        self.files = [self._copied[path] for path in snapshot.files]
        self.files += [described(target, f"{DOMAIN}/{self._path}/{path}") for path in log_files]
        return snapshot

    def _copy_data(self, target: Storage, snapshot: Snapshot) -> bool:
        """False when a file is not there any more because a newer version does not need it."""
        for path in snapshot.files:
            if path in self._copied:
                continue
            try:
                self._copied[path] = copy(self._log.storage, path, target, f"{DOMAIN}/{self._path}/{path}")
            except OSError as error:
                if path not in self._log.refresh().files:
                    return False
                raise BackupError(
                    f"data file {self._path}/{path} cannot be read ({error}): restore it, or purge its messages, then back "
                    "up again"
                ) from error
        return True
