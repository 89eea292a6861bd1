"""Restoring a backup into an empty place (C19).

Tables first, then the store, `domain.json` last: a restore that was interrupted leaves no domain, and is repeated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from spark_jms.admin.backup_files import DOMAIN, RECORDS, CopiedFile, Manifest, copy, described, read_records
from spark_jms.errors import BackupError, JmsqError
from spark_jms.log.domain import DOMAIN_FILE, Domain, store_uri
from spark_jms.log.root import open_storage
from spark_jms.log.storage import Storage
from spark_jms.store import StoreError, open_store
from spark_jms.store.admin import load


@dataclass(frozen=True)
class RestorePlan:
    """`existing_files` is what `force` would delete first."""

    manifest: Manifest
    root: str
    store: str
    existing_files: int


def plan_restore(backup_uri: str, root: str, store: str | None = None) -> RestorePlan:
    """Reads only. Raises BackupError, FormatVersionError."""
    target = open_storage(root)
    manifest = Manifest.read(open_storage(backup_uri))
    existing = sum(1 for _ in target.list(""))
    return RestorePlan(manifest, target.uri, store or str(manifest.domain["store"]), existing)


def restore(backup_uri: str, root: str, store: str | None = None, *, force: bool = False) -> RestorePlan:
    """Raises BackupError when the root is not empty (unless `force`), is in use, or the backup is damaged, and StoreInUseError
    when the store holds other record sets: name an empty one as `store`."""
    plan = plan_restore(backup_uri, root, store)
    backup, target = open_storage(backup_uri), open_storage(root)
    if plan.existing_files:
        if not force:
            raise BackupError(
                f"{target.uri} is not empty ({plan.existing_files} files): restore into an empty place, or --force"
            )
        _refuse_used(root)
        _empty(target)
    for file in plan.manifest.files:
        if file.path != RECORDS:
            to = file.path.removeprefix(f"{DOMAIN}/")
            found = copy(backup, file.path, target, to) if file.bytes else described(backup, file.path)
            _check(backup, file, found)
            if not file.bytes:
                target.put(to, b"")
    (records,) = (file for file in plan.manifest.files if file.path == RECORDS)
    _check(backup, records, described(backup, RECORDS))
    target.sync([file.path.removeprefix(f"{DOMAIN}/") for file in plan.manifest.files if file.path != RECORDS])
    domain: dict[str, Any] = {**plan.manifest.domain, "store": plan.store}
    load(read_records(backup), store_uri(target.uri, plan.store, str(domain["id"])))
    target.create(DOMAIN_FILE, json.dumps(domain, indent=1).encode(), durable=True)
    return plan


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
        with open_store(domain.store_uri, create=False) as store:
            users = [info.label or info.session_id for info in store.sessions().values()]
    except (JmsqError, StoreError):
        return
    if users:
        raise BackupError(f"{domain.root} is used by {', '.join(users)}: stop them, then restore")


def _empty(target: Storage) -> None:
    target.delete(DOMAIN_FILE)  # from here on it is not a domain
    for file in list(target.list("")):
        target.delete(file.path)
