"""A domain: one root with its destinations, its store and its format version (C3, C14, C16).

ROOT/<destination>/                          the Delta table of a destination
ROOT/_jmsq/domain.json                       format version, id, store
ROOT/_jmsq/destinations/<destination>        the register of names
ROOT/_jmsq/acknowledgements/<destination>/   the Delta table of its acknowledgements
ROOT/_jmsq/store/                            the default file store
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import attrs
import pyarrow as pa

from spark_jms.core.destination import FORMAT_VERSION, Destination, Subscription, check_name
from spark_jms.core.message import ORDINAL, PARTITION_SCHEMA, STORED_SCHEMA
from spark_jms.errors import DomainError, FormatVersionError, InvalidDestinationError, MemberRemovalError
from spark_jms.log.committer import Decision, commit
from spark_jms.log.delta_log import DeltaLog, commit_path
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import LocalStorage, now_ms, open_storage

_DOMAIN_FILE = "_jmsq/domain.json"
_REGISTER = "_jmsq/destinations"
ACKNOWLEDGEMENTS = "_jmsq/acknowledgements"
DEFAULT_STORE = "file"
_JDBC = ("jdbc:", "sqlite:", "postgresql:")
_ONE_HOST = ("file:", "jdbc:sqlite:", "sqlite:")
ACKNOWLEDGEMENT_SCHEMA = pa.schema(
    [
        (ORDINAL, pa.int64()),
        ("subscription", pa.string()),
        ("consumer", pa.string()),
        ("claim", pa.string()),
        ("epoch", pa.int64()),
        ("acknowledged_ms", pa.int64()),
        ("messages", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("ranges", pa.string()),
    ]
)


@dataclass(frozen=True)
class Change:
    """What `apply` did to one destination: created, changed, unchanged or left (not in the module)."""

    destination: str
    what: str
    detail: str = ""


class Domain:
    """An opened root. Thread-safe; logs are shared by all who ask for the same destination."""

    def __init__(self, root: str) -> None:
        self.storage = open_storage(root)
        self.root = self.storage.uri
        self._lock = threading.Lock()
        self._logs: dict[str, DeltaLog] = {}
        data = self.storage.get(_DOMAIN_FILE)
        if data is None:
            raise DomainError(
                f"{self.root} is not a spark-jms domain: create it with `jmsq apply --root {self.root} MODULE.yaml`"
            )
        try:
            declared: dict[str, Any] = json.loads(data)
            version, self.id, self._store = int(declared["formatVersion"]), str(declared["id"]), str(declared["store"])
        except (ValueError, KeyError, TypeError) as error:
            raise DomainError(f"{self.root}/{_DOMAIN_FILE} is damaged ({error!r}): restore it from a copy") from error
        if version > FORMAT_VERSION:
            raise FormatVersionError(
                f"{self.root} has format version {version}, this spark-jms reads up to {FORMAT_VERSION}: install a later spark-jms"
            )

    @property
    def store_uri(self) -> str:
        """Where the record sets are: `file` means beside the tables. A store in a database is told whose it must be, so
        that no two domains share one (S3)."""
        if self._store == DEFAULT_STORE:
            return f"{self.root}/_jmsq/store"
        if self._store.startswith(_JDBC):
            from spark_jms.store.jdbc.settings import with_engine

            return with_engine(self._store, self.id)
        return self._store

    def destinations(self) -> list[str]:
        names = (info.path.rsplit("/", 1)[1] for info in self.storage.list(_REGISTER))
        return sorted(name for name in names if not name.startswith("."))  # a dot: being written, or left by a crash

    def log(self, destination: str) -> DeltaLog:
        """Raises InvalidDestinationError, which lists the destinations there are."""
        check_name("destination", destination)
        if not self.storage.exists(f"{_REGISTER}/{destination}"):
            there = ", ".join(self.destinations()) or "none"
            raise InvalidDestinationError(
                f"there is no destination {destination!r} in {self.root} (there are: {there}): add it to the module file "
                f"and run `jmsq apply --root {self.root} MODULE.yaml`"
            )
        return self._shared_log(destination, destination)

    def acknowledgements(self, destination: str) -> DeltaLog:
        return self._shared_log(f"{ACKNOWLEDGEMENTS}/{destination}", f"acknowledgements of {destination}")

    def _shared_log(self, path: str, name: str) -> DeltaLog:
        with self._lock:
            if path not in self._logs:
                self._logs[path] = DeltaLog(self.storage.child(path), name)
            return self._logs[path]


def create_domain(root: str, store: str | None = None) -> Domain:
    """Open the domain at `root`, making it if there is none. Raises DomainError when the store does not fit.

    The file store serves one host: a root on an object store needs a store that serves several (jdbc or replicated).
    """
    storage = open_storage(root)
    wanted = store or DEFAULT_STORE
    if storage.get(_DOMAIN_FILE) is None:
        if not isinstance(storage, LocalStorage) and (
            wanted == DEFAULT_STORE or wanted.startswith(_ONE_HOST) or "://" not in wanted
        ):
            raise DomainError(
                f"the root {storage.uri} is an object store, which several hosts can use, but the store {wanted!r} serves "
                "one host: name one that serves them all with `store:` in the module file"
            )
        data = {"formatVersion": FORMAT_VERSION, "id": uuid.uuid4().hex, "store": wanted, "createdMs": now_ms()}
        storage.create(_DOMAIN_FILE, json.dumps(data, indent=1).encode())
        storage.sync([_DOMAIN_FILE])
    domain = Domain(root)
    if store and domain._store != store:
        raise DomainError(
            f"{domain.root} keeps its state in the store {domain._store!r}; it cannot be changed to {store!r} by apply"
        )
    return domain


def apply_destinations(
    domain: Domain, declared: Sequence[Destination], empty: Callable[[str, int], bool]
) -> list[Change]:
    """Create and change destinations as declared; running jobs see it at their next commit or plan.

    `empty(destination, member)` says that everybody is done with a member's messages; without it members are not
    removed (MemberRemovalError). Destinations that are not declared stay as they are.
    """
    there = set(domain.destinations())
    changes = []
    for wanted in declared:
        if wanted.name not in there:
            _create(domain, wanted)
            changes.append(Change(wanted.name, "created", f"{wanted.kind}, {wanted.members} member(s)"))
        else:
            changes.append(_change(domain, wanted, empty))
    names = {d.name for d in declared}
    return changes + [Change(name, "left", "not in the module") for name in sorted(there - names)]


def _create(domain: Domain, destination: Destination) -> None:
    _create_table(domain, destination.name, STORED_SCHEMA, destination)
    acknowledgements = attrs.evolve(
        destination, kind="distributed-queue", routing="round-robin", weights=(), subscriptions={}, durability="process"
    )
    _create_table(domain, f"{ACKNOWLEDGEMENTS}/{destination.name}", ACKNOWLEDGEMENT_SCHEMA, acknowledgements)
    domain.storage.create(f"{_REGISTER}/{destination.name}", b"")
    domain.storage.sync([f"{_REGISTER}/{destination.name}", f"{destination.name}/{commit_path(0)}"])


def _create_table(domain: Domain, path: str, schema: pa.Schema, destination: Destination) -> None:
    from deltalake import DeltaTable

    storage = domain.storage.child(path)
    if isinstance(storage, LocalStorage):
        storage.root.mkdir(parents=True, exist_ok=True)
    configuration = {
        "delta.logRetentionDuration": "interval 1 days",
        **_removed_retention(destination),
        "delta.enableExpiredLogCleanup": "false",  # housekeeping does it, when every reader is past
        **destination.to_configuration(),
    }
    DeltaTable.create(
        storage.uri,
        pa.schema([*schema, *PARTITION_SCHEMA]),
        mode="ignore",
        partition_by=PARTITION_SCHEMA.names,
        name=destination.name,
        configuration=configuration,
        raise_if_key_not_exists=False,
    )


def _change(domain: Domain, wanted: Destination, empty: Callable[[str, int], bool]) -> Change:
    log = domain.log(wanted.name)
    detail = ""

    def decide(snapshot: Snapshot) -> Decision | None:
        nonlocal detail
        now = snapshot.destination
        if now.same_declaration(wanted):
            return None
        if now.kind.removeprefix("distributed-") != wanted.kind.removeprefix("distributed-"):
            raise InvalidDestinationError(
                f"destination {wanted.name} is a {now.kind} and cannot become a {wanted.kind}: "
                "declare it under another name"
            )
        for member in range(wanted.members, now.members):
            if snapshot.last_sequence(member) and not empty(wanted.name, member):
                raise MemberRemovalError(
                    f"destination {wanted.name} has {now.members} members and the module says {wanted.members}, but member "
                    f"{member} still holds messages: consume them, or `jmsq purge --member {member}`, then apply again"
                )
        slots = now.slot_members or now.members
        if wanted.members < slots:
            raise MemberRemovalError(
                f"destination {wanted.name} was made with {slots} members, to which its units of order are bound: it can "
                f"grow beyond {slots} and shrink back to {slots}, but not to {wanted.members}"
            )
        detail = _difference(now, wanted)
        return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, now.changed_to(wanted))])

    version = commit(log, decide)
    return Change(wanted.name, "unchanged" if version is None else "changed", detail)


def _difference(old: Destination, new: Destination) -> str:
    fields = (
        "kind",
        "members",
        "routing",
        "weights",
        "max_message_bytes",
        "retention_ms",
        "in_doubt_timeout_ms",
        "file_grace_ms",
        "acknowledgement_retention_ms",
        "durability",
    )
    return ", ".join(
        f"{f}: {getattr(old, f)} -> {getattr(new, f)}" for f in fields if getattr(old, f) != getattr(new, f)
    )


def metadata_action(snapshot: Snapshot, destination: Destination) -> dict[str, dict[str, Any]]:
    """The metaData action that makes `destination` the table's declaration."""
    kept: dict[str, str] = dict(snapshot.metadata.get("configuration") or {})
    changed = {**kept, **_removed_retention(destination), **destination.to_configuration()}
    return {"metaData": {**snapshot.metadata, "configuration": changed}}


