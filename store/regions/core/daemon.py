"""One daemon: events in, actions out. Pure.

The driver (the asyncio daemon, the simulator) calls one method for each event and carries out the actions that it
returns, in order. `now_ms` is a clock that never goes back; `now_us` is the time of day, for people.

    leaves           DaemonClock, Outgoing, DirectoryView, Peers, Clients, Copies
    regions served   Primaries: Primary, its Replication, its Followers
    copies kept      Replicas
    decisions        Opening, Reconciliation, Heartbeats, Leaving, RegionAdministration, LostRegions, StoreCounts

A part gets the leaves (`Shared`) and parts above it in this list. No part gets the DaemonCore, which only routes.

Features: R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, R11, R12 (docs/FEATURES.md)
"""

from __future__ import annotations

from functools import partial

from spark_jms.settings.store import DaemonSettings
from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.core.actions import (
    Action,
    AskDirectory,
    DaemonClock,
    Drop,
    Log,
    MemoryPort,
    Outgoing,
    Stop,
    ToClient,
    ToPeer,
    Unlink,
)
from spark_jms.store.regions.core.administration import Heartbeats, RegionAdministration, StoreCounts
from spark_jms.store.regions.core.copies import Copies, Shared
from spark_jms.store.regions.core.directory_view import DirectoryView
from spark_jms.store.regions.core.leaving import Leaving, LeavingState
from spark_jms.store.regions.core.opening import Opening
from spark_jms.store.regions.core.peers import Clients, Peers
from spark_jms.store.regions.core.primaries import Primaries
from spark_jms.store.regions.core.primary import Primary
from spark_jms.store.regions.core.replicas import LostRegions, Reconciliation, Replicas
from spark_jms.store.regions.protocol.messages import (
    Ack,
    Adopt,
    Begin,
    BreakOff,
    Close,
    Counted,
    DaemonHeartbeat,
    Daemons,
    Drain,
    Halt,
    MoveRequest,
    Notice,
    Open,
    Ping,
    ReadRegion,
    Refused,
    RegionMessage,
    Regions,
    Remove,
    RemoveRequest,
    Replicate,
    Shutdown,
    Stay,
    Stores,
    Unserved,
    Usage,
    WriteRegion,
)
from spark_jms.store.regions.protocol.region_entry import DirectoryAnswer, DirectoryListing, Holder

__all__ = [
    "Action",
    "AskDirectory",
    "DaemonCore",
    "DaemonSettings",
    "Drop",
    "Log",
    "MemoryPort",
    "Stop",
    "ToClient",
    "ToPeer",
    "Unlink",
]


