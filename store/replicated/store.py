"""Record sets on a replicated store: the engine is the process that opened the regions.

A process that needs the engine first tries to open the regions. If it succeeds, it starts the engine and publishes its
address in the Global Directory; otherwise it reads there how to reach the process that has them.

Features: C9, R8, R15 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import os
import threading
import urllib.parse
from collections.abc import Callable

import attrs

from spark_jms.settings.store import ReplicatedOptions, Thresholds, from_query
from spark_jms.settings.table import settings_of
from spark_jms.store.contract import Store, StoreInfo, StoreOpening
from spark_jms.store.engine.backend import EngineBackend, EngineFinder
from spark_jms.store.engine.connections import Address
from spark_jms.store.engine.server import Server, monotonic_ms
from spark_jms.store.errors import (
    DaemonUnavailableError,
    FencedError,
    NoLocalDaemonError,
    RegionLostError,
    RegionOpenError,
    RegionUnavailableError,
    SettingInvalidError,
    StoreError,
    StoreNotFoundError,
    StoreUriError,
    StoreWriteError,
)
from spark_jms.store.ledger.administration import OpenedAdministration
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.net.event_loop import EventLoopThread
from spark_jms.store.net.sockets import ServingAddress
from spark_jms.store.processes import Clock, SharedBackends
from spark_jms.store.regions.admin.api import Admin
from spark_jms.store.regions.client.attachment import Attachment, client_name
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.core.memory_use import parse_thresholds
from spark_jms.store.regions.directory.entries import DirectoryFiles
from spark_jms.store.regions.directory.global_directory import CONFIG, GlobalDirectory
from spark_jms.store.regions.protocol.messages import SHUT_DOWN_SAFELY
from spark_jms.store.replicated.log import RecordLog
from spark_jms.store.replicated.persistence import ReplicatedPersistence

log = logging.getLogger("store.replicated")
_shared: SharedBackends[EngineBackend] = SharedBackends()
CONNECTION = "jmsq.records"
DAEMON = "daemon"  # as engine_host
NOT_NOW = (DaemonUnavailableError, NoLocalDaemonError, RegionOpenError, RegionUnavailableError, FencedError)
LIMIT_MS = 60_000.0


@attrs.frozen
class ReplicatedSettings(ReplicatedOptions):
    """replicated:///global/directory?store=NAME&localindex=0&region_mb=64; `spark_jms/settings/store.py` declares the options."""

    directory: str = attrs.field(kw_only=True)
    thresholds: Thresholds = attrs.field(factory=Thresholds, kw_only=True)


def parse_replicated(uri: str) -> ReplicatedSettings:
    try:
        parts = urllib.parse.urlsplit(uri)
    except ValueError as error:
        raise StoreUriError(f"not a replicated URI ({error}): {uri!r}") from error
    path = urllib.parse.unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/"):
        raise StoreUriError(f"replicated:///absolute/global/directory?store=NAME: {uri!r}")
    values, unknown = from_query(ReplicatedOptions, parts.query, f", in {uri!r}")
    if unknown:
        names, known = sorted(dict(unknown)), ", ".join(settings_of(ReplicatedOptions))
        raise StoreUriError(f"unknown in {uri!r}: {', '.join(names)}; there are {known}")
    values.setdefault("engine_key", values.get("engine_certificate", ""))
    settings = ReplicatedSettings(directory=path, **values)
    return attrs.evolve(settings, thresholds=parse_thresholds(dict(os.environ), settings.store))


class ReplicatedStore(LedgerStore):
    """Record sets in regions. The constructor makes a backend of its own; `shared` uses the one that the process has."""

    def __init__(self, uri: str, *, session_timeout_ms: int = 10_000, create: bool = True) -> None:
        super().__init__(open_backend(uri, session_timeout_ms=session_timeout_ms, create=create))

    @classmethod
    def shared(
        cls, uri: str, *, session_timeout_ms: int = 10_000, create: bool = True, opening: StoreOpening | None = None
    ) -> LedgerStore:
        wanted = opening or StoreOpening()

        def make() -> EngineBackend:
            return open_backend(uri, session_timeout_ms=session_timeout_ms, create=create, opening=wanted)

        return LedgerStore(_shared.take((uri, session_timeout_ms), make, wanted))


def open_backend(
    uri: str, *, session_timeout_ms: int, create: bool, opening: StoreOpening | None = None
) -> EngineBackend:
    finder = RegionEngineFinder(parse_replicated(uri), session_timeout_ms=session_timeout_ms, create=create)
    return EngineBackend(finder, session_timeout_ms=session_timeout_ms, limit_ms=LIMIT_MS, opening=opening)


def report_refusal(uri: str, text: str) -> None:
    """A line in the log of a daemon of this machine, if one runs."""
    settings = parse_replicated(uri)
    directory, loop = GlobalDirectory(settings.directory), EventLoopThread(f"report-{settings.store}")

    async def report() -> None:
        name = client_name(settings.store)
        attached = await Attachment.local(directory, directory.config(), settings.localindex, name, report=text)
        attached.discard()

    try:
        loop.call(report())
    except StoreError as error:
        log.info("store %s: no daemon was told: %s", settings.store, error)
    finally:
        loop.close()


