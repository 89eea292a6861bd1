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
from collections.abc import Mapping
from contextlib import suppress

from spark_jms.core.destinations.servers import HOME
from spark_jms.core.records.stored_form import DOMAIN_RECORD, MEMBERS_PREFIX
from spark_jms.errors import JmsqError
from spark_jms.log.destinations.domain import RESTORED, Domain
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

log = logging.getLogger("spark_jms")
_ID, _COPY = "id", "copy"
_NOTE_TIMEOUT_MS = 15_000  # longer than the session of a process that was stopped while it wrote the note


def owned(domain: Domain, server: str, store: Store) -> Store:
    """The store, which is open, once it is known to be that of `server`. Else closes it and raises ForeignOwnerError."""
    try:
        ensure_owner(domain, server, store)
    except BaseException:
        store.close()
        raise
    return store


def ensure_owner(domain: Domain, server: str, store: Store, *, new: bool = False) -> None:
    """Raises ForeignOwnerError when the store is not that of `server`. A store without a note gets ours. `new`: the domain cannot
    have used the store yet, so positions in it are another domain's; and the note has to be written."""
    if _is_shared(domain, server):
        return
    try:
        found = store.peek(DOMAIN_RECORD)
        if not _is_noted(domain, server, found):
            if not found:
                _check_positions(domain, server, store, new)
            found = _note(domain, server, store)
    except RecordCorruptError as error:  # one damaged record set does not make the others useless
        log.warning("whether the store of server %s is that of another domain cannot be read: %s", server, error)
        return
    except (StoreWriteError, ResourceAllocationException) as error:
        if new:
            raise
        log.warning("the store of server %s does not name its domain yet: %s", server, error)
        return
    _check(domain, server, found)


def own_stores(domain: Domain) -> None:
    """Of a domain that was restored just now: its own store, and those of its servers."""
    for server in (HOME, *domain.servers.names()):
        with open_store(domain.server_uri(server), create=False, opening=StoreOpening(COMMAND_LIMIT_S)) as store:
            ensure_owner(domain, server, store)


def take_over(domain: Domain, server: str, uri: str, *, dry_run: bool = False) -> str:
    """Note in a store that it is that of `server`, which need not be declared yet: for a store whose domain does not exist any
    more. Returns who had it; "" when the note was right. Raises StoreInUseError while a session is connected to it."""
    with open_store(uri, create=False, opening=StoreOpening(COMMAND_LIMIT_S)) as store:
        found = store.peek(DOMAIN_RECORD)
        if _is_noted(domain, server, found):
            return ""
        if sessions := store.sessions():
            users = ", ".join(info.label or info.session_id for info in sessions.values())
            raise StoreInUseError(f"{shown_uri(uri)} is used by {users}")
        if not dry_run:
            _write(domain, server, store)
        return _shown(found) if found else "a domain that it does not name"


def without_copy(objects: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    """The note as a backup has it: the copy that is restored is another one."""
    return tuple((key, value) for key, value in objects if key != _COPY)


def _is_shared(domain: Domain, server: str) -> bool:
    return scheme_of(domain.server_uri(server)) == "memory"


def _note_of(domain: Domain, server: str) -> dict[str, bytes]:
    suffix = "" if server == HOME else f"-{server}"
    copy = str(domain.declaration.get(RESTORED, ""))
    return {_ID: f"{domain.id}{suffix}".encode(), **({_COPY: copy.encode()} if copy else {})}


def _is_noted(domain: Domain, server: str, found: Mapping[str, bytes]) -> bool:
    return dict(found) == _note_of(domain, server)


def _check(domain: Domain, server: str, found: Mapping[str, bytes]) -> None:
    if not _is_noted(domain, server, found):
        raise _refused(domain, server, _shown(found))


def _check_positions(domain: Domain, server: str, store: Store, new: bool) -> None:
    """Of a store that names no domain."""
    tables = () if new else tuple(f"{MEMBERS_PREFIX}{table_id}/" for table_id in _table_ids(domain))
    names = store.names(MEMBERS_PREFIX)
    if any(name.startswith(tables) for name in names):
        return
    foreign = next((name for name in names if _has_content(store, name)), None)
    if foreign is not None:
        raise _refused(domain, server, f"another domain, of which it has positions ({foreign})")


def _table_ids(domain: Domain) -> list[str]:
    found = []
    for name in domain.destinations():
        with suppress(JmsqError):  # a damaged table proves nothing
            found.append(domain.log(name).refresh().table_id)
    return found


def _has_content(store: Store, name: str) -> bool:
    try:
        return bool(store.peek(name))
    except RecordCorruptError:
        return True


def _note(domain: Domain, server: str, store: Store) -> Mapping[str, bytes]:
    """Complete the note; a note of another domain stays."""
    wanted = _note_of(domain, server)
    with store.connect(f"owner {domain.root}") as session:
        handle = session.open(DOMAIN_RECORD, timeout_ms=_NOTE_TIMEOUT_MS)
        found = handle.objects()  # another process may have been faster
        if {**found, **wanted} == {**wanted, **found}:  # it says nothing else
            handle.commit([Put(key, value) for key, value in wanted.items() if key not in found])
            found = handle.objects()
        return found


def _write(domain: Domain, server: str, store: Store) -> None:
    wanted = _note_of(domain, server)
    with store.connect(f"jmsq store own {domain.root}") as session:
        handle = session.open(DOMAIN_RECORD, timeout_ms=_NOTE_TIMEOUT_MS)
        gone = [Delete(key) for key in handle.objects() if key not in wanted]
        handle.commit([*gone, *(Put(key, value) for key, value in wanted.items())])


def _shown(note: Mapping[str, bytes]) -> str:
    id, copy = (note.get(key, b"").decode(errors="replace") for key in (_ID, _COPY))
    domain, _, server = id.partition("-")
    whose = f"server {server} of domain {domain}" if server else f"domain {domain}"
    return f"{whose}, restored copy {copy}" if copy else whose


def _refused(domain: Domain, server: str, owner: str) -> ForeignOwnerError:
    uri = domain.server_uri(server)
    wanted = f"{_shown(_note_of(domain, server))} ({domain.root})"
    error = ForeignOwnerError(shown_uri(uri), owner, wanted)
    report_refusal(uri, error.detail())
    return error
