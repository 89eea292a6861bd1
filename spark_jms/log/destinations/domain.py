"""A domain: one root with its destinations, its store and its format version.

ROOT/<destination>/                          the Delta table of a destination, unless the register names another path
ROOT/_jmsq/domain.json                       format version, id, store, interval of the search for expired messages
ROOT/_jmsq/destinations/<destination>        the register: where its tables lie
ROOT/_jmsq/temporary/                        temporary destinations: log/destinations/temporary.py
ROOT/_jmsq/health/<destination>              failures of senders' housekeeping
ROOT/_jmsq/acknowledgements/, life-cycles/   the Delta tables of its acknowledgements and of its life-cycle log
ROOT/_jmsq/servers/<server>                  its store, and the length of its lease
ROOT/_jmsq/connection-factories/<name>       its settings
ROOT/_jmsq/stopped-servers/<server>          since when an administrator has stopped it
ROOT/_jmsq/paused-servers/<server>           which operations an administrator has paused on it
ROOT/_jmsq/leases/, lease-terms/             the leases of servers and their terms: log/destinations/servers.py
ROOT/_jmsq/quotas/<quota>                    its settings
ROOT/_jmsq/quota-ledgers/<ledger>/           who has reserved room in a quota: log/limits/quota_ledger.py
ROOT/_jmsq/published-usage/<table id>/<n>    what a destination holds, for its senders: log/limits/usage.py
ROOT/_jmsq/usage/                            what passed through the destinations: log/upkeep/usage_history.py
ROOT/_jmsq/flow/<table id>/<query id>        how fast a query's sink may send: spark/sink.py
ROOT/_jmsq/left-out/<table id>/<consumer>/   messages withheld from a batch: claims/consumers/absent_servers.py
ROOT/_jmsq/query-progress/<table id>/        what queries acknowledge while a server is away: claims/consumers/absent_servers.py
ROOT/_jmsq/boots/<host>                      the boot that wrote last: log/upkeep/power_loss.py
ROOT/_jmsq/lost/<boot>/                      what a loss of power has damaged: log/upkeep/power_loss.py
ROOT/_jmsq/store/, stores/<server>/          the default file store, and that of a server

Features: C3, C14, C16, C18, D2, R13, S3, T1, T5, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from spark_jms.core.destinations.destination import is_temporary
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.limits.flow_control import thresholds_of
from spark_jms.core.limits.quota import MessageUsage
from spark_jms.errors import (
    DestinationDroppedError,
    DomainError,
    FormatVersionError,
    InvalidDestinationError,
    JmsqError,
    OptionError,
)
from spark_jms.log.destinations.owner import StoreOwner, ensure_owner
from spark_jms.log.destinations.servers import ServerEntry, Servers, ServerTerms, home_declaration, home_entry
from spark_jms.log.destinations.store_places import (
    DEFAULT_STORE,
    check_place,
    check_same,
    same_store,
    server_store_uri,
    store_uri,
)
from spark_jms.log.destinations.temporary import TemporaryTables
from spark_jms.log.limits.quota import Quotas
from spark_jms.log.limits.usage import UsageFiles, log
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.object_store import open_storage
from spark_jms.log.tables.storage import ClockWatch, NamedFiles, Storage, now_ms
from spark_jms.settings.connection_factory import ConnectionFactory, from_stored, to_stored
from spark_jms.settings.destination import DomainSettings, ServerSettings
from spark_jms.settings.table import settings_of
from spark_jms.store.contract import COMMAND_LIMIT_S, StoreOpening
from spark_jms.store.errors import shown_uri

DOMAIN_FILE = "_jmsq/domain.json"
REGISTER = "_jmsq/destinations"
ACKNOWLEDGEMENTS = "_jmsq/acknowledgements"
LIFE_CYCLES = "_jmsq/life-cycles"
CONNECTION_FACTORIES = "_jmsq/connection-factories"
FORMAT_VERSION = 2  # of the domain: how record sets are named and stored
_SCAN_INTERVAL, _SERVER_SCAN_INTERVALS = "expirationScanIntervalMs", "serverExpirationScanIntervalsMs"
RESTORED = "restored"  # in the domain file: which restored copy this is
_DEFAULT_SCAN_MS = settings_of(DomainSettings)["expirationScanInterval"].default


class Domain:
    """An open root. Thread-safe. All callers share one log per destination."""

    def __init__(self, root: str, *, upgrading: bool = False) -> None:
        """`upgrading`: for `jmsq upgrade`, which alone may open a domain of an earlier format."""
        self.storage = open_storage(root)
        self.root = self.storage.uri
        self.register = Register(self.storage)
        self.clock = ClockWatch(self.storage)
        self.servers = Servers(self.storage)
        self.connection_factories = ConnectionFactories(self.storage)
        self.terms = ServerTerms(self.storage)
        self.usages = UsageFiles(self.storage)
        self.quotas = Quotas(self.storage, self.usages, self._log_for_sending, self._with_temporary)
        self.temporary = TemporaryTables(self.storage, self.quotas)
        self._lock = threading.Lock()
        self._logs: dict[tuple[str, str], DeltaLog] = {}  # by path and name
        self._admissions: dict[str, Callable[[], None]] = {}
        self._file = data = self.storage.get(DOMAIN_FILE)
        if data is None:
            # Processes of Spark do not all have the directory of their driver: those of a Spark Connect session have one of its own.
            relative = not os.path.isabs(root) and self.root == os.path.abspath(root)
            raise DomainError(
                f"{self.root} is not a spark-jms domain: create it with `jmsq apply --root {self.root} MODULE.yaml`"
                + (
                    f", or give an absolute root: {root} is relative to the directory of this process"
                    if relative
                    else ""
                )
            )
        try:
            self.declaration: dict[str, Any] = json.loads(data)
            version, self.id = int(self.declaration["formatVersion"]), str(self.declaration["id"])
            self.store = str(self.declaration["store"])
        except (ValueError, KeyError, TypeError) as error:
            raise DomainError(f"{self.root}/{DOMAIN_FILE} is damaged ({error!r}): restore it from a copy") from error
        if version > FORMAT_VERSION:
            raise FormatVersionError(
                f"{self.root} has format version {version}, this spark-jms reads up to {FORMAT_VERSION}: install a later spark-jms"
            )
        self.needs_upgrade = version < FORMAT_VERSION or bool(self.declaration.get("upgrading"))
        if self.needs_upgrade and not upgrading:
            begun = "its upgrade was not finished" if version == FORMAT_VERSION else "it is of an earlier version"
            raise FormatVersionError(
                f"{self.root} cannot be opened, because {begun}: stop its jobs and clients, then run `jmsq upgrade --root "
                f"{self.root}`"
            )

    def is_unchanged(self) -> bool:
        """The domain file is as it was when this was opened: no other domain is in its place, and no other format version."""
        return self.storage.get(DOMAIN_FILE) == self._file

    def expiration_scan_interval_ms(self) -> int:
        """As it is declared now; 0: none. Raises DomainError."""
        return int(self.declared_now().get(_SCAN_INTERVAL, _DEFAULT_SCAN_MS))

    def expiration_scan_intervals_ms(self, servers: Iterable[str]) -> dict[str, int]:
        """The same of each of these servers."""
        declared = self.declared_now()
        default, own = declared.get(_SCAN_INTERVAL, _DEFAULT_SCAN_MS), declared.get(_SERVER_SCAN_INTERVALS, {})
        return {server: int(own.get(server, default)) for server in servers}

    def set_expiration_scan_interval(self, interval_ms: int) -> None:
        """Durable on return. Housekeeping that runs takes it over with its next round."""
        if interval_ms != self.declaration.get(_SCAN_INTERVAL, _DEFAULT_SCAN_MS):
            self.declare({_SCAN_INTERVAL: interval_ms})

    def set_server_scan_intervals(self, intervals_ms: Mapping[str, int | None]) -> None:
        """Of these servers; None: that of the domain."""
        before = self.declaration.get(_SERVER_SCAN_INTERVALS, {})
        after = {server: ms for server, ms in {**before, **intervals_ms}.items() if ms is not None}
        if after != before:
            self.declare({_SERVER_SCAN_INTERVALS: after})

    def declared_now(self) -> dict[str, Any]:
        """What the domain's file says, which other processes may have changed. Raises DomainError."""
        data = self.storage.get(DOMAIN_FILE)
        if data is None:
            raise self._unreachable()
        return dict(json.loads(data))

    def declare(self, values: Mapping[str, Any]) -> None:
        """Durable on return."""
        self.declaration = {**self.declaration, **values}
        self.storage.put(DOMAIN_FILE, json.dumps(self.declaration, indent=1).encode())
        self.storage.sync([DOMAIN_FILE])

    def check_present(self) -> None:
        """Raises DomainError when the root cannot be reached now: then an absent file proves nothing."""
        if not self.storage.exists(DOMAIN_FILE):
            raise self._unreachable()

    def _unreachable(self) -> DomainError:
        return DomainError(
            f"{self.root} cannot be reached: its domain file is missing. Bring the directory or its mount back, and everything "
            "continues; `jmsq apply` would make a new, empty domain"
        )

    def mark(self, *, upgrading: bool) -> None:
        """Write the current format version, which earlier versions of spark-jms refuse; while `upgrading`, so do we."""
        kept = {key: value for key, value in self.declaration.items() if key != "upgrading"}
        self.declaration = {**kept, "formatVersion": FORMAT_VERSION, **({"upgrading": True} if upgrading else {})}
        self.declare({})
        self.needs_upgrade = upgrading

    @property
    def store_uri(self) -> str:
        """The URI of the store with the record sets."""
        return store_uri(self.root, self.store, self.id)

    def server_uri(self, server: str) -> str:
        """The URI of a server's store. Raises DomainError when there is no such server."""
        store = self.store if server == HOME else self.servers.entry(server).store
        return server_store_uri(self.root, server, store, self.id)

    def owner(self, server: str, store: str = "") -> StoreOwner:
        """Whose the store of a server has to be. `store`: of one that is not declared yet, as the module file has it."""
        uri = server_store_uri(self.root, server, store, self.id) if store else self.server_uri(server)
        return StoreOwner(uri, self.root, self.id, server, str(self.declaration.get(RESTORED, "")), self._table_ids)

    def _table_ids(self) -> Iterator[str]:
        for name in self.destinations():
            with suppress(JmsqError):  # a damaged table proves nothing
                yield self.log(name).refresh().table_id

    def destinations(self) -> list[str]:
        """Without those that are being dropped. Raises DomainError when the root or the register is missing."""
        return [name for name in self.registered() if (e := self.register.entry(name)) and e.dropping is None]

    def registered(self) -> list[str]:
        """With those that are being dropped. Raises DomainError when the root or the register is missing."""
        names = self.register.names()
        if not names:
            self._check_register()
        return names

    def _check_register(self) -> None:
        """A register without a name may have none, or be lost."""
        self.check_present()
        if self.has_tables() and not self.register.names():
            raise DomainError(
                f"{self.root}/{REGISTER} names no destination, but there are tables of destinations: the folder was lost, or the "
                f"first `jmsq apply` was interrupted. Restore the folder from a copy, or run `jmsq apply --root {self.root} "
                "MODULE.yaml`, which enters the tables that have the names of its destinations"
            )

    def has_tables(self) -> bool:
        """It has destinations, or had some when its register was lost."""
        return bool(self.register.names()) or any(
            "/_delta_log/" in file.path for file in self.storage.list(ACKNOWLEDGEMENTS)
        )

    def log(self, destination: str) -> DeltaLog:
        """Raises InvalidDestinationError, which lists the existing destinations, DestinationDroppedError, or
        TemporaryDestinationError for a temporary destination of another context."""
        if is_temporary(destination):
            return self.temporary.own_log(destination)
        return self._shared_log(self._entry(destination).path, destination)

    def _log_for_sending(self, destination: str) -> DeltaLog:
        """Also of the temporary destination of another context."""
        return self.temporary.existing_log(destination) if is_temporary(destination) else self.log(destination)

    def table_path(self, destination: str) -> str:
        """Where the table of a destination that is not temporary lies, below the root. Raises InvalidDestinationError."""
        return self._entry(destination).path

    def acknowledgements(self, destination: str) -> DeltaLog:
        """Raises InvalidDestinationError."""
        if is_temporary(destination):
            return self.temporary.acknowledgements(destination)
        return self._shared_log(self._entry(destination).acknowledgements, f"acknowledgements of {destination}")

    def life_cycle(self, destination: str) -> DeltaLog | None:
        """The table of the life-cycle log; None: the destination never logged. Raises InvalidDestinationError."""
        if is_temporary(destination):
            return None
        path = self._entry(destination).life_cycle
        if next(iter(self.storage.list(path)), None) is None:
            return None
        return self._shared_log(path, f"life cycle of {destination}")

    def usage_of(self, destination: str) -> MessageUsage:
        """The messages of a destination that are not finished, and their bytes, at most, a moment late. Opens no store. Exact where
        the destination `measures_usage`; elsewhere all messages in its table count. Raises InvalidDestinationError."""
        return self.usages.at(self.log(destination).refresh())

    def usage_of_server(self, server: str) -> MessageUsage:
        """The same of all members on a server, those of temporary destinations too. A destination that cannot be read counts as
        empty: its own senders get the error."""
        found = MessageUsage()
        for name in self._with_temporary() if server == HOME else self.destinations():
            try:
                snapshot = self._log_for_sending(name).refresh()
                members = snapshot.destination.members_on(server)
                found += self.usages.at(snapshot, members) if members else MessageUsage()
            except InvalidDestinationError:  # it is dropped
                continue
            except (JmsqError, OSError) as error:
                log.info("server %s: what %s holds there is not counted: %s", server, name, error)
        return found

    def _with_temporary(self) -> list[str]:
        """The names of all destinations."""
        return [*self.destinations(), *(entry.name for entry in self.temporary.entries())]

    def usages_of_members(self, destination: str) -> dict[int, MessageUsage]:
        """As `usage_of`, by member."""
        snapshot = self._log_for_sending(destination).refresh()
        found = self.usages.by_member(self.usages.read(snapshot.table_id), snapshot)
        return {member: found.get(member, MessageUsage()) for member in snapshot.destination.member_ids}

    def _entry(self, destination: str) -> RegisterEntry:
        entry = self.register.entry(destination)
        if entry is None:
            there = ", ".join(self.destinations()) or "none"
            raise InvalidDestinationError(
                f"there is no destination {destination!r} in {self.root} (there are: {there}): add it to the module file "
                f"and run `jmsq apply --root {self.root} MODULE.yaml`"
            )
        if entry.dropping is not None:
            raise DestinationDroppedError(
                f"destination {destination} in {self.root} was dropped, and its state and files are being deleted: if no "
                f"`jmsq drop` runs, start `jmsq drop {destination}` again; after that the name is free"
            )
        return entry

    def forget(self, destination: str) -> None:
        """The next `log`, `acknowledgements` and `life_cycle` of this name start from the files."""
        with self._lock:
            for path, name in list(self._logs):
                if name in (destination, f"acknowledgements of {destination}", f"life cycle of {destination}"):
                    del self._logs[path, name]

    def _admit(self, servers: Iterable[str]) -> None:
        """ResourceAllocationException while the store of one of these servers is above yellow, as far as the server can be read."""
        from spark_jms.store.kinds.opening import admission_of

        for server in servers:
            if server not in self._admissions:
                with suppress(OSError):  # its entry cannot be read now: a send does not need it
                    self._admissions[server] = admission_of(self.server_uri(server))
            if admit := self._admissions.get(server):
                admit()

    def _shared_log(self, path: str, name: str) -> DeltaLog:
        with self._lock:
            if (path, name) not in self._logs:
                self._logs[path, name] = DeltaLog(
                    self.storage.child(path), name, self._admit, self.quotas, self.check_present
                )
            return self._logs[path, name]


