"""Opening a region here: create it, or bring it here first (R8, R9, R15, R18). Pure.

An open waits until one of these is so, looked at on every tick and every notice:

    the directory says                         what is done
    nothing                                    a copy here, one on the next daemon, then the entry
    anything, and a new one is wanted          RegionOpenError, if it was not made for this very request
    closed, primary here                       opened as soon as all its writes are on both copies
    closed, primary elsewhere and alive        that one is asked to bring it here
    primary dead, secondary alive              wait: it takes over by itself
    all copies dead for certain                RegionLostError
    open, its daemon alive                     RegionOpenError
    a daemon is being shut down safely         wait (R4, step 3)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.placement import next_daemon
from spark_jms.store.regions.core.primary import Primary, Purpose
from spark_jms.store.regions.core.protocol import MoveRequest, Notice, Open

if TYPE_CHECKING:
    from spark_jms.store.regions.core.daemon import DaemonCore

ASK_AGAIN_MS = 500.0


@dataclass
class Waiting:
    client: int
    request: int
    name: str
    size: int
    until_ms: float
    asked_ms: float = -1e9
    made: Primary | None = None  # the region that was made for this request


class Opening:
    def __init__(self, daemon: DaemonCore) -> None:
        self._daemon = daemon
        self.waiting: list[Waiting] = []

    def request(self, client: int, message: Open) -> None:
        daemon = self._daemon
        if message.size < 0:
            raise ValueError(f"a region of {message.size} bytes")
        waiting = Waiting(
            client, message.request, message.name, message.size, daemon.now_ms + daemon.settings.open_timeout_ms
        )
        if not self._try(waiting):
            self.waiting.append(waiting)

    def forget(self, client: int) -> None:
        self.waiting = [w for w in self.waiting if w.client != client]

    def tick(self) -> None:
        daemon = self._daemon
        for waiting in list(self.waiting):
            if waiting not in self.waiting:
                continue
            done = self._try(waiting)
            if not done and daemon.now_ms >= waiting.until_ms:
                daemon.fail(waiting.client, waiting.request, "RegionUnavailableError", [f"region {waiting.name}"])
                done = True
            if done and waiting in self.waiting:
                self.waiting.remove(waiting)

    def _try(self, waiting: Waiting) -> bool:
        """True when it was answered."""
        daemon, name = self._daemon, waiting.name
        if daemon.anyone_draining():
            return False
        known, entry = daemon.look(name)
        if not known:
            return False
        if entry is None:
            return self._create(waiting)
        if waiting.size and (waiting.made is None or waiting.made is not daemon.primaries.get(name)):
            # Whoever wants a new region writes over it as over an empty one.
            daemon.fail(
                waiting.client, waiting.request, "RegionOpenError", [f"region {name}: somebody else has made it"]
            )
            return True
        if entry.primary == daemon.me:
            return self._open_here(waiting, entry)
        if entry.opener is not None:
            if daemon.dead(entry.primary):
                return self._lost(waiting, entry)
            daemon.fail(waiting.client, waiting.request, "RegionOpenError", [f"region {name}, by {entry.opener}"])
            return True
        if daemon.dead(entry.primary):
            return self._lost(waiting, entry)
        return self._bring(waiting, entry)

    def _open_here(self, waiting: Waiting, entry: RegionEntry) -> bool:
        daemon = self._daemon
        primary = daemon.take_up(entry)
        if primary is None:
            return False
        opener = daemon.clients.get(waiting.client)
        if opener is None:
            return True
        if primary.client is not None or (waiting.size and primary.open_epoch):
            daemon.fail(
                waiting.client, waiting.request, "RegionOpenError", [f"region {waiting.name}, by {entry.opener}"]
            )
            return True
        if primary.entry.opener is not None or not primary.open(waiting.client, opener):
            return False
        self._answer(waiting, primary)
        return True

    def _answer(self, waiting: Waiting, primary: Primary) -> None:
        """A store that lost one of its regions gets no other one: whoever has that one has listed them all by now, or
        lists them again after it opened the last."""
        for other in list(self._daemon.primaries.values()):
            if other.client == waiting.client and other is not primary and not other.refresh():
                primary.close()
                detail = f"region {other.entry.name}: this daemon cannot make sure that it is still open here"
                self._daemon.fail(waiting.client, waiting.request, "FencedError", [detail])
                return
        entry = primary.entry
        secondary = entry.secondary.daemon if entry.secondary else -1
        self._daemon.reply(waiting.client, waiting.request, [entry.epoch, entry.size, secondary])

    def _lost(self, waiting: Waiting, entry: RegionEntry) -> bool:
        daemon = self._daemon
        if any(daemon.maybe_running(holder) for holder in entry.holders()):
            return False
        if entry.epoch == 1:  # nobody has ever opened it: it is made anew
            daemon.swap(entry.name, entry, None)
            return False
        daemon.fail(waiting.client, waiting.request, "RegionLostError", [f"region {entry.name}"])
        return True

    def _bring(self, waiting: Waiting, entry: RegionEntry) -> bool:
        daemon = self._daemon
        if waiting.name not in daemon.copies and daemon.free_bytes() < entry.size:
            detail = f"region {waiting.name} needs {entry.size} bytes on daemon {daemon.index}"
            daemon.fail(waiting.client, waiting.request, "MemoryLimitError", [detail])
            return True
        if daemon.now_ms - waiting.asked_ms >= ASK_AGAIN_MS:
            waiting.asked_ms = daemon.now_ms
            daemon.to_peer(entry.primary.daemon, MoveRequest(waiting.name))
        return False

    def move(self, sender: int, name: str) -> None:
        """A closed region is wanted at the sender."""
        daemon = self._daemon
        primary, holder = daemon.primaries.get(name), daemon.holder_of(sender)
        if primary is None or holder is None or primary.doubt or not primary.listed or primary.entry.opener is not None:
            daemon.to_peer(sender, Notice(name))
            return
        if primary.entry.secondary == holder:
            if not primary.pending and primary.move_to_secondary():
                return
        elif not any(f.purpose is Purpose.MOVE for f in primary.followers):
            for follower in [f for f in primary.followers if f.holder == holder]:
                primary.remove(follower)
            primary.start(holder, Purpose.MOVE)

    # ---- a new region

    def _create(self, waiting: Waiting) -> bool:
        daemon, name = self._daemon, waiting.name
        if name in daemon.primaries:
            return False  # on its way
        if not waiting.size:
            daemon.fail(waiting.client, waiting.request, "RegionUnavailableError", [f"there is no region {name}"])
            return True
        if name in daemon.copies:
            daemon.free_copy(name)
        region_id = daemon.new_id()
        copy = daemon.allocate_copy(name, region_id, waiting.size)
        if copy is None:
            detail = f"region {name} needs {waiting.size} bytes on daemon {daemon.index}"
            daemon.fail(waiting.client, waiting.request, "MemoryLimitError", [detail])
            return True
        draft = rules.created(name, region_id, waiting.size, daemon.me, None, None, daemon.now_us)
        daemon.primaries[name] = waiting.made = primary = Primary(daemon, draft, copy, listed=False)
        self.place(primary)
        return waiting not in self.waiting and self._try_new(waiting)

    def _try_new(self, waiting: Waiting) -> bool:
        primary = self._daemon.primaries.get(waiting.name)
        return primary is not None and primary.listed and self._open_here(waiting, primary.entry)

    def place(self, primary: Primary) -> None:
        """Finds the second place of a new region, or lists it with one copy where there is none."""
        daemon = self._daemon
        target = next_daemon(daemon.index, daemon.count, daemon.candidates(), primary.entry.size, primary.declined)
        holder = daemon.holder_of(target) if target is not None else None
        if holder is None:
            self.created(primary, None)
            return
        primary.declined.add(holder.daemon)  # asked once for this creation
        primary.start(holder, Purpose.CREATE)

    def created(self, primary: Primary, secondary: Holder | None) -> None:
        daemon, draft = self._daemon, primary.entry
        entry = rules.created(draft.name, draft.region_id, draft.size, daemon.me, secondary, None, draft.created_us)
        # Asked once and not answered, it may have been made and removed again: then its id and epoch are used up.
        done = None if primary.told else daemon.swap(draft.name, None, entry)
        if not done:
            primary.told = primary.told or done is None
            known, found = daemon.look(draft.name)
            if not known or (found is None and not primary.told):
                return  # the next tick tries again
            if found is None or found.region_id != entry.region_id:
                primary.fence("it may have been removed again" if found is None else "another daemon made it")
                return  # whoever waits for it begins anew, with another id
            entry = found
        primary.entry, primary.listed = entry, True
        primary.declined.clear()
        primary.list_created()
        daemon.log(2, f"region {draft.name}: created, {draft.size} bytes, copies on {_indexes(entry)}")


def _indexes(entry: RegionEntry) -> str:
    return " and ".join(str(holder.daemon) for holder in entry.holders())