class DaemonCore:
    def __init__(
        self,
        index: int,
        incarnation: str,
        count: int,
        memory_limit_bytes: int,
        memory: MemoryPort,
        settings: DaemonSettings | None = None,
        now_ms: float = 0.0,
        now_us: int = 0,
    ) -> None:
        self.index = index
        self.incarnation = incarnation
        self.me = me = Holder(index, incarnation)
        self.settings = settings = settings or DaemonSettings()
        self._clock = clock = DaemonClock(now_ms, now_us)
        self._out = out = Outgoing(me)
        self.directory = DirectoryView(out)
        self.peers = Peers(me, count, settings, clock, out, self.directory)
        self.copies = Copies(memory_limit_bytes, memory, clock, out)
        shared = Shared(me, settings, clock, out, self.directory, self.peers, self.copies)
        self._clients = Clients(settings, clock, out)
        self.primaries = Primaries(shared)
        self._replicas = Replicas(shared, self.primaries)
        self._opening = Opening(shared, self.primaries)
        self._reconciliation = Reconciliation(shared, self.primaries, self._replicas, self._opening)
        self._heartbeats = Heartbeats(shared, self.primaries)
        self._leaving = Leaving(shared, self.primaries, self._heartbeats)
        self._administration = RegionAdministration(shared, self.primaries, self._heartbeats, self._reconciliation)
        self._lost_regions = LostRegions(shared)
        self._counts = StoreCounts(shared, self.primaries)
        self._ticked_ms = now_ms
        self._audited_ms = now_ms

    @property
    def draining(self) -> bool:
        return self.peers.draining

    @property
    def leaving(self) -> LeavingState | None:
        return self._leaving.state

    def leave(self, force: bool) -> None:
        """Safely, or at once with `force`. The actions come with the next event's."""
        self._leaving.leave(force)

    # ---- events

    def tick(self, now_ms: float, now_us: int) -> list[Action]:
        """Every 20 to 100 ms."""
        passed_ms = now_ms - self._ticked_ms
        self._now(now_ms)
        self._clock.now_us, self._ticked_ms = now_us, now_ms
        self.primaries.budget.refill(passed_ms)
        self._heartbeats.tick()
        self._detect()
        self._clients.detect()
        self._administration.tick()  # before primaries answer for what it removes
        self._leaving.tick()
        self._reconciliation.doubts()
        self.primaries.tick()
        if self._clock.now_ms - self._audited_ms >= self.settings.audit_ms:
            self._audited_ms = self._clock.now_ms
            self.directory.entries(self._listed)
        self._continue_beginning()
        self.copies.tick()
        self._leaving.stop_if_empty()
        return self._out.take()

    def memory_provided(self, now_ms: float) -> list[Action]:
        """The memory port has an answer for a region that waits for its memory."""
        self._now(now_ms)
        self._continue_beginning()
        return self._out.take()

    def _continue_beginning(self) -> None:
        self._replicas.tick()
        self._opening.tick()

    def directory_answered(self, now_ms: float, number: int, answer: DirectoryAnswer) -> list[Action]:
        """The answer to the AskDirectory with this number. A failure is an answer."""
        self._now(now_ms)
        self.directory.answered(number, answer)
        if answer is False:  # perhaps a daemon has ended
            self._detect()
            self.primaries.tick()
        return self._out.take()

    def _listed(self, listing: DirectoryListing | DirectoryUnavailableError) -> None:
        if isinstance(listing, DirectoryListing):
            self._reconciliation.audit(listing)
            self._administration.audit(listing)
            self._lost_regions.audit(listing)
            self._counts.audit(listing)

    def _detect(self) -> None:
        self.peers.detect()
        self._reconciliation.dead_primaries()

    def linked(self, now_ms: float, daemon: int, incarnation: str) -> list[Action]:
        """A new connection to another daemon, whose first frame named its incarnation."""
        self._now(now_ms)
        self.peers.linked(daemon, incarnation)
        self._heartbeats.send(daemon)
        self.primaries.linked(daemon)
        self._administration.linked(daemon)
        self._counts.linked(daemon)
        return self._out.take()

    def unlinked(self, now_ms: float, daemon: int) -> list[Action]:
        self._now(now_ms)
        self.peers.unlinked(daemon)
        return self._out.take()

    def client_came(self, now_ms: float, client: int, name: str) -> list[Action]:
        self._now(now_ms)
        self._clients.came(client, name)
        return self._out.take()

    def client_gone(self, now_ms: float, client: int) -> list[Action]:
        self._now(now_ms)
        if self._clients.left(client):
            self._opening.client_left(client)
            self.primaries.client_left(client)
        return self._out.take()

    def from_peer(self, now_ms: float, daemon: int, message: RegionMessage) -> list[Action]:
        self._now(now_ms)
        self.peers.heard(daemon)
        self._peer_message(daemon, message)
        return self._out.take()

    def from_client(self, now_ms: float, client: int, message: RegionMessage) -> list[Action]:
        self._now(now_ms)
        if self._clients.heard(client):
            request = getattr(message, "request", 0)
            try:
                self._client_message(client, message)
            except ValueError as error:
                self._out.log(1, f"client {self._out.clients[client]}: {error}")
                self._out.fail(client, request, "ProtocolError", str(error))
        return self._out.take()

    def _now(self, now_ms: float) -> None:
        clock = self._clock
        passed_ms = now_ms - clock.now_ms
        if passed_ms > 0:
            clock.now_ms = now_ms
        if passed_ms > self.settings.failure_timeout_ms / 2:
            self._stood_still()

    def _stood_still(self) -> None:
        self._out.log(2, "this daemon stood still for a while")
        self.peers.stood_still()
        self._clients.stood_still()
        self.primaries.doubt_all()

    # ---- messages

    def _peer_message(self, daemon: int, message: RegionMessage) -> None:
        match message:
            case DaemonHeartbeat():
                if self.peers.heartbeat(daemon, message):
                    self.primaries.doubt_secondary(daemon)
                if self.peers.is_first(daemon):  # so a new connection is confirmed after one round trip
                    self._heartbeats.send(daemon)
            case Replicate():
                self._replicas.replicate(daemon, message)
            case Ack(stream, seq):
                if self.primaries.acked(self.peers.holder_of(daemon), stream, seq):
                    self._opening.tick()
            case Refused(stream, reason):
                self.primaries.refused(self.peers.holder_of(daemon), stream, reason)
            case Begin():
                self._replicas.begin(daemon, message)
            case Adopt():
                self._replicas.adopt(daemon, message)
            case MoveRequest(name):
                self._opening.move(daemon, name)
            case Notice(name):
                self._reconciliation.region(name)
            case Usage(name, used_bytes):
                self._administration.used_elsewhere(name, used_bytes)
            case Counted(row):
                self._counts.reported_elsewhere(row)
            case RemoveRequest():
                self._administration.remove_here(daemon, message)
            case Unserved(name):
                self._administration.unserved(daemon, name)
            case Drain():
                self._leaving.leave(force=False)
            case Stay():
                self._leaving.stay()
            case Halt():
                self._leaving.leave(force=True)
            case _:
                self._out.log(1, f"daemon {daemon} sent a {type(message).__name__}, which only clients send")

    def _client_message(self, client: int, message: RegionMessage) -> None:
        match message:
            case WriteRegion():
                self._write(client, message)
            case Ping(used, counts):
                self._administration.used(client, used)
                if counts is not None:
                    self._counts.reported(client, counts)
            case ReadRegion():
                self._read(client, message)
            case Open():
                self._opening.request(client, message)
            case Close(request, name):
                primary = self.primaries.get(name)
                if primary is not None and primary.use.client == client:
                    primary.close(partial(self._out.reply, client, request))
                else:
                    self._out.reply(client, request)
            case Regions():
                self._administration.regions(client, message)
            case Daemons(request):
                self._administration.daemons(client, request)
            case Stores(request):
                self._counts.show(client, request)
            case Remove():
                self._administration.remove(client, message)
            case Shutdown():
                self._leaving.shutdown(client, message)
            case BreakOff():
                self._leaving.break_off(client, message)
            case _:
                raise ValueError(f"a client must not send a {type(message).__name__}")

    def _write(self, client: int, message: WriteRegion) -> None:
        primary = self._opened_by(client, message)
        error = primary.write(message) if primary is not None else None
        if error is not None:
            self._out.fail(client, message.request, error, f"region {message.name}")

    def _read(self, client: int, message: ReadRegion) -> None:
        primary = self._opened_by(client, message)
        if primary is None:
            return
        data = primary.read(message)
        if data is not None:
            self._out.reply(client, message.request, data)

    def _opened_by(self, client: int, message: WriteRegion | ReadRegion) -> Primary | None:
        primary = self.primaries.get(message.name)
        if primary is not None and primary.use.client == client and primary.use.epoch == message.epoch:
            return primary
        detail = f"region {message.name} is not open here at epoch {message.epoch}"
        self._out.fail(client, message.request, "FencedError", detail)
        return None