def _removed_retention(destination: Destination) -> dict[str, str]:
    """How long a checkpoint remembers what was removed: clean-up needs it as long as the grace lasts."""
    return {"delta.deletedFileRetentionDuration": f"interval {max(destination.file_grace_ms // 1000, 1)} seconds"}


def create_subscription(
    log: DeltaLog, name: str, floors: Callable[[Snapshot], dict[int, int]], selector: str | None = None
) -> Subscription:
    """The durable subscription `name`, made if it is new: a commit, so that a purge either sees it or comes before it."""
    check_name("subscription", name)

    def decide(snapshot: Snapshot) -> Decision | None:
        now = snapshot.destination
        if name in now.subscriptions:
            return None
        new = Subscription(name, floors(snapshot), now_ms(), selector)
        after = attrs.evolve(now, subscriptions={**now.subscriptions, name: new})
        return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])

    commit(log, decide)
    return log.snapshot.destination.subscriptions[name]


def drop_subscription(log: DeltaLog, name: str) -> bool:
    """False when there is no such subscription."""

    def decide(snapshot: Snapshot) -> Decision | None:
        now = snapshot.destination
        if name not in now.subscriptions:
            return None
        after = attrs.evolve(now, subscriptions={n: s for n, s in now.subscriptions.items() if n != name})
        return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])

    return commit(log, decide) is not None
