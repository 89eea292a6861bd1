"""The servers of a domain: names, each with a store of its own; their leases, and taking them down and up.

ROOT/_jmsq/servers/<name> is one small file for each server. The store in it is never changed; it has the record sets of the
members on the server. The server `home` has no file: its store is the domain's own.

What leases and their terms are, core/destinations/servers.py tells. Their files are:

    ROOT/_jmsq/leases/<server>                       the token of the last renewal, and the marks of a challenge and of a doubt
    ROOT/_jmsq/lease-terms/<server>/<number>         since when the lease has lapsed, or that it is held
    ROOT/_jmsq/lease-terms/<server>/<number>.done    all destinations have this term

A server is down for a destination once its table says so: because an administrator has stopped it, or because its lease has
lapsed. The two are kept apart, so the end of one does not end the other. The commit begins a new routing epoch, so it is ordered
with the messages: senders that planned before it route again at their commit, and whatever commits after it obeys it. Of a
replicated topic it also begins or ends an outage.

Features: D1, D4, M10, T5, T14 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import attrs

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.servers import HELD, HOME, LeaseFile, LeaseTerm, Span
from spark_jms.core.limits.flow_control import NO_THRESHOLDS, FlowThresholds
from spark_jms.errors import DomainError, FormatVersionError
from spark_jms.log.tables.commit import Decision, commit, metadata_action
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import NamedFiles, Storage
from spark_jms.settings.destination import COMPRESSIONS, ServerSettings
from spark_jms.settings.environment import SERVER_VARIABLE
from spark_jms.settings.table import settings_of
from spark_jms.store.errors import shown_uri

SERVERS = "_jmsq/servers"
STOPPED = "_jmsq/stopped-servers"
PAUSED = "_jmsq/paused-servers"
LEASES = "_jmsq/leases"
TERMS = "_jmsq/lease-terms"
_HOME_THRESHOLDS, _HOME_COMPRESSION = "homeThresholds", "homeCompression"  # in the domain's file
DEFAULT_LEASE_MS = settings_of(ServerSettings)["lease"].default
FORMAT_VERSION = 1  # of the file of a lease
_KINDS = {field.name: type(field.default) for field in fields(LeaseFile)}
_DONE = ".done"


@dataclass(frozen=True)
class ServerEntry:
    """A server, as its file has it. `store` as the module file has it: `file`, a path or a URI. `lease_ms`: so long a store may be
    silent before its server counts as away. `thresholds`: of flow control."""

    store: str
    lease_ms: int = DEFAULT_LEASE_MS
    thresholds: FlowThresholds = NO_THRESHOLDS
    removed: bool = False  # `jmsq server remove` is under way
    compression: str | None = None  # of bodies of its members, by default


class Servers:
    """The servers' own files. Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._root = storage.uri
        self._files, self._stopped = NamedFiles(storage, SERVERS), NamedFiles(storage, STOPPED)
        self._paused = NamedFiles(storage, PAUSED)

    def names(self) -> list[str]:
        """Without HOME."""
        return self._files.names()

    def entry(self, name: str) -> ServerEntry:
        """Raises DomainError, which lists the servers."""
        data = self._files.get(name)
        if data is None:
            raise DomainError(
                f"{self._root} has no server {name!r} (there are: {', '.join([HOME, *self.names()])}): add it under "
                "`servers:` in the module file"
            )
        try:
            stored = json.loads(data)
            thresholds = FlowThresholds.from_json(stored.get("thresholds", {}))
            lease_ms, removed = int(stored.get("leaseMs", DEFAULT_LEASE_MS)), stored.get("removed", False) is True
            compression = compression_of(stored.get("compression"))
            return ServerEntry(str(stored["store"]), lease_ms, thresholds, removed, compression)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DomainError(
                f"{self._files.shown(name)} is damaged ({error!r}): restore it from a copy, or write into it "
                '{"store": …} with the store of the module file'
            ) from error

    def stopped(self) -> dict[str, int]:
        """server -> since when, ms. What destinations get that come to a server later. Raises DomainError when a file is damaged."""
        return {name: since_ms for name in self._stopped.names() if (since_ms := self._since(name)) is not None}

    def _since(self, name: str) -> int | None:
        data = self._stopped.get(name)
        try:
            return None if data is None else int(data)
        except ValueError as error:
            raise DomainError(
                f"{self._stopped.shown(name)} is damaged ({error}): server {name} is stopped, and it is not known since when. "
                f"`jmsq server start {name}` ends that; then stop it again if it shall be stopped"
            ) from error

    def stop(self, name: str, since_ms: int) -> None:
        """Leaves an earlier stop unchanged. Durable on return."""
        self._stopped.create(name, str(since_ms).encode())

    def start(self, name: str) -> None:
        self._stopped.delete(name)

    def paused(self) -> dict[str, dict[str, int]]:
        """server -> operation -> since when, ms. What destinations get that come to a server later. Raises DomainError when a file is
        damaged."""
        found = {name: self._paused_of(name) for name in self._paused.names()}
        return {name: operations for name, operations in found.items() if operations}

    def _paused_of(self, name: str) -> dict[str, int]:
        try:
            stored = json.loads(self._paused.get(name) or b"{}")
            return {str(operation): int(since_ms) for operation, since_ms in stored.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise DomainError(
                f"{self._paused.shown(name)} is damaged ({error!r}): what is paused of server {name} is not known. "
                f"`jmsq resume --server {name}` ends all of it; then pause what shall be paused"
            ) from error

    def pause(self, name: str, operations: Mapping[str, int]) -> None:
        """These operations and no others, since when. Durable on return."""
        if operations:
            self._paused.put(name, json.dumps(operations).encode())
        else:
            self._paused.delete(name)

    def forget_states(self, name: str) -> None:
        """Of a server that is removed: neither stopped nor paused."""
        self._stopped.delete(name)
        self._paused.delete(name)

    def add(self, name: str, entry: ServerEntry, before: str = "") -> None:
        """Durable on return. Raises DomainError when it exists with a store other than that of `entry`, or `before`, of which the
        caller knows that it is the same one."""
        self._files.create(name, _stored(entry))
        known = self.entry(name)
        if known.removed:
            raise DomainError(
                f"server {name} of {self._root} is being removed: take it out of the module file, and run `jmsq server remove {name}` "
                "again, which completes that"
            )
        if known.store not in (entry.store, before):
            raise DomainError(
                f"server {name} of {self._root} keeps its state in the store {shown_uri(known.store)!r}; it cannot be "
                f"changed to {shown_uri(entry.store)!r} by apply: take another name"
            )
        if known != entry:
            self.put(name, entry)

    def put(self, name: str, entry: ServerEntry) -> None:
        """Durable on return."""
        self._files.put(name, _stored(entry))


def home_server(servers: Servers, given: str | None) -> str | None:
    """The server that senders and pinned receivers of this process prefer: the one `given`, else that of the environment variable
    JMSQ_SERVER, which need not exist. None: they prefer none. Raises DomainError when the domain has no server that is given."""
    if given is not None and given != HOME:
        servers.entry(given)
    return given or os.environ.get(SERVER_VARIABLE) or None


def _stored(entry: ServerEntry) -> bytes:
    thresholds = {"thresholds": entry.thresholds.to_json()} if entry.thresholds else {}
    removed = {"removed": True} if entry.removed else {}
    compression = {"compression": entry.compression} if entry.compression is not None else {}
    stored = {"store": entry.store, "leaseMs": entry.lease_ms, **thresholds, **removed, **compression}
    return json.dumps(stored, indent=1).encode()


def compression_of(stored: object) -> str | None:
    """Raises ValueError."""
    if stored is None or stored in COMPRESSIONS:
        return None if stored is None else str(stored)
    raise ValueError(f"there is no compression {stored!r}")


def home_entry(declaration: Mapping[str, Any]) -> ServerEntry:
    """Of the domain's own store, which has no file: by the domain's. Raises DomainError."""
    try:
        thresholds = FlowThresholds.from_json(declaration.get(_HOME_THRESHOLDS, {}))
        compression = compression_of(declaration.get(_HOME_COMPRESSION))
    except (ValueError, TypeError, AttributeError) as error:
        raise DomainError(
            f"the file of the domain is damaged: {_HOME_THRESHOLDS} or {_HOME_COMPRESSION} ({error!r}): apply the module file again"
        ) from error
    return ServerEntry(str(declaration.get("store", "")), thresholds=thresholds, compression=compression)


def home_declaration(thresholds: FlowThresholds, compression: str | None) -> dict[str, Any]:
    """What the domain's file has of it."""
    return {_HOME_THRESHOLDS: thresholds.to_json(), _HOME_COMPRESSION: compression}


# -- leases ------------------------------------------------------------------------------------------------------------


class ServerLeases:
    """The files of the servers' leases. A process replaces the whole file. Of two that do so at once the later one counts: a
    renewal that is lost is made again, because the mark is still there, and a mark that is lost was answered. Thread-safe: every
    call reads or writes the storage. `by` names this process for people."""

    def __init__(self, storage: Storage, by: str = "") -> None:
        self._storage, self._by = storage, by

    def read(self, server: str) -> LeaseFile:
        """A file that is missing or damaged is like one that was never renewed: the next renewal replaces it. Raises
        FormatVersionError for one of a later spark-jms, whose processes keep the lease: this one leaves it to them."""
        data = self._storage.get(f"{LEASES}/{server}")
        if data is None:
            return LeaseFile()
        try:
            value = json.loads(data)
            later = value.get("v", 1) > FORMAT_VERSION
            lease = LeaseFile(**{key: value[key] for key in value.keys() & _KINDS.keys()})
        except (ValueError, TypeError, AttributeError, RecursionError):
            return LeaseFile()
        if any(type(getattr(lease, key)) is not kind for key, kind in _KINDS.items()):
            return LeaseFile()
        if later:
            raise FormatVersionError(
                f"{self._storage.uri}/{LEASES}/{server} has format version {value['v']}, this spark-jms reads up to "
                f"{FORMAT_VERSION}: install a later spark-jms. This process does not take part in keeping the lease"
            )
        return lease

    def renew(self, server: str, length_ms: int, at_ms: int) -> None:
        self._write(server, LeaseFile(secrets.token_hex(8), length_ms, self._by, at_ms))

    def challenge(self, server: str) -> None:
        """Leaves a mark that is there."""
        lease = self.read(server)
        if not lease.challenge:
            self._write(server, replace(lease, challenge=secrets.token_hex(8)))

    def doubt(self, server: str) -> None:
        """The same."""
        lease = self.read(server)
        if not lease.doubt:
            self._write(server, replace(lease, doubt=secrets.token_hex(8)))

    def _write(self, server: str, lease: LeaseFile) -> None:
        self._storage.put(f"{LEASES}/{server}", json.dumps({"v": FORMAT_VERSION, **asdict(lease)}).encode())


@dataclass(frozen=True)
class KnownTerm:
    """The newest term of a server's lease. `done`: all destinations have it."""

    term: LeaseTerm = HELD
    done: bool = True


class ServerTerms:
    """The terms of the servers' leases. A term begins when one process has created its file. The files before the newest one are
    deleted. Thread-safe: every call reads or writes the storage, but the content of a term, which never changes, is read once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[str, LeaseTerm] = {}  # by path: the newest of each server

    def newest(self) -> dict[str, KnownTerm]:
        """server -> its newest term; without servers whose lease never lapsed. Raises DomainError when a file is damaged."""
        numbers: dict[str, int] = {}
        done: set[tuple[str, int]] = set()
        for info in self._storage.list(TERMS):
            server, name = info.path.removeprefix(f"{TERMS}/").split("/", 1)
            plain = name.removesuffix(_DONE)
            if not plain.isdecimal():  # a dot marks a temporary file
                continue
            if name.endswith(_DONE):
                done.add((server, int(plain)))
            else:
                numbers[server] = max(numbers.get(server, 0), int(plain))
        found = {}
        for server, number in numbers.items():
            term = self._term(server, number)
            if term is not None:
                found[server] = KnownTerm(term, (server, number) in done)
        return found

    def lapsed(self) -> dict[str, LeaseTerm]:
        """The newest terms of the servers whose lease has lapsed."""
        return {server: known.term for server, known in self.newest().items() if known.term.lapsed_ms is not None}

    def begin(self, server: str, term: LeaseTerm) -> bool:
        """False when another process has begun a term with this number, or a later one. Two that begin the same term may both get
        True: what follows from a term can be done twice."""
        if not self._storage.create(_path(server, term.number), json.dumps(term.to_json()).encode(), durable=True):
            return False
        newest = self.newest().get(server)
        if newest is None or newest.term != term:
            return False  # later terms began while this process stood still
        self._delete_before(server, term.number)
        return True

    def note_done(self, server: str, term: LeaseTerm) -> None:
        self._storage.create(_path(server, term.number) + _DONE, b"")

    def _term(self, server: str, number: int) -> LeaseTerm | None:
        """None when a later one has replaced it meanwhile."""
        path = _path(server, number)
        known = self._read.get(server)
        if known is not None and known.number == number:
            return known
        data = self._storage.get(path)
        if data is None:
            return None
        try:
            found = LeaseTerm.from_json(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DomainError(
                f"{self._storage.uri}/{path} is damaged ({error!r}): delete it while no job and no client runs; they find out "
                "again whether the server is away"
            ) from error
        self._read[server] = found
        return found

    def _delete_before(self, server: str, number: int) -> None:
        for info in list(self._storage.list(f"{TERMS}/{server}")):
            old = info.path.rsplit("/", 1)[1].removesuffix(_DONE)
            if old.isdecimal() and int(old) < number:
                self._storage.delete(info.path)


def _path(server: str, number: int) -> str:
    return f"{TERMS}/{server}/{number:010d}"


# -- down and up: a commit to the table of each destination that is on the server --------------------------------------


def decide_stop(snapshot: Snapshot, server: str, since_ms: int | None) -> Decision | None:
    """Pure. `since_ms` None: the administrator has started it. None when it is so already, or the destination is not on the
    server."""
    declared = snapshot.destination
    stopped = {name: since for name, since in declared.stopped.items() if name != server}
    if since_ms is not None and server in declared.servers_in_use():
        stopped[server] = declared.stopped.get(server, since_ms)
    return _decide(snapshot, attrs.evolve(declared, stopped=stopped))


def follow_term(log: DeltaLog, server: str, term: LeaseTerm) -> bool:
    """Commit the newest term of a server's lease to a destination's table. False when the table had it, or a later one."""
    return commit(log, lambda snapshot: decide_term(snapshot, server, term)) is not None


def decide_term(snapshot: Snapshot, server: str, term: LeaseTerm) -> Decision | None:
    """Pure. None when the table has this term or a later one, or the destination is not on the server."""
    declared = snapshot.destination
    if server not in declared.servers_in_use() or declared.terms.get(server, HELD).number >= term.number:
        return None
    return _decide(snapshot, attrs.evolve(declared, terms={**declared.terms, server: term}))


def _decide(snapshot: Snapshot, after: Destination) -> Decision | None:
    """Every change of `down` is decided here."""
    before = snapshot.destination
    if after == before:
        return None
    after = with_outages(snapshot, attrs.evolve(after, epoch=before.epoch + 1))
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])


def with_outages(snapshot: Snapshot, after: Destination) -> Destination:
    """What the next commit declares, with the outages of a replicated topic that follow from the servers that are down then."""
    if not after.is_replicated:
        return after
    members = {member: _span(snapshot, member) for member in after.member_ids}
    return attrs.evolve(after, outages=after.outages.following(after.down.keys(), after.servers_in_use(), members))


def _span(snapshot: Snapshot, member: int) -> Span:
    files, last = snapshot.member_files(member), snapshot.last_sequence(member)
    return Span(files.files[0].first if len(files) else last + 1, last)
