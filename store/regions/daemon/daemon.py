"""The daemon process: the core with a clock, connections, shared memory and a log; and the port of the service it hosts.

python -m spark_jms.store.kinds.daemon -dir /path/to/global/directory [-localindex 0] ...

A service is a store instance with a listener in front of it: the WebHDFS namespace in a daemon, the engine of the record
sets in a process that opened their regions. Whichever process opens the regions serves, and publishes its address in
the Global Directory (`GlobalDirectory.publish_service`); the others read it there (`published_service`). The daemon knows no
service: its composition root (kinds/daemon.py) hands it a factory.

Features: R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, R11, R12, R17, R18 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_jms.settings.store import DaemonSettings
from spark_jms.store.errors import (
    AuthenticationError,
    ClusterMismatchError,
    DaemonConfigError,
    DaemonUnavailableError,
    DirectoryUnavailableError,
    ProtocolError,
    StoreError,
)
from spark_jms.store.regions.core.actions import Action, AskDirectory, Drop, Log, Stop, ToClient, ToPeer, Unlink
from spark_jms.store.regions.core.daemon import DaemonCore
from spark_jms.store.regions.core.memory_use import UtilizationLog
from spark_jms.store.regions.daemon.directory_workers import DirectoryWorkers, PeerSecrets
from spark_jms.store.regions.daemon.logs import DaemonLog, LogSettings, log_directory
from spark_jms.store.regions.daemon.options import (
    START_TABLE,
    StartOptions,
    from_environment,
    help_text,
    parse_start,
    timeouts_of,
)
from spark_jms.store.regions.daemon.shared_memory import SharedMemoryPort, check_limit
from spark_jms.store.regions.directory.entries import DirectoryFiles, EntryGathering
from spark_jms.store.regions.directory.global_directory import GlobalDirectory, machine_addresses
from spark_jms.store.regions.protocol.cluster_config import ClusterConfig, local_daemons
from spark_jms.store.regions.protocol.connection import DaemonConnection, accepted, connect
from spark_jms.store.regions.protocol.messages import DaemonHeartbeat, RegionHello, RegionMessage
from spark_jms.store.regions.protocol.region_entry import DirectoryRequest, Holder

TICK_S = 0.05
DIAL_S = 0.2
HOUSEKEEPING_S = 3600.0
LEAVE_TIMEOUT_S = 30.0
OTHERS_START_S = 1.0
CLIENTS_LEAVE_S = 2.0
MAX_UNPROVED = 256
MAX_REPORT = 1_000  # characters of a client in the log
LEVELS = {1: logging.ERROR, 2: logging.INFO, 3: logging.DEBUG}

# It counts while the machine is suspended. On a clock that stands meanwhile, a primary that wakes would trust its lease
# although its secondary has taken over.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True)
class Host:
    """The daemon as its service sees it. `leaving` is true once the daemon moves its regions away: the service then closes
    its own regions and serves no more."""

    directory: GlobalDirectory
    config: ClusterConfig
    daemon: int
    log: logging.Logger
    leaving: Callable[[], bool]


class HostedService(Protocol):
    """A service on the event loop of its host."""

    name: str
    """For the daemon's log."""

    @property
    def address(self) -> str:
        """host:port on which it listens, once started."""

    async def start(self) -> None:
        """Listens. Opens its regions in the background and keeps trying while another process has them open."""

    async def stop(self) -> None:
        """Stops listening and closes the regions."""


ServiceFactory = Callable[[Host], HostedService]


