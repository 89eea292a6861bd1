"""A backup of a domain, consistent beside running senders and consumers, and its restore into an empty place.

The order makes it consistent:

1. All record sets, as of one moment of the store; of each server's store, one after the other, the domain's own last.
2. Each table at one later version, with the files that are staged there for open transactions and transfers.

So no record set names a message that its table lacks because it was sent later: the store numbers nothing, it follows the tables.
A record set is compared with its table, so the stores of several servers need not be read at the same moment. Only a
transaction's acknowledgement depends on another record, its coordinator in the domain's own store: read later, the coordinator
has decided whatever a server's store says is acknowledged. What happened in between makes a record set older than its table, and
`restored` of core/records/stored_form.py mends that. Files that a purge or a compaction removes meanwhile stay on disk for
`fileGrace`; when one is deleted all the same, its table is copied at a newer version, which is as good.

Staged files are in no table yet and may be the only copy of their messages. Whether a target has them, its own copy says: what is
appended there is among its data files. The backup does not complete what is open, because a target may be paused, full or away
for long.

backup.json                             manifest, written last: a backup without it is incomplete
records.jsonl                           one record set a line, of the domain's own store
records/<server>.jsonl                  the same, of a server's store
domain/<destination>/                   a Delta table at one version: its active files and one Delta checkpoint
domain/_jmsq/acknowledgements/<dest>/   the same
domain/_jmsq/life-cycles/<dest>/        the same, of a destination that logs or has logged
domain/_jmsq/destinations/<dest>        the register of names
domain/_jmsq/connection-factories/<n>   their settings
domain/_jmsq/quotas/<n>                 their settings
domain/_jmsq/lease-terms/<server>/<n>   which servers were down, with `_jmsq/stopped-servers/<server>`;
                                        `_jmsq/paused-servers/<server>`: what was paused on them
domain/_jmsq/left-out/                  messages that queries have left out of batches

A restore writes tables first, then the stores, `domain.json` last: one that was interrupted leaves no domain, and is repeated.

Features: C18, C19, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from spark_jms.admin.backup_files import CopiedFile, copy, described, is_records, read_records, write_records
from spark_jms.claims.consumers.absent_servers import LEFT_OUT
from spark_jms.claims.records.life_cycle import position_id
from spark_jms.claims.servers.stores import label_of, store_of
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import record_server
from spark_jms.core.limits.flow_control import FlowThresholds
from spark_jms.core.messages.ranges import Ranges, union
from spark_jms.core.records.life_cycle import events_id
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.stored_form import (
    DOMAIN_RECORD,
    from_objects,
    intents_of,
    member_record,
    restored,
    to_objects,
)
from spark_jms.core.transactions.transaction import COORDINATOR_KEY, COORDINATORS_PREFIX, coordinator_from_bytes
from spark_jms.core.transactions.transfer import TargetOutcome, Ticket, TransferTarget, outcome_of
from spark_jms.errors import BackupError, FormatVersionError, JmsqError, RecordSetError
from spark_jms.log.destinations.domain import (
    CONNECTION_FACTORIES,
    DOMAIN_FILE,
    REGISTER,
    RESTORED,
    Domain,
    Register,
)
from spark_jms.log.destinations.owner import own_all, without_copy
from spark_jms.log.destinations.servers import PAUSED, STOPPED, TERMS, ServerEntry, Servers, ServerTerms
from spark_jms.log.destinations.store_places import check_place, same_store, server_store_uri, store_uri
from spark_jms.log.limits.quota import QUOTAS
from spark_jms.log.tables.checkpoints import LAST_CHECKPOINT, checkpoint_path, write_checkpoint
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.object_store import open_storage
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import Storage, now_ms
from spark_jms.store import RecordCorruptError, Store, StoreError, open_store
from spark_jms.store.contract import COMMAND_LIMIT_S, StoreOpening
from spark_jms.store.kinds.administration import dump, load
from spark_jms.store.ledger.administration import DumpedRecord

log = logging.getLogger("spark_jms")
MANIFEST, DOMAIN = "backup.json", "domain"
FORMAT_VERSION = 5  # servers compress; record sets tell what was shown 4; with thresholds of servers 3, with servers 2, without any 1
_MAX_VERSIONS = 10  # of one table, until a version's files could all be copied


@dataclass(frozen=True)
class TableCopy:
    """`backlog` counts the messages that some subscription had not finished when the store was read."""

    destination: str
    version: int
    messages: int
    backlog: int


@dataclass(frozen=True)
class Manifest:
    domain: dict[str, Any]  # what was in domain.json
    store_read_ms: int
    finished_ms: int
    records: int
    tables: tuple[TableCopy, ...]
    files: tuple[CopiedFile, ...]
    servers: Mapping[str, str] = field(default_factory=dict)  # name -> its store, as the module file has it
    lease_ms: Mapping[str, int] = field(default_factory=dict)  # name -> the length of its lease
    thresholds: Mapping[str, Any] = field(default_factory=dict)  # name -> those of its flow control, if it has any
    compressions: Mapping[str, str] = field(default_factory=dict)  # name -> how it compresses bodies, if it does

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def write(self, target: Storage) -> None:
        """Raises BackupError when another backup was written to the target meanwhile."""
        data = json.dumps({"formatVersion": FORMAT_VERSION, **asdict(self)}).encode()
        if not target.create(MANIFEST, data, durable=True):
            raise BackupError(
                f"another backup was written to {target.uri} at the same time, and the two are mixed: delete it, and write each "
                "backup to a place of its own"
            )

    @staticmethod
    def read(backup: Storage) -> Manifest:
        """Raises BackupError, FormatVersionError."""
        data = backup.get(MANIFEST)
        if data is None:
            raise BackupError(f"{backup.uri} is not a complete backup: it has no {MANIFEST}; run `jmsq backup` again")
        try:
            stored = json.loads(data)
            if stored.pop("formatVersion") > FORMAT_VERSION:
                raise FormatVersionError(
                    f"a newer spark-jms wrote the backup {backup.uri}: install that one or a later one"
                )
            stored["tables"] = tuple(TableCopy(**table) for table in stored["tables"])
            stored["files"] = tuple(CopiedFile(**file) for file in stored["files"])
            return Manifest(**stored)
        except (ValueError, KeyError, TypeError) as error:
            raise BackupError(f"{backup.uri}/{MANIFEST} is damaged ({error!r}): use another backup") from error


@dataclass(frozen=True)
class RestorePlan:
    """`existing_files` is what `force` would delete first. `servers`: name -> store."""

    manifest: Manifest
    root: str
    store: str
    servers: Mapping[str, str]
    existing_files: int


class StagedTarget(NamedTuple):
    """What a transaction or transfer has staged at one of its targets."""

    ticket: Ticket
    target: TransferTarget

    def needed(self, transactions: Mapping[str, int]) -> frozenset[str]:
        """The files that a copy of the target's table with these transactions lacks."""
        if outcome_of(self.ticket, transactions.get(self.ticket.app_id)) is not TargetOutcome.UNDECIDED:
            return frozenset()
        return frozenset(file.path for file in self.target.files)


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
    declared: list[Destination] = []
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
        declared.append(snapshot.destination)
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
    files += _states_of_servers(domain, target, declared)
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
        {name: entry.compression for name, entry in entries.items() if entry.compression is not None},
    )
    manifest.write(target)
    return manifest


