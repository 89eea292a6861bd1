"""Restoring a backup into an empty place.

Tables first, then the stores, `domain.json` last: a restore that was interrupted leaves no domain, and is repeated.

Features: C19 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_jms.admin.backup_files import DOMAIN, CopiedFile, Manifest, copy, described, is_records, read_records
from spark_jms.core.placement import HOME
from spark_jms.core.thresholds import FlowThresholds
from spark_jms.errors import BackupError, JmsqError
from spark_jms.log.domain import DOMAIN_FILE, Domain, check_place, same_store, server_store_uri, store_uri
from spark_jms.log.root import open_storage
from spark_jms.log.servers import DEFAULT_LEASE_MS, ServerEntry, Servers
from spark_jms.log.storage import Storage
from spark_jms.store import StoreError, open_store
from spark_jms.store.admin import load


@dataclass(frozen=True)
class RestorePlan:
    """`existing_files` is what `force` would delete first. `servers`: name -> store."""

    manifest: Manifest
    root: str
    store: str
    servers: Mapping[str, str]
    existing_files: int


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
        lease_ms = plan.manifest.lease_ms.get(name, DEFAULT_LEASE_MS)
        Servers(target).add(name, ServerEntry(own, lease_ms, thresholds))
    target.sync([file.path.removeprefix(f"{DOMAIN}/") for file in plan.manifest.files if not is_records(file.path)])
    for server, uri in stores.items():
        load(read_records(backup, server), uri)
    domain: dict[str, Any] = {**plan.manifest.domain, "store": plan.store}
    if not target.create(DOMAIN_FILE, json.dumps(domain, indent=1).encode(), durable=True):
        raise BackupError(
            f"another process has created a domain in {target.uri} while the backup was restored: restore into a place of its own"
        )
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
            with open_store(domain.server_uri(server), create=False) as store:
                users = [info.label or info.session_id for info in store.sessions().values()]
        except (JmsqError, StoreError):
            continue
        if users:
            raise BackupError(f"{domain.root} is used by {', '.join(users)}: stop them, then restore")


def _empty(target: Storage) -> None:
    target.delete(DOMAIN_FILE)  # from here on it is not a domain
    for file in list(target.list("")):
        target.delete(file.path)