class Daemon:
    """One daemon in this process and event loop. `run` returns when it has stopped."""

    def __init__(
        self, options: StartOptions, settings: DaemonSettings | None = None, service: ServiceFactory | None = None
    ) -> None:
        self.directory = GlobalDirectory(options.directory)
        self.config = self.directory.config()
        self.spec = self.directory.local_daemon(self.config, options.localindex)
        self._check_keys()
        self.settings = settings or DaemonSettings()
        check_limit(self.spec.memory_limit_bytes, self.settings.lock_memory)
        self._make_service = service
        self.incarnation = secrets.token_hex(8)
        self.log = DaemonLog(
            log_directory(str(self.directory.path), options.log_dir),
            self.spec.index,
            _numeric(self.spec.address),
            self.spec.port,
            LogSettings(options.log_level, options.log_file_size_mb, options.log_file_max),
        )
        self._identity = self.directory.identity(self.config)
        timeouts = timeouts_of(self.settings)
        self._hello = RegionHello("daemon", self.spec.index, self.incarnation, timeouts=timeouts)
        self._refused: set[str] = set()  # incarnations of daemons with other time-outs
        self._utilization = UtilizationLog(self.spec.memory_limit_bytes, options.log_level)
        self._peers: dict[int, DaemonConnection] = {}
        self._clients: dict[int, DaemonConnection] = {}
        self._unproved: dict[DaemonConnection, None] = {}  # have not introduced themselves yet; oldest first
        self._next_client = 0
        self.faulty = False
        self._dialing: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._serving = True  # until its service has closed its regions, which needs the core
        self._leaving_since: float | None = None

    # ---- life

    async def run(self) -> None:
        """Raises a StoreError when the daemon cannot start; it has then cleaned up after itself."""
        self.check_others()
        self._lock = self.directory.lock_daemon(
            self.spec.index, self.incarnation, self.config.checksum, self.settings.group_access
        )
        try:
            await self._run()
        finally:
            os.close(self._lock)

    async def _run(self) -> None:
        self.log.begin_background()
        self._directory_id = self.directory.read_identity()
        self._secret = self.directory.secret(self.spec.index)
        loop = asyncio.get_running_loop()

        def provided() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(lambda: self._spawn(self._continue_beginning()))

        self._files = DirectoryFiles(self.directory, self._directory_id)
        me = Holder(self.spec.index, self.incarnation)
        self._gathering = EntryGathering(self.directory, self._files, me)
        self._workers = DirectoryWorkers(self.log.logger)
        self._secrets = PeerSecrets(self.directory, self._directory_id, self._workers.run)
        self._memory = SharedMemoryPort(
            self.spec.shmkey, self._memory_prefix(), provided, lock=self.settings.lock_memory
        )
        self._core = DaemonCore(
            self.spec.index,
            self.incarnation,
            len(self.config.daemons),
            self.spec.memory_limit_bytes,
            self._memory,
            self.settings,
            now_ms(),
            now_us(),
        )
        server = await self._listen()
        service = None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        self.log.bootstrap(
            f"daemon {self.spec.index} of {len(self.config.daemons)} at {self.spec.address}:{self.spec.port}, "
            f"{self.spec.memory_limit_bytes >> 20} MB, directory {self.directory.path}, process {os.getpid()}"
        )
        try:
            service = await self._start_service()
            self._spawn(self._ticks())
            self._spawn(self._housekeeping())
            await self._stopping.wait()
        finally:
            server.close()
            if service is not None:
                await service.stop()
            self._serving = False
            for connection in (*self._peers.values(), *self._clients.values()):
                connection.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._workers.close()
            for name in self._last_copies():
                self.log.logger.error("region %s is lost with this daemon, which stops with its only copy", name)
            self._core.copies.clear()
            self._memory.free_all()
            self.log.bootstrap(f"daemon {self.spec.index} stopped")
            self.log.end_background()

    def _check_keys(self) -> None:
        """Two lines may name this machine by different addresses, which the parser of the file cannot know."""
        for other in local_daemons(self.config, machine_addresses()):
            if other.index != self.spec.index and other.shmkey == self.spec.shmkey:
                detail = f"daemons {other.index} and {self.spec.index} of this machine have the same shared memory key"
                raise DaemonConfigError(str(self.directory.config_file), 0, detail)

    def check_others(self) -> None:
        """Refuses to run alone beside a daemon that still runs with an earlier rs_daemons.cfg."""
        deadline_s = time.monotonic() + OTHERS_START_S
        while (other := self._runs_with_other_config()) is not None:
            if time.monotonic() >= deadline_s:
                raise ClusterMismatchError(f"daemon {other} runs with an earlier {self.directory.config_file}")
            time.sleep(TICK_S)  # the other may have locked its file and not yet written its incarnation to it

    def _runs_with_other_config(self) -> int | None:
        for spec in self.config.daemons:
            if spec.index != self.spec.index and self.directory.is_running(spec.index):
                told = self.directory.told(spec.index).get("config")
                if told is not None and told != self.config.checksum:
                    return spec.index
        return None

    def _memory_prefix(self) -> str:
        """Does not depend on rs_daemons.cfg, so that a daemon with a new one finds the segments of the old one."""
        return f"rs{hashlib.sha256(str(self.directory.path).encode()).hexdigest()[:8]}-{self.spec.index}"

    async def _listen(self) -> asyncio.Server:
        spec = self.spec
        try:
            loop = asyncio.get_running_loop()
            return await loop.create_server(
                lambda: accepted(self._secret, self._identity, self._admit), spec.address, spec.port, backlog=1024
            )
        except OSError as error:
            detail = error.strerror or str(error)
            raise DaemonUnavailableError(f"cannot listen at {spec.address}:{spec.port}: {detail}") from error

    async def _start_service(self) -> HostedService | None:
        if self._make_service is None:
            return None
        host = Host(self.directory, self.config, self.spec.index, self.log.logger, lambda: self._core.draining)
        service = self._make_service(host)
        await service.start()
        self.directory.tell(self._lock, self.incarnation, self.config.checksum, service.address)
        self.log.bootstrap(f"{service.name} at {service.address}")
        return service

    def _signalled(self) -> None:
        """The first signal: leave safely within LEAVE_TIMEOUT_S, and disconnect clients that stay, so that their regions can
        move away. The second: stop at once."""
        if self._leaving_since is not None:
            self._stopping.set()
            return
        self._leaving_since = time.monotonic()
        self._core.leave(force=not self._core.peers.any_up())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.logger.error(
                "this daemon ends after a fault of the daemon itself: what it knows of its regions cannot be trusted any "
                "more; the copies on the other daemons take over. Start it again, and report this",
                exc_info=task.exception(),
            )
            self.faulty = True
            self._stopping.set()

    # ---- timers

    async def _ticks(self) -> None:
        dialed_s = 0.0
        while self._serving:
            self._perform(self._core.tick(now_ms(), now_us()))
            for line in self._utilization.feed(self._core.copies.used_bytes):
                self.log.log_line(line)
            if time.monotonic() - dialed_s >= DIAL_S:
                dialed_s = time.monotonic()
                self._dial()
            if self._leaving_since is not None and not self._stopping.is_set():
                self._continue_leaving(time.monotonic() - self._leaving_since)
            await asyncio.sleep(TICK_S)

    async def _continue_beginning(self) -> None:
        if self._serving:
            self._perform(self._core.memory_provided(now_ms()))

    async def _housekeeping(self) -> None:
        while True:
            try:
                removed = await self._workers.run(lambda: self._files.remove_stale_files(time.time()))
                self.log.logger.debug("removed %d stale files from the Global Directory", len(removed))
                gathered = await self._workers.run(lambda: self._gathering.gather(time.time()))
                self.log.logger.debug("gathered up the entries of %d removed regions", len(gathered))
            except DirectoryUnavailableError as error:
                self.log.logger.info("stale files of the Global Directory were not removed: %s", error)
            await asyncio.sleep(HOUSEKEEPING_S)

    def _continue_leaving(self, leaving_s: float) -> None:
        if leaving_s > CLIENTS_LEAVE_S:
            for client in {primary.use.client for primary in self._core.primaries.values()}:
                if client in self._clients:
                    self._clients[client].abort()
        if leaving_s > LEAVE_TIMEOUT_S:
            self.log.logger.error("not all regions could be moved away in %g s", LEAVE_TIMEOUT_S)
            self._stopping.set()

    def _last_copies(self) -> list[str]:
        """The regions whose listed copies are all here, or on daemons that do not answer."""
        core, found = self._core, []
        for name in sorted(core.copies):
            entry = core.directory.seen.get(name)
            others = [holder for holder in entry.holders() if not core.peers.dead(holder)] if entry else []
            if others == [core.me]:
                found.append(name)
        return found

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ToPeer(daemon, message):
                    connection = self._peers.get(daemon)
                    if connection is not None:
                        connection.send(message)
                case ToClient(client, message):
                    connection = self._clients.get(client)
                    if connection is not None:
                        connection.send(message)
                case Drop(client):
                    connection = self._clients.get(client)
                    if connection is not None:
                        connection.abort()
                case Unlink(daemon):
                    connection = self._peers.get(daemon)
                    if connection is not None:
                        connection.abort()
                case Log(level, text):
                    self.log.logger.log(LEVELS[level], "%s", text)
                case AskDirectory(number, request):
                    self._spawn(self._ask_directory(number, request))
                case Stop():
                    self._stopping.set()

    async def _ask_directory(self, number: int, request: DirectoryRequest) -> None:
        answer = await self._workers.ask(self._files, request)
        if self._serving:
            self._perform(self._core.directory_answered(now_ms(), number, answer))

    # ---- peers: of two daemons, the one with the lower number connects

    def _dial(self) -> None:
        for spec in self.config.daemons[self.spec.index + 1 :]:
            if spec.index not in self._peers and spec.index not in self._dialing:
                self._dialing.add(spec.index)
                self._spawn(self._dial_one(spec.index))

    async def _dial_one(self, index: int) -> None:
        spec = self.config.daemons[index]
        connection: DaemonConnection | None = None
        try:
            secret = await self._secrets.of(index)
            if secret is None:
                return
            connection = await connect(spec.address, spec.port, secret, self._identity)
            connection.send(self._hello)
            hello = await connection.first()
            if not isinstance(hello, RegionHello) or hello.role != "daemon" or hello.index != index:
                raise ProtocolError(f"daemon {index} did not introduce itself")
        except (StoreError, OSError, asyncio.TimeoutError) as error:
            if connection is not None:
                connection.abort()
            self.log.logger.debug("daemon %d cannot be reached: %s", index, error)
            return
        finally:
            self._dialing.discard(index)
        await self._peer(hello, connection)

    def _admit(self, connection: DaemonConnection) -> None:
        self._unproved[connection] = None
        if len(self._unproved) > MAX_UNPROVED:  # a legitimate client completes the handshake within milliseconds
            oldest = next(iter(self._unproved))
            del self._unproved[oldest]
            oldest.abort()
        self._spawn(self._introduced(connection))

    async def _introduced(self, connection: DaemonConnection) -> None:
        try:
            await connection.proved()
            hello = await connection.first()
            if not isinstance(hello, RegionHello) or hello.role not in ("daemon", "client", "admin"):
                raise ProtocolError("the peer did not introduce itself")
        except (ClusterMismatchError, AuthenticationError, ProtocolError) as error:
            connection.leave()
            self.log.logger.error("refused: %s: %s", type(error).__name__, error)
            return
        except (OSError, asyncio.TimeoutError) as error:
            connection.abort()
            self.log.logger.debug("a connection ended during its handshake: %s", error)
            return
        finally:
            self._unproved.pop(connection, None)
        connection.send(self._hello)
        if hello.report:
            self.log.logger.error("client %s reports: %s", hello.client, " ".join(hello.report[:MAX_REPORT].split()))
        if hello.role == "daemon":
            if 0 <= hello.index < self.spec.index:
                await self._peer(hello, connection)
            else:
                connection.abort()
        else:
            await self._client(hello.client, connection)

    async def _peer(self, hello: RegionHello, connection: DaemonConnection) -> None:
        index, incarnation = hello.index, hello.incarnation
        if hello.timeouts != self._hello.timeouts:
            connection.leave()
            self._refuse_timeouts(hello)
            return
        known = self._peers.get(index)
        if known is not None:
            known.abort()
            self._perform(self._core.unlinked(now_ms(), index))
        self._peers[index] = connection
        self.log.logger.debug("connected with daemon %d, %s", index, incarnation)
        self._perform(self._core.linked(now_ms(), index, incarnation))

        peer = f"daemon {index}"

        def receive(message: RegionMessage) -> None:
            if self._peers.get(index) is connection:
                self._step(peer, self._core.from_peer, index, message)
                if not isinstance(message, DaemonHeartbeat):
                    self.log.logger.log(5, "from daemon %d: %s", index, type(message).__name__)

        reason = "a fault"
        try:
            reason = await connection.run(receive)
        finally:
            if self._peers.get(index) is connection:
                del self._peers[index]
                self.log.logger.info("the connection with daemon %d ended: %s", index, reason)
                self._perform(self._core.unlinked(now_ms(), index))

    def _refuse_timeouts(self, hello: RegionHello) -> None:
        """Logged once for each life of that daemon, which tries again and again."""
        if hello.incarnation not in self._refused:
            self._refused.add(hello.incarnation)
            error = ClusterMismatchError(
                f"daemon {hello.index} has {hello.timeouts or 'other time-outs'}, this daemon has {self._hello.timeouts}"
            )
            self.log.logger.error("refused: ClusterMismatchError: %s", error)

    def _step(
        self,
        sender: str,
        step: Callable[[float, int, RegionMessage], list[Action]],
        number: int,
        message: RegionMessage,
    ) -> None:
        """An unexpected error over a message ends the connection of its sender, and nothing else."""
        try:
            actions = step(now_ms(), number, message)
        except Exception as error:
            self.log.logger.exception("%s sent a message that this daemon cannot process", sender)
            raise ProtocolError(f"{type(error).__name__}: {error}") from error
        self._perform(actions)

    # ---- clients

    async def _client(self, name: str, connection: DaemonConnection) -> None:
        self._next_client += 1
        number = self._next_client
        self._clients[number] = connection
        self._perform(self._core.client_came(now_ms(), number, name))

        sender = f"client {name}"

        def receive(message: RegionMessage) -> None:
            self._step(sender, self._core.from_client, number, message)

        try:
            reason = await connection.run(receive, waits_for_writing=True)
            self.log.logger.debug("client %s disconnected: %s", name, reason)
        finally:
            del self._clients[number]
            self._perform(self._core.client_gone(now_ms(), number))