def create_domain(root: str, store: str | None = None) -> Domain:
    """Open the domain at `root`, and create it if there is none. Raises DomainError when the store does not fit. Until the domain has
    a destination its store can be another one, and has to answer.

    The file store serves one host: a root on an object store needs a store that serves several hosts (jdbc, replicated).
    """
    storage = open_storage(root)
    wanted = store or DEFAULT_STORE
    if storage.get(DOMAIN_FILE) is None:
        check_place(storage, wanted)
        data = {"formatVersion": FORMAT_VERSION, "id": uuid.uuid4().hex, "store": wanted, "createdMs": now_ms()}
        storage.create(DOMAIN_FILE, json.dumps(data, indent=1).encode())
        storage.sync([DOMAIN_FILE])
    domain = Domain(root)
    if not domain.has_tables():
        return _with_working_store(domain, store)
    if store and domain.store != store:
        wanted = store_uri(domain.root, store, domain.id)
        check_same(domain.store_uri, wanted, domain.root, "leave `store:` out, or write it as it was")
        return _with_store(domain, store)
    return domain


def _with_store(domain: Domain, store: str) -> Domain:
    """Durable on return. Processes that have the store open keep its options until they open it again."""
    domain.declare({"store": store})
    return Domain(domain.root)


def _with_working_store(domain: Domain, store: str | None) -> Domain:
    """Of a domain without destinations, whose store nothing uses yet."""
    from spark_jms.store import StoreError, open_store

    if store and domain.store != store:
        check_place(domain.storage, store)
        domain = _with_store(domain, store)
    try:
        with open_store(domain.store_uri, opening=StoreOpening(COMMAND_LIMIT_S)) as opened:
            ensure_owner(domain.owner(HOME), opened, new=True)
    except StoreError as error:
        raise DomainError(
            f"{domain.root} has no destinations yet, and its store {shown_uri(domain.store)!r} cannot be used "
            f"({type(error).__name__}: {error}): make it work, or name another one with `store:` in the module file, then apply again"
        ) from error
    return domain


