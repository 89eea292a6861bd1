"""After a loss of power the first process on a host repairs the domain, before anything is sent or received.

The host was booted again since it wrote last, so what it had not forced to the disk may be lost. The process takes each table back
to what is left of it (both in log/upkeep/power_loss.py), and asks the stores, which force what they acknowledge, for the numbers
of messages that they know: no message gets one of these again. Of a destination on a server whose store does not answer, and that
therefore cannot be asked, the next messages get numbers `UNKNOWN` higher. Consumers pass lost messages with a warning.

Every program that sends, receives or changes something opens its domain here, so that the repair comes first.

Features: C5 (docs/FEATURES.md)
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping

from spark_jms.claims.servers.stores import addressed, open_stores, read_state
from spark_jms.core.destinations.servers import HOME
from spark_jms.errors import DestinationDroppedError, DomainError, JmsqError, RecordSetError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.temporary import OWNERS
from spark_jms.log.limits.quota_ledger import LEDGERS
from spark_jms.log.tables.checkpoints import LOG
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import FileInfo, LocalStorage
from spark_jms.log.upkeep.power_loss import LOST, Boots, Loss, commit_loss, unreadable_log_files
from spark_jms.settings.environment import ROOT_VARIABLE
from spark_jms.store import Store, StoreError

log = logging.getLogger("spark_jms")
UNKNOWN = 10**9  # messages of one member that are sent before an operating system has written any of them
_STORE_LIMIT_S = 5.0


def open_given_domain(root: str | os.PathLike[str] | None) -> Domain:
    """What a program connects to: the domain at `root`, or at the environment variable JMSQ_ROOT. Raises as `open_domain`."""
    where = os.fspath(root) if root is not None else os.environ.get(ROOT_VARIABLE, "")
    if not where:
        raise DomainError(f"no root: give connect(root) the domain's directory or URL, or set {ROOT_VARIABLE}")
    return open_domain(where)


def open_domain(root: str) -> Domain:
    """Raises what `Domain` raises, DomainError when a repair by another process does not end in 30 s, and OSError."""
    return ready(Domain(root))


def ready(domain: Domain) -> Domain:
    """After a loss of power it is repaired. A process that may only read leaves that to others."""
    if isinstance(domain.storage, LocalStorage):
        boots = Boots(domain.storage)
        try:
            if boots.earlier() is None:
                boots.note()
            else:
                recover(domain, domain.storage, boots)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
    return domain


def recover(domain: Domain, storage: LocalStorage, boots: Boots) -> None:
    """This host was booted again since it wrote to the domain: one process repairs it, and the others wait. Raises DomainError when
    that does not end in 30 s, and OSError."""
    with boots.alone():
        earlier = boots.earlier()
        if earlier is not None:
            log.warning("%s: this host was booted again since it wrote last: looking for what was lost", domain.root)
            Recovery(domain, storage, f"{LOST}/{earlier}").run()
            boots.note()


def recover_now(domain: Domain) -> bool:
    """The same, of a host that has another name since, or tells no boot. False: the root is no directory, and an object store loses
    nothing that it has acknowledged. Stop all programs of the domain before."""
    if not isinstance(domain.storage, LocalStorage):
        return False
    Recovery(domain, domain.storage, f"{LOST}/{time.strftime('%Y-%m-%dT%H-%M-%SZ', time.gmtime())}").run()
    return True


class Recovery:
    """The repair of a domain. `aside`: the folder for what cannot be read."""

    def __init__(self, domain: Domain, storage: LocalStorage, aside: str) -> None:
        self._domain, self._storage, self._aside = domain, storage, aside

    def run(self) -> None:
        """May be repeated."""
        self._small_files()
        tables = self._tables()
        for path in tables:
            for file in unreadable_log_files(self._storage.child(path)):
                self._set_aside(f"{path}/{file}")
        named = self._named()
        with open_stores(self._domain, _STORE_LIMIT_S) as store:
            for path in tables:
                self._repair(named.get(path, path), path, store if path in named else None)

    def _tables(self) -> list[str]:
        marker = f"/{LOG}/"
        kept = (f"{LOST}/", "_jmsq/store/", "_jmsq/stores/")
        found = (info.path for info in self._storage.list("") if marker in info.path and not info.path.startswith(kept))
        return sorted({path.partition(marker)[0] for path in found})

    def _named(self) -> dict[str, str]:
        """Where the messages of each destination are -> its name."""
        entries = {name: self._domain.register.entry(name) for name in self._domain.register.names()}
        owned = [entry.name for entry in self._domain.temporary.entries()]
        return {entry.path: name for name, entry in entries.items() if entry is not None} | {
            self._domain.temporary.messages_path(name): name for name in owned
        }

    def _repair(self, name: str, path: str, store: Store | None) -> None:
        """A table that cannot be repaired holds up no other: its users get the error."""
        table = DeltaLog(self._storage.child(path), name)
        try:
            loss = commit_loss(table, lambda snapshot: {} if store is None else known_numbers(store, snapshot))
        except DestinationDroppedError:
            return
        except JmsqError as error:
            log.error("%s cannot be repaired: %s", name, error)
            return
        if loss is not None:
            self._tell(name, path, loss)

    def _tell(self, name: str, path: str, loss: Loss) -> None:
        for file in loss.files:
            self._set_aside(f"{path}/{file}")
        for member, messages in loss.messages.items():
            log.warning("%s, member %d: the loss of power has taken messages (sequence %s)", name, member, messages)

    def _small_files(self) -> None:
        """Those of a quota's ledger, which begins again, and the owners of temporary destinations."""
        ledgers = {info.path.split("/")[2] for info in self._damaged(LEDGERS)}
        for ledger in ledgers:
            log.warning("the ledger of quota %s begins again", ledger)
            self._storage.delete_all(f"{LEDGERS}/{ledger}")
        for info in list(self._damaged(OWNERS)):
            self._set_aside(info.path)

    def _damaged(self, folder: str) -> Iterator[FileInfo]:
        for info in self._storage.list(folder):
            try:
                json.loads(self._storage.get(info.path) or b"")
            except ValueError:
                yield info

    def _set_aside(self, path: str) -> None:
        log.warning("%s/%s was not written whole: it is set aside in %s", self._domain.root, path, self._aside)
        self._storage.rename(path, f"{self._aside}/{path}")


def known_numbers(store: Store, snapshot: Snapshot) -> Mapping[int, int]:
    """member -> the last number that any subscription knows; for all members higher by UNKNOWN when a server cannot be asked."""
    declared, known = snapshot.destination, dict[int, int]()
    servers = {HOME, *declared.servers_in_use()}
    silent = [server for server in sorted(servers) if not _ask(store, server, snapshot, known)]
    if not silent:
        return known
    members = snapshot.numbered_members() | set(declared.member_ids)
    log.warning(
        "%s: the store of %s does not answer, so it cannot be asked for the numbers that it knows: the next messages get numbers that "
        "are higher by %d",
        declared.name,
        ", ".join(silent),
        UNKNOWN,
    )
    return {m: max(known.get(m, 0), snapshot.last_sequence(m)) + UNKNOWN for m in members}


def _ask(store: Store, server: str, snapshot: Snapshot, known: dict[int, int]) -> bool:
    """False: the server's store cannot tell."""
    try:
        for name in store.names(addressed(server, f"members/{snapshot.table_id}/")):
            member = int(name.rpartition("/")[2])
            known[member] = max(known.get(member, 0), read_state(store, name).newest_known)
    except (StoreError, RecordSetError) as error:
        log.warning("%s: %s", server, error)
        return False
    return True
