"""The other daemons: which are up, confirmed or leaving, and which of them gets a copy. And the clients of this one. Pure.

Theory. A daemon is confirmed while it has certainly heard this daemon lately: it echoes our clock in its heartbeats. A
confirmed secondary does not take over, so this daemon may serve reads without asking the directory.

Peers and Clients are leaves of the daemon core; placement is functions of the candidates.

Features: R4, R9, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_jms.settings.store import DaemonSettings
from spark_jms.store.regions.core.actions import DaemonClock, Drop, Outgoing, Unlink
from spark_jms.store.regions.core.directory_view import DirectoryView
from spark_jms.store.regions.protocol.messages import DaemonHeartbeat
from spark_jms.store.regions.protocol.region_entry import NO_LIFE, Holder

SERVICE = "service "  # begins the name of a client that is part of a daemon: it closes its regions when that one leaves


@dataclass(frozen=True)
class Candidate:
    """A running daemon, according to its heartbeat."""

    index: int
    free_bytes: int
    draining: bool = False


class HeldCopies(NamedTuple):
    """The copies of one region, and the daemons that hold them."""

    size: int
    holders: tuple[int, ...]


@dataclass
class Peer:
    holder: Holder | None = None  # None until the first connection
    linked_ms: float = 0.0
    up: bool = False
    heard_ms: float = 0.0
    confirmed_ms: float = -1e9  # it has certainly heard what this daemon sent then
    their_ms: float = -1.0  # the clock in its last heartbeat; ours echoes it
    beat: DaemonHeartbeat | None = None
    beaten: bool = False  # a heartbeat came through the present connection


class Peers:
    def __init__(
        self,
        me: Holder,
        count: int,
        settings: DaemonSettings,
        clock: DaemonClock,
        out: Outgoing,
        directory: DirectoryView,
    ) -> None:
        self.me = me
        self.count = count
        self.draining = False  # this daemon is leaving safely
        self.waits_for = ""  # while it waits to leave: for which memory
        self.by_index = {i: Peer(heard_ms=clock.now_ms) for i in range(count) if i != me.daemon}
        self._settings = settings
        self._clock = clock
        self._out = out
        self._directory = directory

    # ---- events

    def linked(self, index: int, incarnation: str) -> None:
        peer, holder = self.by_index[index], Holder(index, incarnation)
        if peer.holder is not None and peer.holder != holder:
            self.by_index[index] = peer = Peer()
        self._out.daemons.add(index)
        peer.holder, peer.heard_ms, peer.linked_ms = holder, self._clock.now_ms, self._clock.now_ms
        peer.beaten = False

    def unlinked(self, index: int) -> None:
        self._out.daemons.discard(index)

    def heard(self, index: int) -> None:
        self.by_index[index].heard_ms = self._clock.now_ms

    def is_first(self, index: int) -> bool:
        """Whether no heartbeat has come through this connection before; asks once for each."""
        peer = self.by_index[index]
        first, peer.beaten = not peer.beaten, True
        return first

    def heartbeat(self, index: int, beat: DaemonHeartbeat) -> bool:
        """True when this daemon was not confirmed before and is now."""
        peer = self.by_index[index]
        peer.beat, peer.up, peer.their_ms = beat, True, beat.clock_ms
        lapsed = not self.confirmed(index)
        peer.confirmed_ms = max(peer.confirmed_ms, beat.echo_ms)
        return lapsed and self.confirmed(index)

    def stood_still(self) -> None:
        """This process stood still: the silence of the others is its own."""
        for peer in self.by_index.values():
            peer.heard_ms = self._clock.now_ms

    def detect(self) -> None:
        """Marks the daemons that fell silent, and closes connections through which nothing comes."""
        now_ms, timeout_ms = self._clock.now_ms, self._settings.failure_timeout_ms
        for index, peer in self.by_index.items():
            silent, linked = now_ms - peer.heard_ms > timeout_ms, index in self._out.daemons
            if peer.up and (silent or not (linked or self.may_run(peer.holder or Holder(index, NO_LIFE)))):
                peer.up = False
                self._out.log(1, f"daemon {index} does not answer")
            if silent and linked and now_ms - peer.linked_ms > timeout_ms:
                peer.linked_ms = now_ms
                self._out.add(Unlink(index))

    # ---- questions

    def any_up(self) -> bool:
        return any(peer.up for peer in self.by_index.values())

    def holder_of(self, index: int) -> Holder | None:
        """The current incarnation of this daemon, as far as it is known."""
        if index == self.me.daemon:
            return self.me
        peer = self.by_index.get(index)
        return peer.holder if peer is not None else None

    def dead(self, holder: Holder) -> bool:
        """Whether it does not answer or has been restarted since. A wrong suspicion costs a copy, never a write."""
        if holder.daemon == self.me.daemon:
            return holder != self.me
        peer = self.by_index.get(holder.daemon)
        if peer is None or (peer.holder is not None and peer.holder != holder):
            return True
        if peer.up:
            return False
        return self._clock.now_ms - peer.heard_ms > self._settings.failure_timeout_ms or not self.may_run(holder)

    def may_run(self, holder: Holder) -> bool:
        """False only when this incarnation has certainly ended."""
        if holder.daemon == self.me.daemon:
            return holder == self.me
        return holder.incarnation != NO_LIFE and self._directory.may_run(holder)

    def ended(self, index: int) -> bool:
        """Whether this daemon certainly does not run, or has not been there since this one started."""
        peer = self.by_index[index]
        if peer.holder is None:
            return self._clock.now_ms - peer.heard_ms > self._settings.failure_timeout_ms
        return not self.may_run(peer.holder)

    def confirmed(self, index: int) -> bool:
        peer = self.by_index.get(index)
        return peer is not None and self._clock.now_ms - peer.confirmed_ms < self._settings.failure_timeout_ms * 0.5

    def is_draining(self, index: int) -> bool:
        peer = self.by_index.get(index)
        return self.draining if index == self.me.daemon else bool(peer and peer.up and peer.beat and peer.beat.draining)

    def any_draining(self) -> bool:
        return self.draining or any(self.is_draining(index) for index in self.by_index)

    def any_resilvering(self) -> bool:
        return any(beat.resilvers for beat in self._beats().values())

    def candidates(self) -> Mapping[int, Candidate]:
        """The other daemons that are up, for placement."""
        return {
            index: Candidate(index, beat.limit_bytes - beat.used_bytes, beat.draining)
            for index, beat in self._beats().items()
        }

    def _beats(self) -> Mapping[int, DaemonHeartbeat]:
        return {i: peer.beat for i, peer in self.by_index.items() if peer.up and peer.beat is not None}


class Clients:
    """The clients of one daemon, and which of them fell silent."""

    def __init__(self, settings: DaemonSettings, clock: DaemonClock, out: Outgoing) -> None:
        self._settings = settings
        self._clock = clock
        self._out = out
        self._heard_ms: dict[int, float] = {}

    def came(self, client: int, name: str) -> None:
        self._out.clients[client] = name
        self._heard_ms[client] = self._clock.now_ms

    def left(self, client: int) -> bool:
        """False when it had left before."""
        self._heard_ms.pop(client, None)
        return self._out.clients.pop(client, None) is not None

    def heard(self, client: int) -> bool:
        """False when it has left."""
        known = client in self._heard_ms
        if known:
            self._heard_ms[client] = self._clock.now_ms
        return known

    def stood_still(self) -> None:
        """This process stood still: the silence of the clients is its own."""
        self._heard_ms = dict.fromkeys(self._heard_ms, self._clock.now_ms)

    def detect(self) -> None:
        """Drops the clients that fell silent."""
        now_ms = self._clock.now_ms
        for client, heard_ms in self._heard_ms.items():
            if now_ms - heard_ms > self._settings.client_timeout_ms:
                self._out.log(1, f"client {self._out.clients.get(client)} does not answer")
                self._out.add(Drop(client))
                self._heard_ms[client] = now_ms


# -- which daemon gets a copy ------------------------------------------------------------------------------------------


def next_daemon(
    after: int, count: int, candidates: Mapping[int, Candidate], size: int, exclude: Collection[int] = ()
) -> int | None:
    """The next candidate after `after`, in the order of rs_daemons.cfg and wrapping, that is not leaving and has room."""
    for step in range(1, count):
        index = (after + step) % count
        candidate = candidates.get(index)
        if candidate and index not in exclude and not candidate.draining and candidate.free_bytes >= size:
            return index
    return None


def with_room(candidates: Mapping[int, Candidate], index: int, size: int) -> Mapping[int, Candidate]:
    """The candidates, counting as free what a copy on daemon `index` takes there now."""
    held = candidates.get(index)
    if held is None:
        return candidates
    return {**candidates, index: Candidate(index, held.free_bytes + size, held.draining)}


def refusal_to_leave(
    leaving: Collection[int],
    copies: Mapping[str, HeldCopies],
    openers: Mapping[str, str],
    candidates: Mapping[int, Candidate],
) -> str:
    """Steps 1 and 2 of an orderly stop: why these daemons may not leave safely; empty: they may. `copies` and
    `openers` are by region name."""
    held = {name: region for name, region in copies.items() if not set(leaving).isdisjoint(region.holders)}
    for name in held:
        if not openers.get(name, SERVICE).startswith(SERVICE):
            return f"region {name} is open, by {openers[name]}"
    if not held or fits_without(leaving, held, candidates):
        return ""
    staying = candidates.keys() - set(leaving)
    if len(staying) < 2:
        left = f"{len(staying)} daemon" if staying else "no daemon"
        return f"{left} would be left, and {len(held)} region(s) need two"
    return f"not enough memory on the other daemons to resilver {len(held)} region(s)"


def fits_without(
    leaving: Collection[int], copies: Mapping[str, HeldCopies], candidates: Mapping[int, Candidate]
) -> bool:
    """Step 2: whether every copy on the leaving daemons has room on another one. `copies` is by region name."""
    return not without_room(leaving, copies, candidates)


def without_room(
    leaving: Collection[int], copies: Mapping[str, HeldCopies], candidates: Mapping[int, Candidate]
) -> list[str]:
    """The regions, the largest first, for whose copies on the leaving daemons no other one has room."""
    homeless: list[str] = []
    free = {index: c.free_bytes for index, c in candidates.items() if index not in leaving and not c.draining}
    for name, region in sorted(copies.items(), key=lambda item: (item[1], item[0]), reverse=True):
        stay = [index for index in region.holders if index not in leaving]
        for _ in range(len(region.holders) - len(stay)):
            room = [index for index in free if index not in stay and free[index] >= region.size]
            if not room:
                homeless.append(name)
                break
            best = max(room, key=lambda index: (free[index], -index))
            free[best] -= region.size
            stay.append(best)
    return homeless