def declare_servers(domain: Domain, servers: Iterable[ServerSettings]) -> None:
    """Enter servers, and create the store of each new one. Raises DomainError when one is known with another store, or shares
    that of another, and StoreError when a new store cannot be created, or belongs to another server or domain."""
    from spark_jms.store.kinds.opening import open_store

    known = set(domain.servers.names())
    for server in servers:
        uri, before = server_store_uri(domain.root, server.name, server.store, domain.id), ""
        if server.name not in known:
            shared = [other for other in (HOME, *known) if same_store(domain.server_uri(other), uri)]
            if shared:
                raise DomainError(
                    f"server {server.name} has the store of server {shared[0]}: each server has a store of its own"
                )
            check_place(domain.storage, server.store)
            with open_store(uri, opening=StoreOpening(COMMAND_LIMIT_S)) as opened:
                ensure_owner(domain.owner(server.name, server.store), opened, new=True)
            known.add(server.name)
        else:
            before = domain.servers.entry(server.name).store
            advice = f"take another name for a server with another store, or write that of {server.name} as it was"
            check_same(domain.server_uri(server.name), uri, f"server {server.name} of {domain.root}", advice)
        entry = ServerEntry(server.store, server.lease_ms, thresholds_of(server), compression=server.compression)
        domain.servers.add(server.name, entry, before)


