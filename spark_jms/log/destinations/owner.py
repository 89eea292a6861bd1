"""Which domain a store serves: a note in the store, which every opening compares.

The record set `domain` of a store holds two objects:

    id      the id of the domain; in the store of a server, `-SERVER` follows
    copy    of a domain that was restored from a backup: which restored copy, because the original has the same id

A store without a note gets one: a new one with `apply`, one of an earlier release at its first opening by this one, unless it has
positions and none of them is of a table of this domain. Earlier releases write the note only into a domain's own store, with its
first `apply`, and compare the id only there and before transactions; so beside a process of such a release the note protects the
processes of this one. A copy of a root made by other means than `jmsq restore` has the id of its original, and is not told apart.

A store in memory has no note: it serves the domains of one test after the other.

Features: C18, C19, R17, S3, S9 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from spark_jms.core.destinations.servers import HOME
from spark_jms.core.records.stored_form import DOMAIN_RECORD, MEMBERS_PREFIX
from spark_jms.store import (
    Delete,
    ForeignOwnerError,
    Put,
    RecordCorruptError,
    Store,
    StoreInUseError,
    StoreWriteError,
    open_store,
)
from spark_jms.store.contract import COMMAND_LIMIT_S, StoreOpening
from spark_jms.store.errors import ResourceAllocationException, shown_uri
from spark_jms.store.kinds.opening import report_refusal, scheme_of
from spark_jms.store.ledger.store import LedgerStore

log = logging.getLogger("spark_jms")
_ID, _COPY = "id", "copy"
_NOTE_TIMEOUT_MS = 15_000  # longer than the session of a process that was stopped while it wrote the note


@dataclass(frozen=True)
class StoreOwner:
    """Whose a store has to be: a server's of a domain. `copy`: which restored copy the domain is, or "". `table_ids` gives those of
    its destinations."""

    uri: str
    root: str
    domain_id: str
    server: str = HOME
    copy: str = ""
    table_ids: Callable[[], Iterable[str]] = field(default=tuple, compare=False)

    @property
    def note(self) -> dict[str, bytes]:
        id = self.domain_id if self.server == HOME else f"{self.domain_id}-{self.server}"
        return {_ID: id.encode(), **({_COPY: self.copy.encode()} if self.copy else {})}

    def refuse(self, found: str) -> ForeignOwnerError:
        """For the caller to raise; what keeps the store is told, too."""
        error = ForeignOwnerError(shown_uri(self.uri), found, f"{_shown(self.note)} ({self.root})")
        report_refusal(self.uri, error.detail())
        return error


def owned(owner: StoreOwner, store: Store) -> Store:
    """The store, which is open, once it is known to be the owner's. Else closes it and raises ForeignOwnerError."""
    try:
        ensure_owner(owner, store)
    except BaseException:
        store.close()
        raise
    return store


def ensure_owner(owner: StoreOwner, store: Store, *, new: bool = False) -> None:
    """Raises ForeignOwnerError when the store is not the owner's. A store without a note gets one. `new`: the owner cannot have used
    the store yet, so positions in it are another domain's; and the note has to be written. A store that this process has open for
    the same owner is not asked again: it may be away now."""
    learned = store.learned if isinstance(store, LedgerStore) else set()
    key = frozenset(owner.note.items())
    if scheme_of(owner.uri) == "memory" or key in learned:
        return
    try:
        found: Mapping[str, bytes] = store.peek(DOMAIN_RECORD)
        if found.items() < owner.note.items():
            if not found:
                _check_positions(owner, store, new)
            found = _complete(owner, store)
    except RecordCorruptError as error:  # one damaged record set does not make the others useless
        log.warning("whether the store of server %s is another domain's cannot be read: %s", owner.server, error)
        return
    except (StoreWriteError, ResourceAllocationException) as error:
        if new:
            raise
        log.warning("the store of server %s does not name its domain yet: %s", owner.server, error)
        return
    if found != owner.note:
        raise owner.refuse(_shown(found))
    learned.add(key)


def own_all(owners: Iterable[StoreOwner]) -> None:
    """Of a domain that was restored just now."""
    for owner in owners:
        with open_store(owner.uri, create=False, opening=StoreOpening(COMMAND_LIMIT_S)) as store:
            ensure_owner(owner, store)


def take_over(owner: StoreOwner, *, dry_run: bool = False) -> str:
    """Note in the store that it is the owner's: for a store whose domain does not exist any more. Returns who had it; "" when the
    note was right. Raises StoreInUseError while a session is connected to it, or when it is that of another copy of this domain,
    whose tables have the same ids."""
    with open_store(owner.uri, create=False, opening=StoreOpening(COMMAND_LIMIT_S)) as store:
        found = store.peek(DOMAIN_RECORD)
        if found == owner.note:
            return ""
        if found.get(_ID) == owner.note[_ID] and _COPY in found:
            raise StoreInUseError(
                f"{shown_uri(owner.uri)} has the positions of {_shown(found)}, which would hide messages of {owner.root}"
            )
        if sessions := store.sessions():
            users = ", ".join(info.label or info.session_id for info in sessions.values())
            raise StoreInUseError(f"{shown_uri(owner.uri)} is used by {users}")
        if not dry_run:
            with store.connect(f"jmsq store own {owner.root}") as session:
                handle = session.open(DOMAIN_RECORD, timeout_ms=_NOTE_TIMEOUT_MS)
                gone = [Delete(key) for key in handle.objects() if key not in owner.note]
                handle.commit([*gone, *(Put(key, value) for key, value in owner.note.items())])
        return _shown(found) if found else "a domain that it does not name"


def without_copy(objects: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    """The note as a backup has it: the copy that is restored is another one."""
    return tuple((key, value) for key, value in objects if key != _COPY)


def _complete(owner: StoreOwner, store: Store) -> Mapping[str, bytes]:
    """The note as it is then: a note of another domain stays."""
    with store.connect(f"owner {owner.root}") as session:
        handle = session.open(DOMAIN_RECORD, timeout_ms=_NOTE_TIMEOUT_MS)
        found = handle.objects()  # another process may have been faster
        if not found.items() < owner.note.items():
            return found
        handle.commit([Put(key, value) for key, value in owner.note.items() if key not in found])
        return handle.objects()


def _check_positions(owner: StoreOwner, store: Store, new: bool) -> None:
    """Of a store that names no domain."""
    names = store.names(MEMBERS_PREFIX)
    own = () if new or not names else tuple(f"{MEMBERS_PREFIX}{table_id}/" for table_id in owner.table_ids())
    if any(name.startswith(own) for name in names):
        return
    foreign = next((name for name in names if _has_content(store, name)), None)
    if foreign is not None:
        raise owner.refuse(f"another domain, of which it has positions ({foreign})")


def _has_content(store: Store, name: str) -> bool:
    try:
        return bool(store.peek(name))
    except RecordCorruptError:
        return True


def _shown(note: Mapping[str, bytes]) -> str:
    id, copy = (note.get(key, b"").decode(errors="replace") for key in (_ID, _COPY))
    domain, _, server = id.partition("-")
    whose = f"server {server} of domain {domain}" if server else f"domain {domain}"
    return f"{whose}, restored copy {copy}" if copy else whose