class RegionEngineFinder(EngineFinder):
    """Finds the engine, or starts it here. `instance` is the store instance of an engine in this process."""

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
        self.serving = ServingAddress.of(
            self._engine_host(), settings.engine_port, settings.engine_certificate, settings.engine_key
        )
        self._session_timeout_ms = session_timeout_ms
        self._lock = threading.Lock()
        self._loop: EventLoopThread | None = None
        self._server: Server | None = None
        self._closed = False
        self._reached_before = False
        self._has_waited = False  # for a safe shutdown, whose end may take the daemon away that was asked
        self._logged = ""  # why the store could not be opened, as it was logged last
        self._is_lost = False  # its regions are, as the log says
        self.instance: StoreInstance | None = None
        if not create and not self._exists():
            raise StoreNotFoundError(f"store {settings.store} in {settings.directory}")

    def _engine_host(self) -> str:
        if self.settings.engine_host != DAEMON:
            return self.settings.engine_host
        return self.directory.local_daemon(self.directory.config(), self.settings.localindex).address

    def _exists(self) -> bool:
        listing = DirectoryFiles(self.directory).entries()
        names = (*listing.entries, *listing.unreadable)
        return any(name.startswith(f"{self.settings.store}.") for name in names)

    def find(self, failed: Address | None = None) -> Server | Address | None:
        with self._lock:
            self.is_blocked = False
            if self._closed:
                return None
            if self._server is not None:
                if not self._server.gone:
                    return self._server
                self._server = None
            try:
                return self._start_engine()
            except RegionOpenError as error:
                self._reached_before = True
                self.why = f"{error.detail()}, has not published its address"
                return self._published_address()
            except StoreError as error:
                self.is_blocked = isinstance(error, RegionUnavailableError) and SHUT_DOWN_SAFELY in error.detail()
                self._has_waited = self._has_waited or self.is_blocked
                is_passing = isinstance(error, (*NOT_NOW, SettingInvalidError))
                if self.is_blocked or (is_passing and (self._reached_before or self._has_waited)):
                    self.why = f"{type(error).__name__}: {error.detail()}"
                    log.info("store %s: the engine cannot be reached now: %s", self.settings.store, error)
                    return None
                self._refused(error)
                raise

    def _refused(self, error: StoreError) -> None:
        """Each reason is logged once."""
        if str(error) != self._logged:
            self._logged = str(error)
            log.error("store %s cannot be opened: %s", self.settings.store, error)
        if isinstance(error, RegionLostError):
            self._is_lost = True

    def _start_engine(self) -> Server:
        serving = self.serving.here()
        loop = self._loop = self._loop or EventLoopThread(f"store-{self.settings.store}")
        persistence = loop.call(self._open_regions(loop))
        try:
            server = Server(
                persistence,
                session_timeout_ms=self._session_timeout_ms,
                host=serving.host,
                port=serving.port,
                tls=serving.tls,
                clock_ms=self._clock_ms,
            )
        except OSError as error:
            where = f"{serving.host}:{serving.port}"
            raise SettingInvalidError("engine_host, engine_port", where, f"cannot listen: {error}") from error
        self.instance = persistence.instance
        try:
            loop.call(self._disable_on_failure(persistence.instance, server))
            self._publish(server, serving)
        except BaseException:
            server.close()
            raise
        if persistence.instance.is_new and self._reached_before and not self._is_lost:
            what = "begins again, empty: all its regions were removed, while it was closed and this process used it"
            log.error("store %s %s", self.settings.store, what)
        self._server, self._reached_before = server, True
        self._logged, self._is_lost, self.why = "", False, ""
        return server

    @staticmethod
    async def _disable_on_failure(instance: StoreInstance, server: Server) -> None:
        instance.on_failure(lambda error: server.disable(str(error)))

    def _publish(self, server: Server, serving: ServingAddress) -> None:
        host, port = serving.host, server.address[1]
        reached = {
            "host": host,
            "port": port,
            "secret": server.secret.hex(),
            "incarnation": server.incarnation,
            "certificate": serving.certificate,
        }
        try:
            self.directory.publish_service(self.settings.store, reached)
        except OSError as error:
            detail = f"store {self.settings.store} cannot publish its address in {self.directory.path}"
            raise StoreWriteError(f"{detail}: {error.strerror or error}") from error
        log.info("store %s: served by process %d at %s:%d", self.settings.store, os.getpid(), host, port)

    async def _open_regions(self, loop: EventLoopThread) -> ReplicatedPersistence:
        settings = self.settings
        instance = await StoreInstance.open(
            self.directory,
            settings.store,
            region_bytes=settings.region_bytes,
            localindex=settings.localindex,
            thresholds=settings.thresholds,
        )
        try:
            return ReplicatedPersistence(loop, instance, RecordLog(await instance.connection(CONNECTION)))
        except BaseException:
            await instance.close()
            raise

    def _published_address(self) -> Address | None:
        try:
            published = self.directory.published_service(self.settings.store)
            secret, certificate = bytes.fromhex(published["secret"]), published.get("certificate", "")
            return Address(published["host"], published["port"], secret, published["incarnation"], certificate)
        except (ValueError, KeyError):
            return None  # the owner has opened the regions and not published its address yet

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


class ReplicatedAdministration(OpenedAdministration):
    def __init__(self, uri: str, open_existing: Callable[[], Store]) -> None:
        super().__init__(uri, open_existing)
        self._settings = parse_replicated(uri)

    def counts(self) -> StoreInfo | None:
        with Admin(str(self._settings.directory), self._settings.localindex) as admin:
            return next((store for store in admin.stores() if store.name == self._settings.store), None)
