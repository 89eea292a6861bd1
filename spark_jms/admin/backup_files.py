"""The files of a backup: the manifest that makes it complete, the record sets, and copies with checksums.

backup.json                             manifest, written last: a backup without it is incomplete
records.jsonl                           one record set a line, of the domain's own store
records/<server>.jsonl                  the same, of a server's store
domain/<destination>/                   a Delta table at one version: its active files and one Delta checkpoint
domain/_jmsq/acknowledgements/<dest>/   the same
domain/_jmsq/life-cycles/<dest>/        the same, of a destination that logs or has logged
domain/_jmsq/destinations/<dest>        the register of names
domain/_jmsq/connection-factories/<n>   their settings
domain/_jmsq/quotas/<n>                 their settings
domain/_jmsq/lease-terms/<server>/<n>   which servers were down, with `_jmsq/stopped-servers/<server>`
domain/_jmsq/left-out/                  messages that queries have left out of batches

Features: C19 (docs/FEATURES.md)
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from spark_jms.core.placement import HOME
from spark_jms.errors import BackupError, FormatVersionError
from spark_jms.log.storage import Storage
from spark_jms.store.reports import DumpedRecord

MANIFEST, RECORDS, DOMAIN = "backup.json", "records.jsonl", "domain"
RECORDS_OF_SERVERS = "records/"
FORMAT_VERSION = 4  # record sets tell what was shown; with thresholds of servers 3, with servers 2, without any 1
_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class CopiedFile:
    path: str  # in the backup
    bytes: int
    digest: str


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