def no_service(environment: Mapping[str, str]) -> ServiceFactory | None:
    return None


def main(
    words: Sequence[str] | None = None,
    hosted_service: Callable[[Mapping[str, str]], ServiceFactory | None] = no_service,
) -> int:
    """`hosted_service` reads from the environment which service this daemon hosts."""
    program = "python -m spark_jms.store.kinds.daemon"
    try:
        options = parse_start(sys.argv[1:] if words is None else words, program)
        if options.help:
            print(help_text(program, START_TABLE), end="")
            return 0
        daemon = Daemon(options, from_environment(os.environ), hosted_service(os.environ))
        _run(daemon)
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"the daemon cannot start: {error}", file=sys.stderr)
        return 1
    return int(daemon.faulty)


def now_ms() -> float:
    """Never goes back within one boot of the machine."""
    return time.clock_gettime(_CLOCK) * 1000.0


def now_us() -> int:
    """Since the epoch, for people."""
    return time.time_ns() // 1000


def _numeric(address: str) -> str:
    with contextlib.suppress(OSError):
        return socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0]  # type: ignore[return-value]
    return address


def _run(daemon: Daemon) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        import uvloop
    except ImportError:  # Windows
        asyncio.run(daemon.run())
        return
    if sys.version_info >= (3, 11):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(daemon.run())
    else:
        uvloop.install()
        asyncio.run(daemon.run())
