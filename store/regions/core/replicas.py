"""The copies kept for primaries on other daemons: following them, agreeing with the directory, and lost regions. Pure.

A follower applies the numbered items of one stream in order, each once, and acknowledges the highest number. It does not
know whether its copy is complete: the copy is complete when the directory lists it.

    message    accepted when                                               then
    Begin      the directory names the sender primary, or has no region    an empty copy, acknowledged as item 1 once
               yet; there is memory; this daemon is not listed itself      the operating system has provided its memory
    Adopt      the directory names the sender primary and this secondary   the copy stays, the stream is new
    Replicate  the stream is known, its epoch not older, the next number   written, acknowledged

Reconciliation brings the copies in line with the directory: take over, give up, free. Every message that might be lost only
makes this happen sooner. An audit once a second compares copies and directory, and repairs what a lost message left behind.

A region is lost once the directory says that every daemon that its entry lists has certainly ended. Its entry is read again
after that: until a moment ago one of them may have listed another copy. A change of theirs may still be on its way, and list
one later. RENEWED makes it impossible; from then on no daemon can list a copy. A region at epoch 1 is not renewed: no client
has opened it, and the next one creates it again. A region that was destroyed lists a life that never was, so the same holds of it.

Features: R9, R10, R18 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from spark_jms.store.regions.core.copies import FollowedStream, RegionCopy, Shared
from spark_jms.store.regions.core.directory_view import Outcome, Seen
from spark_jms.store.regions.core.opening import Opening
from spark_jms.store.regions.core.primaries import Primaries
from spark_jms.store.regions.core.primary_state import PrimaryState
from spark_jms.store.regions.protocol import region_entry as rules
from spark_jms.store.regions.protocol.messages import Ack, Adopt, Begin, Notice, Refused, Replicate
from spark_jms.store.regions.protocol.region_entry import DirectoryListing, Holder, RegionEntry


@dataclass(frozen=True, eq=False)
class Beginning:
    """A Begin that waits for the directory or for its memory. A later one of the same region replaces it: by then the copy
    may be listed that the later one has filled, and must not be freed for the earlier one."""

    holder: Holder
    message: Begin


class Replicas:
    """The follower's side of the streams."""

    def __init__(self, shared: Shared, primaries: Primaries) -> None:
        self._shared = shared
        self._primaries = primaries
        self._beginning: dict[str, Beginning] = {}  # by region name

    def tick(self) -> None:
        for name, beginning in list(self._beginning.items()):
            if self._shared.peers.dead(beginning.holder):
                del self._beginning[name]
            else:
                self._look_to_begin(beginning)

    def begin(self, sender: int, message: Begin) -> None:
        holder = self._shared.peers.holder_of(sender)
        known = self._beginning.get(message.name)
        if holder is None or self._acknowledged(sender, message.stream):
            return
        if known is None or known.message.stream != message.stream:
            self._beginning[message.name] = beginning = Beginning(holder, message)
            self._look_to_begin(beginning)

    def _look_to_begin(self, beginning: Beginning) -> None:
        name = beginning.message.name
        asked_ms = self._shared.clock.now_ms
        self._shared.directory.look(name, beginning, partial(self._looked_to_begin, beginning, asked_ms))

    def _looked_to_begin(self, beginning: Beginning, asked_ms: float, seen: Seen) -> None:
        message, sender, copies = beginning.message, beginning.holder.daemon, self._shared.copies
        if self._beginning.get(message.name) is not beginning or not seen.known:
            return
        if not self._may_begin(sender, message, seen.entry, asked_ms):
            self._refuse(sender, message, "stale")
            return
        if message.name in copies:
            copies.free(message.name)
        try:
            copy = copies.allocate(message.name, message.region_id, message.size)
        except MemoryError:
            self._refuse(sender, message, "memory")
            return
        if copy is not None:
            del self._beginning[message.name]
            self._follow(sender, message, copy)

    def _refuse(self, sender: int, message: Begin, reason: str) -> None:
        del self._beginning[message.name]
        self._shared.out.to_peer(sender, Refused(message.stream, reason))

    def _may_begin(self, sender: int, message: Begin, entry: RegionEntry | None, asked_ms: float) -> bool:
        if self._primaries.in_work(message.name):
            return False
        if entry is None:
            name, copies = message.name, self._shared.copies
            return name not in copies or (self.abandoned(name) and not copies.heard_since(name, asked_ms))
        return (
            entry.region_id == message.region_id
            and entry.primary == self._shared.peers.holder_of(sender)
            and entry.secondary != self._shared.me
            and entry.epoch >= message.epoch
        )

    def adopt(self, sender: int, message: Adopt) -> None:
        if not self._acknowledged(sender, message.stream):
            looked = partial(self._looked_to_adopt, sender, message)
            self._shared.directory.look(message.name, message.stream, looked)

    def _looked_to_adopt(self, sender: int, message: Adopt, seen: Seen) -> None:
        if not seen.known or self._acknowledged(sender, message.stream):
            return
        entry, copy = seen.entry, self._shared.copies.get(message.name)
        if (
            entry is None
            or copy is None
            or self._primaries.in_work(message.name)
            or entry.region_id != message.region_id
            or copy.region_id != message.region_id
            or entry.primary != self._shared.peers.holder_of(sender)
            or entry.secondary != self._shared.me
        ):
            self._shared.out.to_peer(sender, Refused(message.stream, "unknown"))
        else:
            self._follow(sender, message, copy)

    def replicate(self, sender: int, message: Replicate) -> None:
        followed = self._shared.copies.of_stream(message.stream)
        if followed is None or message.epoch < followed.epoch:
            self._shared.out.to_peer(sender, Refused(message.stream, "stale"))
            return
        followed.heard_ms = self._shared.clock.now_ms
        if message.seq == followed.applied + 1:
            for offset, data in message.writes:
                followed.copy.write(offset, data)
            followed.epoch, followed.applied = message.epoch, message.seq
        if message.seq <= followed.applied:
            self._shared.out.to_peer(sender, Ack(message.stream, followed.applied))

    def abandoned(self, name: str) -> bool:
        """Whether no primary fills this copy any more. An unlisted copy is kept only while one does."""
        followed, peers = self._shared.copies.followed.get(name), self._shared.peers
        if followed is None:
            return True
        holder = peers.holder_of(followed.primary)
        quiet_ms = self._shared.clock.now_ms - followed.heard_ms
        return holder is None or peers.dead(holder) or quiet_ms > self._shared.settings.failure_timeout_ms

    def _acknowledged(self, sender: int, stream: str) -> bool:
        """A stream that has begun before is acknowledged again."""
        known = self._shared.copies.of_stream(stream)
        if known is not None:
            self._shared.out.to_peer(sender, Ack(stream, known.applied))
        return known is not None

    def _follow(self, sender: int, message: Begin | Adopt, copy: RegionCopy) -> None:
        now_ms = self._shared.clock.now_ms
        self._shared.copies.follow(FollowedStream(copy, message.stream, sender, message.epoch, 1, now_ms))
        self._shared.out.to_peer(sender, Ack(message.stream, 1))