def _left_out(domain: Domain) -> set[str]:
    """The marks of queries: claims/consumers/absent_servers.py."""
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
    if note := records.get(DOMAIN_RECORD):
        records[DOMAIN_RECORD] = replace(note, objects=without_copy(note.objects))
    return records


def _states_of_servers(domain: Domain, target: Storage, declared: Iterable[Destination]) -> list[CopiedFile]:
    """Which servers are down or paused. A stop or pause is what the copied tables say. The newest terms of leases are read after the
    tables, which may lack them; whether all have them is for restored processes to find out."""
    here = Servers(target.child(DOMAIN))
    for one in declared:
        for server, since_ms in one.stopped.items():
            here.stop(server, since_ms)
        for pause in one.pauses.all:
            if pause.server is not None:
                here.pause(pause.server, {**here.paused().get(pause.server, {}), pause.operation: pause.since_ms})
    copies = ServerTerms(target.child(DOMAIN))
    for server, known in domain.terms.newest().items():
        copies.begin(server, known.term)
    found = [info.path for where in (STOPPED, PAUSED, TERMS) for info in target.list(f"{DOMAIN}/{where}")]
    return [described(target, path) for path in found]


class _Place(NamedTuple):
    """The place of one record set."""

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


def staged_targets(records: Iterable[DumpedRecord]) -> dict[str, list[StagedTarget]]:
    """The staged files that a backup needs, of transactions and transfers that the copied records leave open: by the id of the
    target's table."""
    found: dict[str, list[StagedTarget]] = {}
    for record in records:
        try:
            for staged in _staged(record):
                found.setdefault(staged.target.table_id, []).append(staged)
        except (RecordSetError, FormatVersionError) as error:
            log.warning("the backup has a record that cannot be read, as the domain has: %s", error)
    return found


def _staged(record: DumpedRecord) -> Iterator[StagedTarget]:
    objects = dict(record.objects)
    if record.name.startswith(COORDINATORS_PREFIX):
        state = coordinator_from_bytes(objects.get(COORDINATOR_KEY), record.name)
        if state is not None and state.open is not None:
            for target in state.open.targets:
                yield StagedTarget(state.open.ticket, target)
        return
    for intent in intents_of(objects, record.name):
        for target in intent.targets:
            yield StagedTarget(intent.ticket, target)


