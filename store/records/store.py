"""Record sets on a replicated store: one process at a time owns the regions and serves the sessions of all (C9, R15).

The owner is whoever opened the store's regions; it publishes in the Global Directory how it is reached. Its entries are
objects of one connection:

    L  a batch of ledger entries, in parts      position before it, number of entries, tokens
    S  the whole ledger at a position, in parts, then what is older is deleted

A part is an object; a batch or a ledger counts when all its parts are there. So a crash between two objects leaves what
was before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import threading
import urllib.parse
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from spark_jms.store.contract import Put
from spark_jms.store.engine import Address, Batch, Loaded, OwnershipLostError, Persistence, Reach, ServedBackend, Server
from spark_jms.store.engine.port import Clock
from spark_jms.store.engine.server import monotonic_ms
from spark_jms.store.errors import (
    DaemonUnavailableError,
    FencedError,
    NoLocalDaemonError,
    RegionOpenError,
    RegionUnavailableError,
    SecurityConfigError,
    SettingInvalidError,
    SingleCopyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreNotFoundError,
    StoreUriError,
    StoreWriteError,
)
from spark_jms.store.ledger.codec import decode, encode
from spark_jms.store.ledger.ledger import Entry, Prepared, Written
from spark_jms.store.ledger.session import LedgerStore
from spark_jms.store.net.tls import first_certificate, is_loopback, server_context
from spark_jms.store.regions.admin.client import Loop
from spark_jms.store.regions.client.instance import DEFAULT_REGION_BYTES, StoreInstance
from spark_jms.store.regions.client.objects import Objects
from spark_jms.store.regions.client.thresholds import Thresholds, parse_thresholds
from spark_jms.store.regions.global_directory import CONFIG, DirectoryFiles, GlobalDirectory, write_whole
from spark_jms.store.sharing import SharedBackends

log = logging.getLogger("store.replicated")
T = TypeVar("T")

CONNECTION = "jmsq.records"
OUTCOMES = 1_024
SNAPSHOT_BYTES = 8 * 1024 * 1024
SNAPSHOT_BATCHES = 4_096
LIMIT_MS = 60_000.0
DAEMON = "daemon"  # as engine_host
LOST = (FencedError, DaemonUnavailableError, StoreClosedError, RegionUnavailableError, SingleCopyError)  # ownership
NOT_NOW = (DaemonUnavailableError, NoLocalDaemonError, RegionOpenError, RegionUnavailableError, FencedError)


class Part(msgspec.Struct, array_like=True):
    kind: str  # L or S
    base: int  # of a batch: the position before it; of a ledger: its position
    count: int  # of a batch: its entries; of a ledger: the position since which all tokens are known
    group: str  # all parts of one
    number: int
    parts: int
    tokens: list[tuple[str, int]]  # (token, position), a share of them
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Part)
PART_TOKENS = 100
PART_OVERHEAD = 3 * 1024  # what is not data, at the most: 256 bytes, and 27 a token
AT_ONCE = 64  # reads and deletions under way


@dataclass
class _Group:
    first: Part
    parts: dict[int, Part]
    handles: list[int]

    @property
    def complete(self) -> bool:
        return len(self.parts) == self.first.parts

    def data(self) -> bytes:
        return b"".join(self.parts[number].data for number in range(self.first.parts))

    def tokens(self) -> list[tuple[str, int]]:
        return [token for number in range(self.first.parts) for token in self.parts[number].tokens]


class RecordLog:
    """The entries in objects, without ownership: it belongs to whoever has the objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._handles: list[int] = []
        self._bytes = 0
        self._batches = 0
        self._kept_bytes = 0
        self._outcomes: deque[tuple[str, int]] = deque()
        self._known_since = 0
        self.snapshot_count = 0

    async def load(self) -> Loaded:
        groups = await self._groups()
        ledgers = [group for group in groups.values() if group.first.kind == "S" and group.complete]
        newest = max(ledgers, key=lambda group: group.first.base, default=None)
        entries: list[Entry] = decode(newest.data()) if newest else []
        position = newest.first.base if newest else 0
        self._kept_bytes = len(newest.data()) if newest else 0
        if newest:
            self._known_since = newest.first.count
            self._remember(newest.tokens())
        batches = [group for group in groups.values() if group.first.kind == "L" and group.complete]
        keep = newest.handles.copy() if newest else []
        for group in sorted(batches, key=lambda group: group.first.base):
            first = group.first
            if first.base < position:
                continue
            if first.base > position:
                raise StoreCorruptError(self._objects.name, first.base, f"entries after {position} are missing")
            data = group.data()
            entries += decode(data)
            position += first.count
            self._remember(group.tokens())
            self._bytes += len(data)
            self._batches += 1
            keep += group.handles
        kept = set(keep)
        await self._delete([handle for handle in self._objects.handles() if handle not in kept])
        self._handles = keep
        return Loaded(position, tuple(entries), tuple(self._outcomes), self._known_since)

    def _remember(self, tokens: Sequence[tuple[str, int]]) -> None:
        self._outcomes.extend(tokens)
        while len(self._outcomes) > OUTCOMES:
            self._known_since = self._outcomes.popleft()[1]

    async def _delete(self, handles: Sequence[int]) -> None:
        for at in range(0, len(handles), AT_ONCE):
            await asyncio.gather(*(self._objects.delete(handle) for handle in handles[at : at + AT_ONCE]))

    async def _groups(self) -> dict[str, _Group]:
        groups: dict[str, _Group] = {}
        handles = list(self._objects.handles())
        for at in range(0, len(handles), AT_ONCE):
            some = handles[at : at + AT_ONCE]
            for handle, data in zip(some, await asyncio.gather(*map(self._objects.read, some)), strict=True):
                try:
                    part = _decoder.decode(data)
                except msgspec.DecodeError as error:
                    raise StoreCorruptError(self._objects.name, handle, str(error)) from error
                group = groups.setdefault(part.group, _Group(part, {}, []))
                group.parts[part.number] = part
                group.handles.append(handle)
        return groups

    async def append(self, batch: Batch) -> None:
        data = encode(batch.entries)
        tokens = [(token, batch.position) for token in batch.tokens]
        self._handles += await self._write("L", batch.base, len(batch.entries), tokens, data)
        self._remember(tokens)
        self._bytes += len(data)
        self._batches += 1
        if self._bytes > max(SNAPSHOT_BYTES, 2 * self._kept_bytes) or self._batches > SNAPSHOT_BATCHES:
            try:
                await self._snapshot(batch)
            except LOST:
                raise
            except StoreError as error:  # the batch is kept all the same; what is there of the ledger is not whole
                log.error(
                    "%s: the ledger cannot be written anew, the log goes on growing: %s", self._objects.name, error
                )
                self._bytes, self._batches = 0, 0

    async def _snapshot(self, batch: Batch) -> None:
        data = encode(batch.after.snapshot())
        fresh = await self._write("S", batch.position, self._known_since, list(self._outcomes), data)
        old, self._handles = self._handles, fresh
        self._bytes, self._batches, self._kept_bytes = 0, 0, len(data)
        self.snapshot_count += 1
        await self._delete(old)

    async def _write(self, kind: str, base: int, count: int, tokens: list[tuple[str, int]], data: bytes) -> list[int]:
        size = self._objects.max_object_bytes - PART_OVERHEAD
        parts = max(1, -(-len(data) // size), -(-len(tokens) // PART_TOKENS))
        group = secrets.token_hex(8)
        made = [
            Part(kind, base, count, group, number, parts, tokens[number * PART_TOKENS : (number + 1) * PART_TOKENS],
                 data[number * size : (number + 1) * size])
            for number in range(parts)
        ]  # fmt: skip
        handles: list[int] = []
        try:
            for part in made:
                handles.append(await self._objects.create(_encoder.encode(part)))
        except StoreFullError:  # a group that is not whole means nothing, and takes room where there is none
            await self._delete(handles)
            raise
        return handles


def _writes(entry: Entry) -> bool:
    return isinstance(entry, (Written, Prepared)) and any(
        isinstance(operation, Put) for change in entry.changes for operation in change.operations
    )


class ReplicatedPersistence(Persistence):
    def __init__(self, loop: Loop, instance: StoreInstance, log_: RecordLog) -> None:
        self.incarnation = secrets.token_hex(8)
        self.instance = instance
        self._loop = loop
        self._log = log_
        self._closed = False

    def load(self) -> Loaded:
        return self._call(self._log.load())

    def append(self, batch: Batch) -> None:
        """R13: what writes new values is refused while daemon and store are overloaded; all else, as deletions, passes."""
        if any(_writes(entry) for entry in batch.entries):
            self.instance.check_overload()
        self._call(self._log.append(batch))

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.call(coroutine)
        except LOST as error:
            raise OwnershipLostError(str(error)) from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(StoreError, CancelledError):
                self._loop.call(self.instance.close())


@dataclass(frozen=True)
class ReplicatedSettings:
    """replicated:///global/directory?store=NAME&localindex=0&region_mb=64

    `engine_host` is the address at which this machine's engine serves the other machines; `daemon` means that of its
    daemon in rs_daemons.cfg, so that one URI is right everywhere. Other than loopback needs certificate and key.
    """

    directory: str
    store: str = "jmsq"
    localindex: int = 0
    region_bytes: int = DEFAULT_REGION_BYTES
    thresholds: Thresholds = field(default_factory=Thresholds)
    engine_host: str = "127.0.0.1"
    engine_port: int = 0
    engine_certificate: str = ""
    engine_key: str = ""


OPTIONS = ("store", "localindex", "region_mb", "engine_host", "engine_port", "engine_certificate", "engine_key")


def parse_replicated(uri: str) -> ReplicatedSettings:
    parts = urllib.parse.urlsplit(uri)
    path = urllib.parse.unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/"):
        raise StoreUriError(f"replicated:///absolute/global/directory?store=NAME: {uri!r}")
    query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    unknown = query.keys() - set(OPTIONS)
    if unknown:
        raise StoreUriError(f"unknown in {uri!r}: {', '.join(sorted(unknown))}; there are {', '.join(OPTIONS)}")
    store = query.get("store", "jmsq")
    host = query.get("engine_host", "127.0.0.1")
    if host in ("", "0.0.0.0", "::"):
        raise StoreUriError(f"engine_host is one address, by which the other machines know this one, in {uri!r}")
    return ReplicatedSettings(
        path,
        store,
        _integer(uri, query, "localindex", 0, 0, 2**31 - 1),
        _integer(uri, query, "region_mb", DEFAULT_REGION_BYTES >> 20, 1, 4_000) << 20,
        parse_thresholds(dict(os.environ), store),
        host,
        _integer(uri, query, "engine_port", 0, 0, 65_535),
        query.get("engine_certificate", ""),
        query.get("engine_key", query.get("engine_certificate", "")),
    )


def _integer(uri: str, query: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal() or not low <= int(text) <= high:
        raise StoreUriError(f"{name} is a number from {low} to {high}, not {text!r}, in {uri!r}")
    return int(text)


class ReplicatedReach(Reach):
    """Who owns the store now: this process if it gets the regions, else whoever published itself."""

    def __init__(
        self,
        settings: ReplicatedSettings,
        *,
        session_timeout_ms: float,
        create: bool = True,
        clock_ms: Clock = monotonic_ms,
    ) -> None:
        self.settings = settings
        self._clock_ms = clock_ms
        self.directory = GlobalDirectory(settings.directory)
        if not self.directory.config_file.exists():
            raise StoreNotFoundError(f"{settings.directory} has no {CONFIG}")
        self._host = self._engine_host()
        self._tls, self._certificate = None, ""
        if settings.engine_certificate:
            chain = Path(settings.engine_certificate)
            self._tls, self._certificate = server_context(chain, Path(settings.engine_key)), first_certificate(chain)
        if self._tls is None and not is_loopback(self._host):
            raise SecurityConfigError(f"engine_host={self._host} is not loopback, and there is no engine_certificate")
        self._session_timeout_ms = session_timeout_ms
        self._published = self.directory.engine_file(settings.store)
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._server: Server | None = None
        self._closed = False
        self._was_reached = False
        self.instance: StoreInstance | None = None
        if not create and not self._exists():
            raise StoreNotFoundError(f"store {settings.store} in {settings.directory}")

    def _engine_host(self) -> str:
        if self.settings.engine_host != DAEMON:
            return self.settings.engine_host
        return self.directory.local_daemon(self.directory.config(), self.settings.localindex).address

    def _exists(self) -> bool:
        entries = DirectoryFiles(self.directory).entries()
        return any(name.startswith(f"{self.settings.store}.") for name in entries)

    def target(self, failed: Address | None = None) -> Server | Address | None:
        with self._lock:
            if self._closed:
                return None
            if self._server is not None:
                if not self._server.gone:
                    return self._server
                self._server = None
            try:
                return self._become()
            except RegionOpenError:
                self._was_reached = True
                return self._find()
            except NOT_NOW as error:
                if not self._was_reached:
                    raise
                log.info("store %s: not now: %s", self.settings.store, error)
                return None

    def _become(self) -> Server:
        loop = self._loop = self._loop or Loop(f"store-{self.settings.store}")
        persistence = loop.call(self._own(loop))
        try:
            server = Server(
                persistence, session_timeout_ms=self._session_timeout_ms, host=self._host,
                port=self.settings.engine_port, tls=self._tls, clock_ms=self._clock_ms,
            )  # fmt: skip
        except OSError as error:
            where = f"{self._host}:{self.settings.engine_port}"
            raise SettingInvalidError("engine_host, engine_port", where, f"cannot listen: {error}") from error
        self.instance = persistence.instance
        try:
            loop.call(self._watch(persistence.instance, server))
            self._publish(server)
        except BaseException:
            server.close()
            raise
        self._server, self._was_reached = server, True
        return server

    @staticmethod
    async def _watch(instance: StoreInstance, server: Server) -> None:
        instance.on_failure(lambda error: server.disable(str(error)))

    def _publish(self, server: Server) -> None:
        host, port = self._host, server.address[1]
        told = {
            "host": host, "port": port, "secret": server.secret.hex(), "incarnation": server.incarnation,
            "certificate": self._certificate,
        }  # fmt: skip
        try:
            write_whole(self._published, json.dumps(told).encode(), 0o600)
        except OSError as error:
            raise StoreWriteError(f"{self._published}: {error.strerror or error}") from error
        log.info("store %s: served by process %d at %s:%d", self.settings.store, os.getpid(), host, port)

    async def _own(self, loop: Loop) -> ReplicatedPersistence:
        settings = self.settings
        instance = await StoreInstance.open(
            self.directory, settings.store, region_bytes=settings.region_bytes, localindex=settings.localindex,
            thresholds=settings.thresholds,
        )  # fmt: skip
        try:
            return ReplicatedPersistence(loop, instance, RecordLog(await instance.connection(CONNECTION)))
        except BaseException:
            await instance.close()
            raise

    def _find(self) -> Address | None:
        try:
            told = json.loads(self._published.read_text())
            secret, certificate = bytes.fromhex(told["secret"]), told.get("certificate", "")
            return Address(told["host"], told["port"], secret, told["incarnation"], certificate)
        except (OSError, ValueError, KeyError):
            return None  # it has the regions and has not yet told

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._server is not None:
                self._server.close()
            if self._loop is not None:
                self._loop.close()

    def abandon(self) -> None:
        if self._server is not None:
            self._server.abandon()
        if self.instance is not None:
            self.instance.abandon()


_shared: SharedBackends[ServedBackend] = SharedBackends()


def open_backend(uri: str, *, session_timeout_ms: int, create: bool) -> ServedBackend:
    reach = ReplicatedReach(parse_replicated(uri), session_timeout_ms=session_timeout_ms, create=create)
    return ServedBackend(reach, session_timeout_ms=session_timeout_ms, limit_ms=LIMIT_MS)


class ReplicatedStore(LedgerStore):
    """Record sets in regions. Its own client; `shared` takes the one the process has."""

    def __init__(self, uri: str, *, session_timeout_ms: int = 10_000, create: bool = True) -> None:
        super().__init__(open_backend(uri, session_timeout_ms=session_timeout_ms, create=create))

    @classmethod
    def shared(cls, uri: str, *, session_timeout_ms: int = 10_000, create: bool = True) -> LedgerStore:
        def make() -> ServedBackend:
            return open_backend(uri, session_timeout_ms=session_timeout_ms, create=create)

        return LedgerStore(_shared.take((uri, session_timeout_ms), make))