def declare_home(domain: Domain, server: ServerSettings) -> None:
    """How HOME slows senders down and compresses bodies. Senders follow within a minute."""
    known, thresholds = home_entry(domain.declaration), thresholds_of(server)
    if (known.thresholds, known.compression) != (thresholds, server.compression):
        domain.declare(home_declaration(thresholds, server.compression))


# -- the register ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegisterEntry:
    """Where the two tables of a destination lie, below the root. `dropping` is the id of its table while `jmsq drop`
    deletes everything that belongs to it."""

    path: str
    acknowledgements: str
    dropping: str | None = None

    @property
    def life_cycle(self) -> str:
        """Where its life-cycle table lies, if it has one: named as the acknowledgement table is."""
        return f"{LIFE_CYCLES}/{PurePosixPath(self.acknowledgements).name}"

    @staticmethod
    def by_name(name: str) -> RegisterEntry:
        """Of a destination whose tables have its name: an empty file says the same."""
        return RegisterEntry(name, f"{ACKNOWLEDGEMENTS}/{name}")


class Register:
    """Which destinations there are, and where their tables lie: one small file for each destination. It names the paths, so a
    destination that is renamed moves no data, and one that is created while its name's path is occupied gets a path of its own.
    Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._files = NamedFiles(storage, REGISTER)

    def names(self) -> list[str]:
        """Those that are being dropped too."""
        return self._files.names()

    def entry(self, name: str) -> RegisterEntry | None:
        """None when there is no such destination. Raises DomainError when its entry is damaged."""
        data = self._files.get(name)
        if data is None:
            return None
        if not data.strip():
            return RegisterEntry.by_name(name)
        try:
            return _from_bytes(data)
        except (ValueError, TypeError) as error:
            raise DomainError(
                f"{self._files.shown(name)} is damaged ({error}): restore it from a copy, or write into it "
                f"{json.dumps(asdict(RegisterEntry.by_name(name)))} with the paths of the two tables below the root"
            ) from error

    def add(self, name: str, entry: RegisterEntry) -> bool:
        """False when there is such a destination already. Of two processes that enter the same tables both may get True.
        Durable on return."""
        return self._files.create(name, _to_bytes(entry))

    def replace(self, name: str, entry: RegisterEntry) -> None:
        """Durable on return."""
        self._files.put(name, _to_bytes(entry))

    def remove(self, name: str) -> None:
        self._files.delete(name)

    def paths(self) -> set[str]:
        """The paths of all tables that have a name."""
        entries = [entry for name in self.names() if (entry := self.entry(name)) is not None]
        return {path for entry in entries for path in (entry.path, entry.acknowledgements, entry.life_cycle)}


def _to_bytes(entry: RegisterEntry) -> bytes:
    return json.dumps({key: value for key, value in asdict(entry).items() if value is not None}, indent=1).encode()


@lru_cache
def _from_bytes(data: bytes) -> RegisterEntry:
    """An entry is read with every use of its destination, and hardly ever changes."""
    entry = RegisterEntry(**json.loads(data))
    if not all(map(_is_below_the_root, (entry.path, entry.acknowledgements))):
        raise ValueError("a path leads out of the root")
    return entry


def _is_below_the_root(path: str) -> bool:
    return bool(path) and not path.startswith("/") and ".." not in PurePosixPath(path).parts


# -- connection factories ----------------------------------------------------------------------------------------------


class ConnectionFactories:
    """The connection factories of a domain: one small file for each, which `apply` writes. A connection reads its own once, when it
    is opened. Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._root, self._files = storage.uri, NamedFiles(storage, CONNECTION_FACTORIES)

    def names(self) -> list[str]:
        return self._files.names()

    def get(self, name: str) -> ConnectionFactory:
        """Raises DomainError, which lists the connection factories."""
        data = self._files.get(name)
        if data is None:
            raise DomainError(
                f"{self._root} has no connection factory {name!r} (there are: {', '.join(self.names()) or 'none'}): add it "
                "under `connectionFactories:` in the module file"
            )
        try:
            return from_stored(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError, OptionError) as error:
            raise DomainError(
                f"{self._files.shown(name)} is damaged, or a later spark-jms wrote it ({error!r}): apply "
                "the module file again, or install that version"
            ) from error

    def put(self, name: str, factory: ConnectionFactory) -> None:
        """Durable on return."""
        self._files.put(name, json.dumps(to_stored(factory), indent=1).encode())
