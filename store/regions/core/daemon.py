"""One daemon (R1-R12): its peers, its clients, its memory, and time. Pure: events in, actions out.

Whoever drives it (the asyncio shell, the simulator) calls one method for each event and carries out the actions that
it returns, in order. `now_ms` is a clock that never goes back; `now_us` tells people the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.actions import (
    Action,
    DaemonSettings,
    Drop,
    Log,
    MemoryPort,
    Stop,
    ToClient,
    ToPeer,
    Unlink,
)
from spark_jms.store.regions.core.directory import DirectoryPort, Holder, RegionEntry
from spark_jms.store.regions.core.opening import Opening
from spark_jms.store.regions.core.placement import Candidate
from spark_jms.store.regions.core.primary import Follower, Primary
from spark_jms.store.regions.core.protocol import (
    Ack,
    Adopt,
    Begin,
    Close,
    DaemonHeartbeat,
    Daemons,
    Drain,
    Failure,
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
    Reply,
    Shutdown,
    Usage,
    WriteRegion,
)  # fmt: skip
from spark_jms.store.regions.core.replica import Copy, Replicas
from spark_jms.store.regions.core.settling import Settling
from spark_jms.store.regions.core.shutdown import Administration

__all__ = [
    "Action", "DaemonCore", "Drop", "Log", "MemoryPort", "DaemonSettings", "Stop", "ToClient", "ToPeer", "Unlink",
]  # fmt: skip


@dataclass
class Peer:
    holder: Holder | None = None  # None before it was linked for the first time
    linked: bool = False
    linked_ms: float = 0.0
    up: bool = False
    heard_ms: float = 0.0
    confirmed_ms: float = -1e9  # it has certainly heard from here what was sent then
    their_ms: float = -1.0  # the clock in its last heartbeat, echoed in ours
    beat: DaemonHeartbeat | None = None


@dataclass
class DaemonCore:
    index: int
    incarnation: str
    count: int
    memory_limit_bytes: int
    directory: DirectoryPort
    memory: MemoryPort
    settings: DaemonSettings = field(default_factory=DaemonSettings)
    now_ms: float = 0.0
    now_us: int = 0

    def __post_init__(self) -> None:
        self.me = Holder(self.index, self.incarnation)
        self.peers: dict[int, Peer] = {i: Peer(heard_ms=self.now_ms) for i in range(self.count) if i != self.index}
        self.clients: dict[int, str] = {}
        self._client_heard: dict[int, float] = {}
        self.copies: dict[str, Copy] = {}
        self._used_bytes = 0
        self.primaries: dict[str, Primary] = {}
        self.streams: dict[str, tuple[Primary, Follower]] = {}
        self.entries_seen: Mapping[str, RegionEntry] = {}  # as the last audit found them, for what is told to people
        self.settling = Settling(self)
        self.look, self.swap = self.settling.look, self.settling.swap
        self.replicas = Replicas(self)
        self.opening = Opening(self)
        self.administration = Administration(self)
        self.draining = False
        self.stopped = False
        self.started_us = self.now_us
        self._out: list[Action] = []
        self._ids = 0
        self._budget = 0.0
        self._ticked_ms = self.now_ms
        self._beat_ms = -1e9
        self._audit_ms = self.now_ms

    # ---- events

    def tick(self, now_ms: float, now_us: int) -> list[Action]:
        """Every 20 to 100 ms."""
        slept_ms = now_ms - self._ticked_ms
        self._now(now_ms)
        self.now_us, self._ticked_ms = now_us, now_ms
        budget = self.settings.resilver_bytes_per_s * slept_ms / 1000.0
        self._budget = min(self._budget + budget, self.settings.resilver_bytes_per_s / 4)
        self._beat()
        self._detect()
        self._guard(self.administration.tick)  # first: what it removes is not answered for any more
        for name in self.settling.doubtful():
            self._guard(self.noticed, name)
        for primary in list(self.primaries.values()):
            if self.primaries.get(primary.entry.name) is primary:
                self._guard(primary.tick)
        if now_ms - self._audit_ms >= self.settings.audit_ms:
            self._audit_ms = now_ms
            self._guard(self._audit)
        self._guard(self.opening.tick)
        if self.draining and not self.copies and not self.stopped:
            self._halt("all regions are elsewhere")
        return self._take()

    def linked(self, now_ms: float, daemon: int, incarnation: str) -> list[Action]:
        """A new connection to another daemon, whose first frame told its incarnation."""
        self._now(now_ms)
        peer = self.peers[daemon]
        holder = Holder(daemon, incarnation)
        if peer.holder is not None and peer.holder != holder:
            self.peers[daemon] = peer = Peer()
        peer.holder, peer.linked, peer.heard_ms, peer.linked_ms = holder, True, self.now_ms, self.now_ms
        self.to_peer(daemon, self.heartbeat(daemon))
        for primary in list(self.primaries.values()):
            primary.resend(daemon)
        self.administration.tell(daemon)
        return self._take()

    def unlinked(self, now_ms: float, daemon: int) -> list[Action]:
        self._now(now_ms)
        self.peers[daemon].linked = False
        return self._take()

    def client_came(self, now_ms: float, client: int, name: str) -> list[Action]:
        self._now(now_ms)
        self.clients[client] = name
        self._client_heard[client] = self.now_ms
        return self._take()

    def client_gone(self, now_ms: float, client: int) -> list[Action]:
        self._now(now_ms)
        if self.clients.pop(client, None) is not None:
            self._client_heard.pop(client, None)
            self.opening.forget(client)
            for primary in list(self.primaries.values()):
                if primary.client == client:
                    primary.close()
        return self._take()

    def from_peer(self, now_ms: float, daemon: int, message: RegionMessage) -> list[Action]:
        self._now(now_ms)
        peer = self.peers[daemon]
        peer.heard_ms = self.now_ms
        self._guard(self._peer_message, daemon, peer, message)
        return self._take()

    def from_client(self, now_ms: float, client: int, message: RegionMessage) -> list[Action]:
        self._now(now_ms)
        if client in self.clients:
            self._client_heard[client] = self.now_ms
            try:
                self._client_message(client, message)
            except DirectoryUnavailableError as error:
                self.fail(client, getattr(message, "request", 0), "DirectoryUnavailableError", list(error.args))
            except ValueError as error:
                self.log(1, f"client {self.clients[client]}: {error}")
                self.fail(client, getattr(message, "request", 0), "ProtocolError", [str(error)])
        return self._take()

    # ---- messages

    def _peer_message(self, daemon: int, peer: Peer, message: RegionMessage) -> None:
        match message:
            case DaemonHeartbeat():
                peer.beat, peer.up, peer.their_ms = message, True, message.clock_ms
                lapsed = not self.confirmed(daemon)
                peer.confirmed_ms = max(peer.confirmed_ms, message.echo_ms)
                if lapsed and self.confirmed(daemon):
                    self._confirmed_again(daemon)
            case Replicate():
                self.replicas.replicate(daemon, message)
            case Ack(stream, seq):
                found = self._stream(stream)
                if found is not None and found[1].holder == self.holder_of(daemon):
                    found[0].acked(found[1], seq)
            case Refused(stream, reason):
                self._refused(daemon, stream, reason)
            case Begin():
                self.replicas.begin(daemon, message)
            case Adopt():
                self.replicas.adopt(daemon, message)
            case MoveRequest(name):
                self.opening.move(daemon, name)
            case Notice(name):
                self.noticed(name)
            case Usage(name, used_bytes):
                self.administration.used[name] = used_bytes
            case RemoveRequest():
                self.administration.remove_here(message)
            case Drain():
                self.leave(force=False)
            case Halt():
                self.leave(force=True)
            case _:
                self.log(1, f"daemon {daemon} sent a {type(message).__name__}")

    def _client_message(self, client: int, message: RegionMessage) -> None:
        match message:
            case WriteRegion(request, name, epoch, _):
                primary = self._opened_by(client, request, name, epoch)
                if primary is not None:
                    error = primary.write(message)
                    if error:
                        self.fail(client, request, error, [f"region {name}"])
            case ReadRegion(request, name, epoch):
                primary = self._opened_by(client, request, name, epoch)
                if primary is not None:
                    data = primary.read(message)
                    if data is None:
                        self.fail(client, request, "FencedError", [f"region {name}: this daemon cannot make sure"])
                    else:
                        self.reply(client, request, data)
            case Open():
                self.opening.request(client, message)
            case Close(request, name):
                primary = self.primaries.get(name)
                if primary is not None and primary.client == client:
                    primary.close()
                self.reply(client, request)
            case Regions():
                self.administration.regions(client, message)
            case Daemons(request):
                self.administration.daemons(client, request)
            case Remove():
                self.administration.remove(client, message)
            case Shutdown():
                self.administration.shutdown(client, message)
            case Ping(used):
                self.administration.told(client, used)
            case _:
                raise ValueError(f"a client does not send a {type(message).__name__}")

    def _opened_by(self, client: int, request: int, name: str, epoch: int) -> Primary | None:
        primary = self.primaries.get(name)
        if primary is not None and primary.client == client and primary.open_epoch == epoch:
            return primary
        self.fail(client, request, "FencedError", [f"region {name} is not open here at epoch {epoch}"])
        return None

    def _stream(self, stream: str) -> tuple[Primary, Follower] | None:
        found = self.streams.get(stream)
        if (
            found is None
            or self.primaries.get(found[0].entry.name) is not found[0]
            or found[1] not in found[0].followers
        ):
            return None
        return found

    def _refused(self, daemon: int, stream: str, reason: str) -> None:
        found = self._stream(stream)
        if found is None or found[1].holder != self.holder_of(daemon):
            return
        primary, follower = found
        if reason == "memory":
            primary.declined.add(daemon)
        if primary.listed and not primary.refresh():
            return
        primary.remove(follower)

    # ---- what is due

    def _now(self, now_ms: float) -> None:
        slept_ms = now_ms - self.now_ms
        self.now_ms = max(self.now_ms, now_ms)
        if slept_ms > self.settings.failure_timeout_ms / 2:
            self._woke()

    def _woke(self) -> None:
        """This process stood still: the silence of the others is its own."""
        self.log(2, "this daemon stood still for a while")
        for peer in self.peers.values():
            peer.heard_ms = self.now_ms
        for client in self._client_heard:
            self._client_heard[client] = self.now_ms
        for primary in list(self.primaries.values()):
            primary.doubt = primary.listed or primary.doubt

    def _confirmed_again(self, daemon: int) -> None:
        """It did not hear from here for a while, and may have taken over meanwhile: that it hears again proves nothing."""
        for primary in self.primaries.values():
            if primary.entry.secondary is not None and primary.entry.secondary.daemon == daemon:
                primary.doubt = primary.listed or primary.doubt

    def _beat(self) -> None:
        if self.now_ms - self._beat_ms >= self.settings.heartbeat_ms:
            self._beat_ms = self.now_ms
            for index, peer in self.peers.items():
                if peer.linked:
                    self.to_peer(index, self.heartbeat(index))

    def heartbeat(self, to: int) -> DaemonHeartbeat:
        peer = self.peers.get(to)
        opened = sum(p.entry.opener is not None for p in self.primaries.values())
        seen = (self.entries_seen.get(name) for name in self.replicas.by_name)
        replicas_open = sum(entry is not None and entry.opener is not None for entry in seen)
        return DaemonHeartbeat(
            self.used_bytes(), self.memory_limit_bytes, self.draining, self.started_us, self.now_us,
            len(self.copies) - opened - replicas_open, opened, replicas_open,
            sum(p.resilvering for p in self.primaries.values()), self.now_ms,
            peer.their_ms if peer and not self.settling.doubts(to) else -1.0,
        )  # fmt: skip

    def _detect(self) -> None:
        """Marks peers that fell silent, takes over from dead primaries, drops clients that fell silent (R10)."""
        for index, peer in self.peers.items():
            if peer.up and self._silent(peer, index):
                peer.up = False
                self.log(1, f"daemon {index} does not answer")
            if peer.linked and self.now_ms - max(peer.heard_ms, peer.linked_ms) > self.settings.failure_timeout_ms:
                peer.linked_ms = self.now_ms
                self._out.append(Unlink(index))
        for name, replica in list(self.replicas.by_name.items()):
            holder = self.holder_of(replica.primary)
            if holder is None or self.dead(holder):
                self._guard(self.noticed, name)
        for client, heard_ms in list(self._client_heard.items()):
            if self.now_ms - heard_ms > self.settings.client_timeout_ms:
                self.log(1, f"client {self.clients.get(client)} does not answer")
                self._out.append(Drop(client))
                self._client_heard[client] = self.now_ms

    def _silent(self, peer: Peer, index: int) -> bool:
        if self.now_ms - peer.heard_ms > self.settings.failure_timeout_ms:
            return True
        return not peer.linked and not self.maybe_running(peer.holder or Holder(index, ""))

    def noticed(self, name: str) -> None:
        """Read what the directory says of this region and do what follows from it."""
        known, entry = self.look(name)
        if not known:
            return
        primary = self.primaries.get(name)
        if primary is not None:
            if primary.listed:
                primary.refresh()
        elif entry is not None and entry.primary == self.me:
            if self.take_up(entry) is None and name not in self.primaries:
                self._unmake(entry)
        elif entry is not None and entry.secondary == self.me and self._has(entry):
            if self.dead(entry.primary):
                self._promote(entry)
        elif entry is not None and entry.secondary == self.me and entry.epoch == 1:
            if self.dead(entry.primary) and self.swap(name, entry, None):
                self.log(2, f"region {name}: its maker died before anybody opened it, removed")
        elif name in self.copies and self.abandoned(name):
            self._give_up(name, entry)
        self.opening.tick()

    def _unmake(self, entry: RegionEntry) -> None:
        """Made after it was given up: nobody answered then. There is no copy, and nobody has opened it."""
        if entry.opener is None and self.swap(entry.name, entry, None):
            self.log(2, f"region {entry.name}: made too late, removed")

    def _give_up(self, name: str, entry: RegionEntry | None) -> None:
        """Frees a copy that is not listed; if its primary may be listing it, dead or not, not before that has failed."""
        replica = self.replicas.by_name.get(name)
        if (
            entry is not None
            and entry.region_id == self.copies[name].region_id
            and (replica is None or replica.primary == entry.primary.daemon)
            and (self.me in entry.holders() or not self.swap(name, entry, rules.renounced(entry, self.me)))
        ):
            return
        self.free_copy(name)

    def _has(self, entry: RegionEntry) -> bool:
        copy = self.copies.get(entry.name)
        return copy is not None and copy.region_id == entry.region_id

    def _promote(self, entry: RegionEntry) -> None:
        new = rules.promoted(entry, self.me)
        if self.swap(entry.name, entry, new):
            self.log(1, f"region {entry.name}: took over from daemon {entry.primary.daemon}")
            self.take_up(new)

    def take_up(self, entry: RegionEntry) -> Primary | None:
        """The directory names this daemon primary, so its copy is complete."""
        primary = self.primaries.get(entry.name)
        if primary is not None:
            return primary if primary.listed and primary.entry.region_id == entry.region_id else None
        copy = self.copies.get(entry.name)
        if copy is None or copy.region_id != entry.region_id:
            return None
        self.replicas.forget(entry.name)
        self.primaries[entry.name] = primary = Primary(self, entry, copy)
        return primary

    def abandoned(self, name: str) -> bool:
        """A copy that the directory does not list is kept only while somebody fills it."""
        replica = self.replicas.by_name.get(name)
        if replica is None:
            return True
        holder = self.holder_of(replica.primary)
        quiet_ms = self.now_ms - replica.heard_ms
        return holder is None or self.dead(holder) or quiet_ms > self.settings.failure_timeout_ms

    def _audit(self) -> None:
        """Copies and directory are compared once a second: whatever a lost message left behind is mended here."""
        self.entries_seen = self.directory.entries()
        self.administration.keep_used(self.entries_seen)
        self.streams = {f.stream: (p, f) for p in self.primaries.values() for f in p.followers}
        listed = [name for name, entry in self.entries_seen.items() if self.me in entry.holders()]
        for name in dict.fromkeys((*listed, *self.copies)):
            self._guard(self.noticed, name)

    def leave(self, force: bool) -> None:
        if force:
            self._halt("by force")
        elif not self.draining:
            self.draining = True
            self._beat_ms = -1e9
            self.log(2, "shutting down: regions move to other daemons")

    def stay(self, reason: str) -> None:
        self.draining = False
        self._beat_ms = -1e9
        self.log(1, f"the shutdown was given up, this daemon stays: {reason}")

    def resilvers_anywhere(self) -> bool:
        beats = (peer.beat.resilvers for peer in self.peers.values() if peer.up and peer.beat is not None)
        return any(primary.resilvering for primary in self.primaries.values()) or any(beats)

    def _halt(self, reason: str) -> None:
        self.stopped = True
        self.log(2, f"stopped, {reason}")
        self._out.append(Stop())

    # ---- memory

    def used_bytes(self) -> int:
        return self._used_bytes

    def free_bytes(self) -> int:
        return self.memory_limit_bytes - self.used_bytes()

    def allocate_copy(self, name: str, region_id: str, size: int) -> Copy | None:
        if size > self.free_bytes():
            return None
        try:
            memory = self.memory.allocate(region_id, size)
        except MemoryError:
            self.log(1, f"region {name}: the operating system gave no {size} bytes of shared memory")
            return None
        self.copies[name] = copy = Copy(name, region_id, size, memory)
        self._used_bytes += size
        return copy

    def free_copy(self, name: str) -> None:
        copy = self.copies.pop(name)
        self._used_bytes -= copy.size
        self.replicas.forget(name)
        self.memory.free(copy.region_id)

    def may_resilver(self) -> bool:
        return self._budget > 0

    def spend_resilver(self, size: int) -> None:
        self._budget -= size

    def busy_resilvering(self) -> bool:
        return sum(p.resilvering for p in self.primaries.values()) >= self.settings.resilvers_at_once

    # ---- peers

    def holder_of(self, index: int) -> Holder | None:
        if index == self.index:
            return self.me
        peer = self.peers.get(index)
        return peer.holder if peer is not None else None

    def dead(self, holder: Holder) -> bool:
        """Not answering, or in another life by now. Wrong suspicion costs a copy, never a write."""
        if holder.daemon == self.index:
            return holder != self.me
        peer = self.peers.get(holder.daemon)
        if peer is None:
            return True
        if peer.holder is not None and peer.holder != holder:
            return True
        if peer.up:
            return False
        return self.now_ms - peer.heard_ms > self.settings.failure_timeout_ms or not self.maybe_running(holder)

    def maybe_running(self, holder: Holder) -> bool:
        if holder.daemon == self.index:
            return holder == self.me
        try:
            return self.directory.running(holder)
        except DirectoryUnavailableError:
            return True

    def confirmed(self, index: int) -> bool:
        peer = self.peers.get(index)
        return peer is not None and self.now_ms - peer.confirmed_ms < self.settings.failure_timeout_ms * 0.5

    def is_draining(self, index: int) -> bool:
        peer = self.peers.get(index)
        return self.draining if index == self.index else bool(peer and peer.up and peer.beat and peer.beat.draining)

    def anyone_draining(self) -> bool:
        return self.draining or any(self.is_draining(index) for index in self.peers)

    def candidates(self, with_me: bool = False) -> Mapping[int, Candidate]:
        found = {
            index: Candidate(index, peer.beat.limit_bytes - peer.beat.used_bytes, peer.beat.draining)
            for index, peer in self.peers.items()
            if peer.up and peer.beat is not None
        }
        if with_me:
            found[self.index] = Candidate(self.index, self.free_bytes(), self.draining)
        return found

    # ---- actions

    def notify(self, daemon: int, name: str) -> None:
        if daemon == self.index:
            self.noticed(name)
        else:
            self.to_peer(daemon, Notice(name))

    def to_peer(self, daemon: int, message: RegionMessage) -> None:
        peer = self.peers.get(daemon)  # None: an earlier life of this one is meant
        if peer is not None and peer.linked:
            self._out.append(ToPeer(daemon, message))

    def to_client(self, client: int, message: RegionMessage) -> None:
        if client in self.clients:
            self._out.append(ToClient(client, message))

    def reply(self, client: int, request: int, value: Any = None) -> None:
        self.to_client(client, Reply(request, value))

    def fail(self, client: int, request: int, error: str, arguments: list[Any]) -> None:
        self.to_client(client, Failure(request, error, arguments))

    def log(self, level: int, text: str) -> None:
        self._out.append(Log(level, text))

    def new_id(self) -> str:
        """Never used before in this cluster: an incarnation is used once."""
        self._ids += 1
        return f"{self.index}-{self.incarnation}-{self._ids}"

    def _guard(self, step: Callable[..., None], *arguments: Any) -> None:
        """The directory may be away for a while; whatever needs it is tried again on a later tick."""
        try:
            step(*arguments)
        except DirectoryUnavailableError as error:
            self.log(1, str(error))

    def _take(self) -> list[Action]:
        out, self._out = self._out, []
        return out