class Reconciliation:
    """Takes over, gives up or frees what the directory no longer has as it is here."""

    def __init__(self, shared: Shared, primaries: Primaries, replicas: Replicas, opening: Opening) -> None:
        self._shared = shared
        self._primaries = primaries
        self._replicas = replicas
        self._opening = opening

    def region(self, name: str) -> None:
        """Reads the entry and acts on it. Then the clients that wait for a region get their turn."""
        primary = self._primaries.get(name)
        if primary is not None:
            primary.refresh()
        elif not self._primaries.in_work(name):  # otherwise not in the directory yet, as far as this daemon knows
            self._shared.directory.look(name, self, partial(self._looked, name, self._shared.clock.now_ms))
        self._opening.tick()

    def _looked(self, name: str, asked_ms: float, seen: Seen) -> None:
        if not seen.known or self._primaries.in_work(name):
            return
        entry, me, dead = seen.entry, self._shared.me, self._shared.peers.dead
        if entry is not None and entry.primary == me:
            if self._primaries.take_up(entry) is None:
                self._delete_copyless(entry)
            else:
                self._opening.tick()
        elif entry is not None and entry.secondary == me and self._has(entry):
            if dead(entry.primary):
                self._promote(entry)
        elif entry is not None and entry.secondary == me and entry.epoch == 1:
            if dead(entry.primary):
                self._delete(entry, "its primary died before a client opened it")
        elif self._shared.copies.heard_since(name, asked_ms):
            pass  # its primary may be listing it
        elif name in self._shared.copies and self._replicas.abandoned(name):
            self._give_up(name, entry)

    def dead_primaries(self) -> None:
        """Takes over, where the directory allows it, from primaries that are dead."""
        for name, followed in list(self._shared.copies.followed.items()):
            holder = self._shared.peers.holder_of(followed.primary)
            if holder is None or self._shared.peers.dead(holder):
                self.region(name)

    def doubts(self) -> None:
        for name in self._shared.directory.doubtful():
            self.region(name)

    def audit(self, listing: DirectoryListing) -> None:
        """Looks at each region that is not as the list has it."""
        seen = listing.entries
        listed = [name for name, entry in seen.items() if self._shared.me in entry.holders()]
        for name in dict.fromkeys((*listed, *self._shared.copies)):
            if not self._is_kept(name, seen.get(name)):
                self.region(name)

    def _is_kept(self, name: str, entry: RegionEntry | None) -> bool:
        """Whether this daemon serves the region just as the directory has it, or follows its living primary."""
        primary = self._primaries.get(name)
        if entry is None:
            return False
        if primary is not None:
            return primary.state is PrimaryState.SERVING and primary.entry == entry
        followed = self._shared.copies.followed.get(name)
        return (
            followed is not None
            and entry.secondary == self._shared.me
            and followed.copy.region_id == entry.region_id
            and followed.primary == entry.primary.daemon
            and not self._shared.peers.dead(entry.primary)
        )

    def _delete_copyless(self, entry: RegionEntry) -> None:
        """This daemon gave the region up before an unanswered creation happened, so no client has opened it. Any other
        region stays, because another daemon may have a good copy."""
        created_late = entry.epoch == 1 or self._primaries.gave_up(entry.region_id)
        if entry.opener is None and created_late:
            self._delete(entry, "it was created too late")

    def _delete(self, entry: RegionEntry, reason: str) -> None:
        def deleted(outcome: Outcome) -> None:
            if outcome is Outcome.DONE:
                self._shared.out.log(2, f"region {entry.name}: removed, {reason}")

        self._shared.directory.change(entry.name, entry, None, deleted)

    def _give_up(self, name: str, entry: RegionEntry | None) -> None:
        """Frees a copy that is not listed. If its primary, dead or not, may be listing it, that is made impossible first."""
        followed, copy, me = self._shared.copies.followed.get(name), self._shared.copies[name], self._shared.me
        may_be_listed = (
            entry is not None
            and not entry.is_destroyed
            and entry.region_id == copy.region_id
            and (followed is None or followed.primary == entry.primary.daemon)
        )
        if not may_be_listed:
            self._shared.copies.free(name)
        elif entry is not None and me not in entry.holders():
            renounced = partial(self._renounced, entry, copy)
            self._shared.directory.change(name, entry, rules.renounced(entry, me), renounced)

    def _renounced(self, entry: RegionEntry, copy: RegionCopy, outcome: Outcome) -> None:
        if outcome is not Outcome.DONE:
            return
        if self._shared.copies.get(entry.name) is copy:  # it was not filled again meanwhile
            self._shared.copies.free(entry.name)
        # Without the new epoch, its next listing fails as well, the copy is given up again, and so on.
        self._shared.out.to_peer(entry.primary.daemon, Notice(entry.name))

    def _has(self, entry: RegionEntry) -> bool:
        copy = self._shared.copies.get(entry.name)
        return copy is not None and copy.region_id == entry.region_id

    def _promote(self, entry: RegionEntry) -> None:
        new = rules.promoted(entry, self._shared.me)

        def promoted(outcome: Outcome) -> None:
            if outcome is Outcome.DONE:
                self._shared.out.log(1, f"region {entry.name}: took over from daemon {entry.primary.daemon}")
                self._primaries.take_up(new)
                self._opening.tick()

        self._shared.directory.change(entry.name, entry, new, promoted)