# -- restore -----------------------------------------------------------------------------------------------------------


def plan_restore(
    backup_uri: str, root: str, store: str | None = None, servers: Mapping[str, str] | None = None
) -> RestorePlan:
    """Reads only. Raises BackupError, FormatVersionError."""
    target = open_storage(root)
    manifest = Manifest.read(open_storage(backup_uri))
    if unknown := sorted((servers or {}).keys() - manifest.servers.keys()):
        raise BackupError(
            f"{backup_uri} has no server {', '.join(unknown)} (there are: {', '.join(manifest.servers) or 'none'}): name one of these"
        )
    existing = sum(1 for _ in target.list(""))
    own = store or str(manifest.domain["store"])
    return RestorePlan(manifest, target.uri, own, {**manifest.servers, **(servers or {})}, existing)


def restore(
    backup_uri: str,
    root: str,
    store: str | None = None,
    *,
    servers: Mapping[str, str] | None = None,
    force: bool = False,
) -> RestorePlan:
    """`servers`: name -> another store for it than it had. Raises BackupError when the root is not empty (unless `force`), is
    in use, two servers would share a store, or the backup is damaged; DomainError when a store would be inside the root; and
    StoreInUseError when one holds other record sets: name an empty one."""
    plan = plan_restore(backup_uri, root, store, servers)
    backup, target = open_storage(backup_uri), open_storage(root)
    stores = _stores(plan)
    for place in (plan.store, *plan.servers.values()):
        check_place(target, place)
    if plan.existing_files:
        if not force:
            raise BackupError(
                f"{target.uri} is not empty ({plan.existing_files} files): restore into an empty place, or --force"
            )
        _refuse_used(root)
        _empty(target)
    for file in plan.manifest.files:
        if is_records(file.path):
            _check(backup, file, described(backup, file.path))
            continue
        to = file.path.removeprefix(f"{DOMAIN}/")
        found = copy(backup, file.path, target, to) if file.bytes else described(backup, file.path)
        _check(backup, file, found)
        if not file.bytes:
            target.put(to, b"")
    for name, own in plan.servers.items():
        thresholds = FlowThresholds.from_json(plan.manifest.thresholds.get(name, {}))
        lease_ms = plan.manifest.lease_ms.get(name, ServerEntry.lease_ms)
        compression = plan.manifest.compressions.get(name)
        Servers(target).add(name, ServerEntry(own, lease_ms, thresholds, compression=compression))
    target.sync([file.path.removeprefix(f"{DOMAIN}/") for file in plan.manifest.files if not is_records(file.path)])
    for server, uri in stores.items():
        load(read_records(backup, server), uri)
    domain: dict[str, Any] = {**plan.manifest.domain, "store": plan.store, RESTORED: secrets.token_hex(8)}
    if not target.create(DOMAIN_FILE, json.dumps(domain, indent=1).encode(), durable=True):
        raise BackupError(
            f"another process has created a domain in {target.uri} while the backup was restored: restore into a place of its own"
        )
    own_all(map(Domain(root).owner, stores))
    return plan


def _stores(plan: RestorePlan) -> dict[str, str]:
    """server -> the URI of its store, each another one. Raises BackupError."""
    own = str(plan.manifest.domain["id"])
    found = {HOME: store_uri(plan.root, plan.store, own)}
    for name, store in plan.servers.items():
        uri = server_store_uri(plan.root, name, store, own)
        if any(same_store(uri, other) for other in found.values()):
            raise BackupError(f"server {name} would share the store {store!r} with another one: name one of its own")
        found[name] = uri
    return found


def _check(backup: Storage, expected: CopiedFile, found: CopiedFile) -> None:
    if (found.bytes, found.digest) != (expected.bytes, expected.digest):
        raise BackupError(
            f"the backup {backup.uri} is damaged: {expected.path} has {found.bytes} bytes with checksum {found.digest}, but "
            f"{expected.bytes} with {expected.digest} were written; use another backup"
        )


def _refuse_used(root: str) -> None:
    """A damaged store or domain is no obstacle: it may be the reason to restore."""
    try:
        domain = Domain(root)
        servers = [HOME, *domain.servers.names()]
    except JmsqError:
        return
    for server in servers:
        try:
            with open_store(domain.server_uri(server), create=False, opening=StoreOpening(COMMAND_LIMIT_S)) as store:
                users = [info.label or info.session_id for info in store.sessions().values()]
        except (JmsqError, StoreError):
            continue
        if users:
            raise BackupError(f"{domain.root} is used by {', '.join(users)}: stop them, then restore")


def _empty(target: Storage) -> None:
    target.delete(DOMAIN_FILE)  # from here on it is not a domain
    for file in list(target.list("")):
        target.delete(file.path)
