"""The files of a backup: copied with their checksums, and the record sets of a store as lines of JSON.

Features: C19 (docs/FEATURES.md)
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_jms.core.destinations.servers import HOME
from spark_jms.errors import BackupError
from spark_jms.log.tables.storage import Storage
from spark_jms.store.ledger.administration import DumpedRecord

RECORDS, RECORDS_OF_SERVERS = "records.jsonl", "records/"
_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class CopiedFile:
    path: str  # in the backup
    bytes: int
    digest: str


def copy(source: Storage, path: str, target: Storage, to: str) -> CopiedFile:
    """Raises OSError when the file is missing or cannot be read, BackupError when the copy cannot be written."""
    digest, size = hashlib.blake2b(digest_size=16), 0
    with source.open_input(path) as incoming, _writing(target, to):
        target.put(to, b"")  # makes its folder, which open_output expects
        with target.open_output(to) as outgoing:
            for chunk in iter(partial(_read, incoming, path), b""):
                digest.update(chunk)
                size += len(chunk)
                outgoing.write(chunk)
    return CopiedFile(to, size, digest.hexdigest())


class _UnreadError(Exception):
    """Carries an OSError of the source past the handler of the target's."""


def _read(incoming: Any, path: str) -> bytes:
    try:
        return bytes(incoming.read(_CHUNK_BYTES))
    except OSError as error:
        raise _UnreadError(path) from error


@contextmanager
def _writing(target: Storage, path: str) -> Iterator[None]:
    try:
        yield
    except _UnreadError as error:
        raise OSError(f"{error}: {error.__cause__}") from error.__cause__
    except OSError as error:
        raise BackupError(f"cannot write {target.uri.rstrip('/')}/{path}: {error}") from error


def described(storage: Storage, path: str) -> CopiedFile:
    """A small file that is in the backup already."""
    data = storage.get(path) or b""
    return CopiedFile(path, len(data), hashlib.blake2b(data, digest_size=16).hexdigest())


def records_path(server: str) -> str:
    """The record sets of a server's store."""
    return RECORDS if server == HOME else f"{RECORDS_OF_SERVERS}{server}.jsonl"


def is_records(path: str) -> bool:
    """It belongs into a store; all other files of a backup belong to the root."""
    return path == RECORDS or path.startswith(RECORDS_OF_SERVERS)


def write_records(target: Storage, server: str, records: Iterable[DumpedRecord]) -> CopiedFile:
    lines = (
        json.dumps(
            {"name": r.name, "epoch": r.epoch, "objects": {k: base64.b64encode(v).decode() for k, v in r.objects}}
        )
        for r in records
    )
    target.put(records_path(server), "\n".join(lines).encode())
    return described(target, records_path(server))


def read_records(backup: Storage, server: str) -> Iterator[DumpedRecord]:
    for line in (backup.get(records_path(server)) or b"").splitlines():
        row = json.loads(line)
        objects = tuple((key, base64.b64decode(value)) for key, value in row["objects"].items())
        yield DumpedRecord(row["name"], row["epoch"], None, objects)