class LostRegions:
    """Regions of which no copy is left: each is told once, by name, in the log of every daemon that runs."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._told: set[str] = set()  # ids of regions

    def audit(self, listing: DirectoryListing) -> None:
        """With every list of the directory."""
        dead = self._shared.peers.dead
        self._told.intersection_update(entry.region_id for entry in listing.entries.values())
        for entry in listing.entries.values():
            if entry.region_id not in self._told and all(map(dead, entry.holders())):
                self._shared.directory.look_which_run(entry.holders(), partial(self._look, entry))

    def _look(self, entry: RegionEntry) -> None:
        if self._is_lost(entry):
            self._shared.directory.look(entry.name, self, self._looked)

    def _looked(self, seen: Seen) -> None:
        entry = seen.entry
        if entry is None or entry.region_id in self._told or not self._is_lost(entry):
            return
        if entry.epoch == 1:
            self._tell(entry, Outcome.DONE)
        else:
            self._shared.directory.change(entry.name, entry, rules.renewed(entry), partial(self._tell, entry))

    def _tell(self, entry: RegionEntry, outcome: Outcome) -> None:
        if outcome is not Outcome.DONE:
            return  # the next list asks again
        self._told.add(entry.region_id)
        daemons = " and ".join(f"daemon {holder.daemon}" for holder in entry.holders())
        reason = f"the lives of {daemons} that had its copies have ended"
        if entry.is_destroyed:
            reason = f"it was removed by force while {entry.opener} had it open"
        self._shared.out.log(1, f"region {entry.name} is LOST: {reason}")

    def _is_lost(self, entry: RegionEntry) -> bool:
        return not any(map(self._shared.peers.may_run, entry.holders()))
