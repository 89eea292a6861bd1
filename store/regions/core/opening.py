"""Opening a region here: create it, or bring it here first. Pure.

Theory. A request to open waits until its situation has a final answer. The directory is asked for the entry when the
request comes, on every tick, and whenever an entry may have changed; its answer makes the situation.

Features: R8, R9, R15, R18 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from spark_jms.store.errors import RegionEntryDamagedError, RegionEntryVersionError
from spark_jms.store.regions.core.copies import Shared
from spark_jms.store.regions.core.directory_view import Outcome, Seen
from spark_jms.store.regions.core.primaries import NewRegion, Primaries
from spark_jms.store.regions.core.primary import Primary
from spark_jms.store.regions.protocol import region_entry as rules
from spark_jms.store.regions.protocol.messages import SHUT_DOWN_SAFELY, MoveRequest, Notice, Open
from spark_jms.store.regions.protocol.region_entry import RegionEntry

UNREADABLE = (RegionEntryDamagedError, RegionEntryVersionError)

ASK_AGAIN_MS = 500.0


class Situation(Enum):
    """The first one that holds decides."""

    LEAVING = "a daemon is being shut down safely"
    UNREADABLE = "the region's entry is damaged, or of a newer version"
    UNKNOWN = "the directory does not answer"
    ABSENT = "the directory does not have the region"
    TAKEN = "it has the region, and a new one is wanted"
    PRIMARY_HERE = "this daemon is primary"
    PRIMARY_DEAD = "the primary is dead, and a copy may be left"
    NEVER_OPENED = "all copies are dead for certain, and no client has opened it"
    LOST = "all copies are dead for certain"
    OPEN_ELSEWHERE = "open on another daemon"
    CLOSED_ELSEWHERE = "closed on another daemon"


ANSWERS = {
    Situation.LEAVING: "wait (it leaves)",
    Situation.UNREADABLE: "RegionEntryDamagedError or RegionEntryVersionError",
    Situation.UNKNOWN: "wait",
    Situation.ABSENT: "a copy here, one on the next daemon, then the entry; RegionUnavailableError if none is to be created",
    Situation.TAKEN: "RegionOpenError, unless this very request created it",
    Situation.PRIMARY_HERE: "open it as soon as all its writes are on both copies; RegionOpenError if it is open",
    Situation.PRIMARY_DEAD: "wait: the secondary takes over",
    Situation.NEVER_OPENED: "remove the entry, and create the region again",
    Situation.LOST: "RegionLostError, once RENEWED has made any change of theirs impossible that is still on its way",
    Situation.OPEN_ELSEWHERE: "RegionOpenError",
    Situation.CLOSED_ELSEWHERE: "ask its primary to bring it here; MemoryLimitError without room",
}


@dataclass(eq=False)
class Waiting:
    client: int
    request: int
    name: str
    size: int  # of a new region; 0 opens an existing one
    until_ms: float
    asked_ms: float = -1e9
    waits_for: str = "the Global Directory to answer"
    region_id: str = ""  # of the new region, while it waits for its memory
    made: NewRegion | None = None  # created for this request
    opened: Primary | None = None  # for this request, while the other regions of its client are confirmed


class Opening:
    def __init__(self, shared: Shared, primaries: Primaries) -> None:
        self._shared = shared
        self._primaries = primaries
        self._waiting: list[Waiting] = []
        self._act = {
            Situation.ABSENT: self._create,
            Situation.TAKEN: self._refuse_taken,
            Situation.PRIMARY_HERE: self._open_here,
            Situation.PRIMARY_DEAD: self._wait,
            Situation.NEVER_OPENED: self._remove,
            Situation.LOST: self._refuse_lost,
            Situation.OPEN_ELSEWHERE: self._refuse_open,
            Situation.CLOSED_ELSEWHERE: self._bring,
        }

    # ---- events

    def request(self, client: int, message: Open) -> None:
        if message.size < 0:
            raise ValueError(f"a region of {message.size} bytes")
        until_ms = self._shared.clock.now_ms + self._shared.settings.open_timeout_ms
        waiting = Waiting(client, message.request, message.name, message.size, until_ms)
        self._waiting.append(waiting)
        self._try(waiting)

    def client_left(self, client: int) -> None:
        self._waiting = [w for w in self._waiting if w.client != client]

    def tick(self) -> None:
        for waiting in list(self._waiting):
            if waiting not in self._waiting:
                continue
            if self._shared.clock.now_ms >= waiting.until_ms:
                self._fail(waiting, "RegionUnavailableError", f"region {waiting.name}: {self._why_it_waited(waiting)}")
            elif waiting.opened is None:
                self._try(waiting)

    def _why_it_waited(self, waiting: Waiting) -> str:
        leaving = [index for index in range(self._shared.peers.count) if self._shared.peers.is_draining(index)]
        if leaving:
            return f"opens wait while daemon {', '.join(map(str, leaving))} {SHUT_DOWN_SAFELY}"
        limit_s = self._shared.settings.open_timeout_ms / 1000
        return f"waited {limit_s:g} s (RS_OPEN_TIMEOUT_MS) for {waiting.waits_for}"

    def move(self, sender: int, name: str) -> None:
        """The daemon that sent this wants a closed region."""
        primary, holder = self._primaries.get(name), self._shared.peers.holder_of(sender)
        if primary is None or holder is None or not primary.move_to(holder):
            self._shared.out.to_peer(sender, Notice(name))

    # ---- one request

    def _try(self, waiting: Waiting) -> None:
        if not self._shared.peers.any_draining():
            asked_ms = self._shared.clock.now_ms
            self._shared.directory.look(waiting.name, waiting, partial(self._looked, waiting, asked_ms))

    def _looked(self, waiting: Waiting, asked_ms: float, seen: Seen) -> None:
        if waiting not in self._waiting or waiting.opened is not None or self._shared.peers.any_draining():
            return
        if seen.known and seen.entry is None and self._shared.copies.heard_since(waiting.name, asked_ms):
            return  # another daemon creates it; the next tick asks again
        if seen.known:
            self._act[self._situation(waiting, seen.entry)](waiting, seen.entry)
        elif isinstance(seen.error, UNREADABLE):
            self._fail(waiting, type(seen.error).__name__, *seen.error.args)
        elif seen.error is not None:
            waiting.waits_for = f"the Global Directory: {seen.error.detail()}"

    def _situation(self, waiting: Waiting, entry: RegionEntry | None) -> Situation:
        peers = self._shared.peers
        if entry is None:
            return Situation.ABSENT
        if waiting.size and not self._primaries.created(waiting.name, waiting.made):
            return Situation.TAKEN
        if entry.primary == self._shared.me:
            return Situation.PRIMARY_HERE
        if peers.dead(entry.primary):
            if any(peers.may_run(holder) for holder in entry.holders()):
                return Situation.PRIMARY_DEAD
            return Situation.NEVER_OPENED if entry.epoch == 1 else Situation.LOST
        return Situation.CLOSED_ELSEWHERE if entry.opener is None else Situation.OPEN_ELSEWHERE

    def _wait(self, waiting: Waiting, entry: RegionEntry | None) -> None:
        assert entry is not None
        holders = " or ".join(str(holder.daemon) for holder in entry.holders())
        waiting.waits_for = f"daemon {holders}, which may hold its copy"

    def _create(self, waiting: Waiting, entry: RegionEntry | None) -> None:
        name, copies, out = waiting.name, self._shared.copies, self._shared.out
        if self._primaries.in_work(name):  # being created
            waiting.waits_for = f"its second copy of {waiting.size} bytes, and then its entry in the Global Directory"
            return
        if not waiting.size:
            self._fail(waiting, "RegionUnavailableError", f"there is no region {name}")
            return
        if name in copies:
            copies.free(name)
        region_id = waiting.region_id = waiting.region_id or out.new_id()
        try:
            copy = copies.allocate(name, region_id, waiting.size)
        except MemoryError:
            self._fail_memory(waiting, waiting.size)
            return
        if copy is None:
            here = self._shared.me.daemon
            waiting.waits_for = (
                f"the operating system to provide {waiting.size} bytes of shared memory on daemon {here}"
            )
            return
        waiting.region_id = ""  # used up
        now_us = self._shared.clock.now_us
        draft = rules.created(name, region_id, waiting.size, self._shared.me, None, now_us)
        waiting.made = self._primaries.create(draft, copy, partial(self._try, waiting))

    def _open_here(self, waiting: Waiting, entry: RegionEntry | None) -> None:
        assert entry is not None
        waiting.waits_for = "its copies to hold all writes, and then its entry in the Global Directory"
        primary = self._primaries.take_up(entry)
        if primary is None:
            return
        opener = self._shared.out.clients.get(waiting.client)
        if opener is None:
            self._waiting.remove(waiting)
        elif primary.use.client is not None or (waiting.size and primary.use.epoch):
            self._refuse_open(waiting, entry)
        elif primary.entry.opener is None:
            primary.open(waiting.client, opener, partial(self._opened, waiting, primary))

    def _opened(self, waiting: Waiting, primary: Primary) -> None:
        if waiting in self._waiting:
            waiting.opened = primary
            waiting.waits_for = "the Global Directory to confirm the other regions of this client"
            others = [p for p in self._primaries.values() if p.use.client == waiting.client and p is not primary]
            self._confirm(waiting, primary, deque(others))
        else:
            primary.close()  # the client has left, or its time is over

    def _confirm(self, waiting: Waiting, primary: Primary, others: deque[Primary]) -> None:
        """A store that lost one of its regions must not get another: the store that has the lost one has listed all
        regions by now, or lists them again after it opened the last."""
        if not others:
            self._answer(waiting, primary)
            return
        other = others.popleft()

        def confirmed(sure: bool) -> None:
            if waiting not in self._waiting:
                return
            if primary.use.client != waiting.client:
                waiting.opened = None  # lost meanwhile: the next tick tries again
            elif sure:
                self._confirm(waiting, primary, others)
            else:
                detail = f"region {other.entry.name}: this daemon cannot make sure that it is still open here"
                self._fail(waiting, "FencedError", detail)

        other.confirm(confirmed)

    def _answer(self, waiting: Waiting, primary: Primary) -> None:
        entry = primary.entry
        secondary = entry.secondary.daemon if entry.secondary else -1
        self._waiting.remove(waiting)
        self._shared.out.reply(waiting.client, waiting.request, [entry.epoch, entry.size, secondary])

    def _refuse_taken(self, waiting: Waiting, entry: RegionEntry | None) -> None:
        """A client that wants a new region would overwrite this one."""
        self._fail(waiting, "RegionOpenError", f"region {waiting.name}: another client has created it")

    def _refuse_open(self, waiting: Waiting, entry: RegionEntry | None) -> None:
        assert entry is not None
        self._fail(waiting, "RegionOpenError", f"region {waiting.name}, by {entry.opener}")

    def _refuse_lost(self, waiting: Waiting, entry: RegionEntry | None) -> None:
        """The entry may be older than the end of these daemons: the last one may have listed another copy before it died, or
        the directory may still be about to. So it is lost only if the entry is the same now, and then stays so."""
        assert entry is not None
        self._shared.directory.change(waiting.name, entry, rules.renewed(entry), partial(self._lost, waiting, entry))

    def _lost(self, waiting: Waiting, entry: RegionEntry, outcome: Outcome) -> None:
        if outcome is Outcome.DONE and waiting in self._waiting:  # otherwise the next tick asks again
            reason = f" was removed by force while {entry.opener} had it open" if entry.is_destroyed else ""
            self._fail(waiting, "RegionLostError", f"region {waiting.name}{reason}")

    def _remove(self, waiting: Waiting, entry: RegionEntry | None) -> None:
        self._shared.directory.change(waiting.name, entry, None, partial(self._try_again, waiting))

    def _try_again(self, waiting: Waiting, outcome: Outcome) -> None:
        self._try(waiting)

    def _bring(self, waiting: Waiting, entry: RegionEntry | None) -> None:
        assert entry is not None
        waiting.waits_for = f"daemon {entry.primary.daemon} to move it here"
        if waiting.name not in self._shared.copies and self._shared.copies.free_bytes < entry.size:
            self._fail_memory(waiting, entry.size)
        elif self._shared.clock.now_ms - waiting.asked_ms >= ASK_AGAIN_MS:
            waiting.asked_ms = self._shared.clock.now_ms
            self._shared.out.to_peer(entry.primary.daemon, MoveRequest(waiting.name))

    def _fail_memory(self, waiting: Waiting, size: int) -> None:
        here = self._shared.me.daemon
        self._fail(waiting, "MemoryLimitError", f"region {waiting.name} needs {size} bytes on daemon {here}")

    def _fail(self, waiting: Waiting, error: str, *arguments: Any) -> None:
        self._waiting.remove(waiting)
        if waiting.opened is not None and waiting.opened.use.client == waiting.client:
            waiting.opened.close()
        self._shared.out.fail(waiting.client, waiting.request, error, *arguments)
