"""One consumer of a destination: makes batches, keeps claims, acknowledges (C5, C6, C8, C9, C10).

The Spark source and the plain client both stand on this class. `next_batch(start)` is the source's latestOffset: in one
physical write it acknowledges the claim that `start` names (Spark asks for more only when everything up to `start` is in
its commit log), forgets what Spark never logged, and claims the next messages.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from spark_jms.claims.acknowledgement_table import AcknowledgementTable
from spark_jms.claims.members import Members
from spark_jms.claims.planner import Planner
from spark_jms.claims.positions import check_selector
from spark_jms.core.batch import (
    MAX_RANGES_PER_MEMBER,
    Batch,
    Limits,
    MemberPick,
    claim_after,
    claim_number,
)
from spark_jms.core.claim import Claim
from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.core.record_set import RecordSet
from spark_jms.core.selector import Selector
from spark_jms.errors import (
    ClosedError,
    ConsumerClosedException,
    InvalidDestinationError,
    MemberUnavailableError,
    RecordSetError,
    StaleCheckpointError,
)
from spark_jms.log.domain import Domain
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms
from spark_jms.store import Store

log = logging.getLogger("spark_jms")
RESUME_TIMEOUT_S = 15.0  # a returning consumer waits so long for the record of a claim it has to protect
_POLL_S = 0.01


@dataclass(frozen=True)
class Settings:
    """How one consumer consumes. `members` pins it to some members; None = all, shared with the others."""

    selector: Selector | None = None
    replayable: bool = True
    fail_on_data_loss: bool = True
    in_doubt_timeout_ms: int | None = None  # None = as the destination says
    members: frozenset[int] | None = None


class Subscriber:
    """Thread-safe. Every method may raise ConsumerClosedException: then another instance or an administrator has taken
    this consumer's claims away and it can acknowledge nothing."""

    def __init__(
        self,
        domain: Domain,
        store: Store,
        destination: str,
        subscription: str,
        consumer: str,
        settings: Settings,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.table = domain.log(destination)
        self.destination, self.subscription, self.consumer = destination, subscription, consumer
        self.settings = settings
        self.members = Members(store, destination, subscription, consumer, f"{destination}/{subscription} {consumer}")
        self.acknowledgements = AcknowledgementTable(domain.acknowledgements(destination), subscription)
        self.lock = threading.RLock()
        self._store, self._clock_ms = store, clock_ms
        self._planned_version = -1
        self._acknowledged = ""  # the newest start claim that is acknowledged wherever it was held
        self._revoked: set[str] = set()  # claims found revoked when we came back: nothing to acknowledge there
        self._own: set[str] = set()  # claims this instance made or has adopted
        self.planner = Planner(
            self.table, consumer, settings.selector, settings.fail_on_data_loss, self.members.name, clock_ms
        )
        self._unsettled: dict[str, set[int]] = {}  # start claim -> members where it still has to be acknowledged
        self._met = set(store.sessions())  # those that lived when we started: one of them may be our older self
        self._last_batch_s = time.monotonic()
        self._not_behind = False
        self.closed = False

    # -- the source's road ----------------------------------------------------------------------------------------
    def next_batch(self, start: Batch, limits: Limits, targets: Mapping[int, int] | None = None) -> Batch | None:
        """The next batch after `start`, claimed; None when there is nothing (yet). Never waits."""
        with self.lock, self.table.lock:  # the snapshot is shared: nobody may move it on while we plan by it
            self._check_open()
            snapshot = self.table.refresh()
            self._planned_version = snapshot.version
            self._check_subscription(snapshot)
            self._check_not_behind(start, snapshot)
            needed = self._unsettled_members(start)
            self._acquire(snapshot, needed)
            going = (
                self.members.contested() | self.members.borrowed()
            )  # settled here, but nothing new is claimed: it is somebody else's turn
            changed = self._settle(start, needed)
            missing = needed - set(changed)
            if missing:
                self._unsettled[start.claim] = missing  # acknowledged when it is handed back, at the other's boundary
                batch = None
            else:
                self._unsettled.pop(start.claim, None)
                self._revoked.discard(start.claim)
                self._acknowledged = start.claim
                batch = self._plan(snapshot, start, changed, going, limits, targets)
            self.members.commit(changed)
            for member in {*self._left_to_others(snapshot), *(self.members.borrowed() & set(changed))}:
                self.members.leave(member, snapshot.last_sequence(member))
            self.boundary(snapshot)
            if batch is not None:
                self._own = {start.claim, batch.claim}
                self._last_batch_s = time.monotonic()
            return batch

    def resume(self, batch: Batch) -> dict[int, Ranges]:
        """Make the claim of a logged batch safe again after a restart, and say which of its messages are not this
        consumer's any more. Costs a look at the store for a batch that this instance has planned itself."""
        with self.lock:
            self._check_open()
            own = batch.claim in self._own
            withheld: dict[int, Ranges] = {}
            deadline = time.monotonic() + RESUME_TIMEOUT_S
            for member, pick in batch.members.items():
                if own:
                    state = read_state(self._store, self.members.name(member))
                    self._check_speaks(state, member)
                else:
                    self._open_by(member, deadline)
                    state = self._attached(member)
                    self.members.commit({member: state})
                claim = state.claims.get(batch.claim)
                gone = pick.picks - claim.picks if claim else pick.picks
                if gone:
                    withheld[member] = gone
                    log.warning(
                        "%s: %d message(s) of the replayed batch were revoked and went to other consumers; "
                        "they are left out",
                        self.members.name(member),
                        gone.count,
                    )
            self._own.add(batch.claim)
            if withheld:
                self._revoked.add(batch.claim)
            return withheld

    def _check_speaks(self, state: RecordSet, member: int) -> None:
        """While we slept another instance may have started, which knows nothing of a batch that we have not logged."""
        if not state.speaks_for(self.consumer, self.members.session_id):
            raise ConsumerClosedException(
                f"another instance of consumer {self.consumer} has taken over {self.members.name(member)}: this one is "
                "stale and gets no messages. Stop it."
            )

    def _open_by(self, member: int, deadline: float) -> None:
        while not self.members.open(member):
            if time.monotonic() > deadline:
                raise MemberUnavailableError(
                    f"{self.members.name(member)} is in another consumer's hands and was not handed over within "
                    f"{RESUME_TIMEOUT_S:.0f} s: try again, or see who holds it with `jmsq claims`"
                )
            self.members.hand_over({})
            time.sleep(_POLL_S)

    # -- the client's road ----------------------------------------------------------------------------------------
    def acknowledge(self, claim: str, parts: Mapping[int, Ranges]) -> bool:
        """These messages of an open claim are done. False when a record has to be handed back to us first: try again."""
        with self.lock:
            self._check_open()
            changed = {}
            for member, part in parts.items():
                if not self.members.open(member):
                    return False
                state = self._attached(member)
                epoch = self.members.held[member].handle.epoch
                changed[member] = state.acknowledge(
                    self.consumer, self.members.session_id, claim, epoch, self._clock_ms(), part
                )
            self.members.commit(changed)
            return True

    def acknowledge_all(self, parts: Mapping[str, Mapping[int, Ranges]]) -> dict[str, dict[int, Ranges]]:
        """The same for parts of several claims, in one write. What has to be handed back to us first is returned, and
        nothing of those members is done: try again with that."""
        with self.lock:
            self._check_open()
            changed: dict[int, RecordSet] = {}
            left: dict[str, dict[int, Ranges]] = {}
            for claim, members in parts.items():
                for member, part in members.items():
                    if not self.members.open(member):
                        left.setdefault(claim, {})[member] = part
                        continue
                    state = changed.get(member) or self._attached(member)
                    epoch, session = self.members.held[member].handle.epoch, self.members.session_id
                    changed[member] = state.acknowledge(self.consumer, session, claim, epoch, self._clock_ms(), part)
            self.members.commit(changed)
            return left

    def release(self, claim: str, parts: Mapping[int, Ranges], *, delivered: bool) -> bool:
        """Give these messages back; `delivered` ones come again flagged. False as for `acknowledge`."""
        with self.lock:
            self._check_open()
            if not all(self.members.open(member) for member in parts):
                return False
            for member in parts:
                self.planner.start_again(member)  # what comes back lies before what was looked at
            self.members.commit(
                {m: self._attached(m).release(claim, part, delivered=delivered) for m, part in parts.items()}
            )
            return True

    # -- boundaries -----------------------------------------------------------------------------------------------
    def boundary(self, snapshot: Snapshot | None = None) -> int:
        """Hand over what others wait for. Called often, costs a look at one file."""
        with self.lock:
            if self.closed:
                return 0
            snapshot = snapshot or self.table.snapshot
            return self.members.hand_over({m: snapshot.last_sequence(m) for m in self.members.held})

    def tick(self) -> None:
        """What a background thread does about once a second: hand over, and carry acknowledgements to the table."""
        with self.lock:
            if self.closed:
                return
            self.boundary()
            rows = {m: held.state.outbox for m, held in self.members.held.items() if held.state.outbox}
        if rows:
            written = self.acknowledgements.write(rows)
            with self.lock:
                if not self.closed:
                    held = self.members.held
                    self.members.commit(
                        {m: held[m].state.delivered_to_table(p) for m, p in written.items() if m in held}
                    )

    def backlog(self, snapshot: Snapshot | None = None) -> dict[int, int]:
        """Messages of each member that nobody has finished. Others' members are read from the store."""
        with self.lock:
            snapshot = snapshot or self.table.snapshot
            out = {}
            for member in range(snapshot.destination.members):
                held = self.members.held.get(member)
                state = held.state if held else read_state(self._store, self.members.name(member))
                floor = snapshot.destination.start_floor(self.subscription, member)
                out[member] = state.unfinished(floor + 1, snapshot.last_sequence(member)).count
            return out

    def has_news(self) -> bool:
        """Something has changed since the last plan: a commit (which somebody else in this process may have read
        already), or a record that was handed over. Cheap enough for 200 times a second."""
        return (
            self.table.snapshot.version != self._planned_version
            or self.table.has_news()
            or self.looks_on()
            or self.wants_records()
        )

    def looks_on(self) -> bool:
        """The last plan did not get through all there is: the next one goes on."""
        with self.lock:
            return any(self.planner.unfinished(member) for member in self.members.held)

    def wants_records(self) -> bool:
        """Another consumer has handed a record over that `next_batch` has not taken up yet."""
        with self.lock:
            return not self.closed and self.members.granted()

    def unsettled(self, start: Batch) -> bool:
        """`start` is not acknowledged everywhere yet, because a record is in other hands."""
        with self.lock:
            return bool(self._unsettled_members(start))

    def left_over(self, targets: Mapping[int, int]) -> dict[int, int]:
        """member -> messages up to `targets` that others hold (their record, or a claim): not ours to finish."""
        with self.lock:
            out = {}
            for member, last in targets.items():
                held = self.members.held.get(member)
                state = held.state if held else read_state(self._store, self.members.name(member))
                floor = self.table.snapshot.destination.start_floor(self.subscription, member)
                left = state.unfinished(floor + 1, last) - self.planner.refused.get(member, EMPTY)
                if held:
                    left = left & union(c.picks for c in state.claims.values() if c.consumer != self.consumer)
                if left:
                    out[member] = left.count
            return out

    def close(self) -> None:
        """Give everything up. Open claims stay: a replayable one is in doubt, another's messages come back."""
        with self.lock:
            if not self.closed:
                self.closed = True
                self.members.close()

    # -- inside ---------------------------------------------------------------------------------------------------
    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"consumer {self.consumer} of {self.destination} is closed: create a new one")

    def _check_subscription(self, snapshot: Snapshot) -> None:
        if self.subscription not in snapshot.destination.subscription_names():
            raise InvalidDestinationError(
                f"the subscription {self.subscription!r} of topic {self.destination} was dropped: make it again by starting "
                "with a fresh checkpoint, or consume with another one"
            )
        known = snapshot.destination.subscriptions.get(self.subscription)
        if known is not None:  # dropped and made again by somebody with another selector?
            selector = self.settings.selector
            check_selector(known, self.destination, selector.text.strip() if selector else None)

    def _check_not_behind(self, start: Batch, snapshot: Snapshot) -> None:
        """Once, when a query starts: what its checkpoint says last must not be older than what it has acknowledged. The
        batches in between are in its sink, under the numbers that the next ones would get: an idempotent sink would drop
        those, and they would be acknowledged."""
        if not self.settings.replayable or self._not_behind:
            return
        newest = ""
        for member in range(snapshot.destination.members):
            known = read_state(self._store, self.members.name(member)).acknowledged.get(self.consumer, "")
            newest = max(newest, known, key=claim_number)
        behind = claim_number(start.claim) < claim_number(newest)
        if behind and (not start.claim or claim_number(start.claim)):  # else it is from before claims had numbers
            raise StaleCheckpointError(
                f"the checkpoint of consumer {self.consumer} of {self.destination} ends with claim {start.claim or '(none)'}, "
                f"but this consumer has acknowledged claim {newest}: the checkpoint is an older copy, another instance runs on "
                "it, or its progress is written asynchronously. Its next batches would get numbers that its sink has seen, "
                "and be lost there. Start with a fresh checkpointLocation: it gets all that nobody has finished."
            )
        self._not_behind = True

    def _acquire(self, snapshot: Snapshot, needed: set[int]) -> None:
        members = max([snapshot.destination.members, *(m + 1 for m in needed)])  # a member may be removed by now
        last = {m: snapshot.last_sequence(m) for m in range(members)}
        self.members.acquire(
            members,
            last,
            visits_all=self.settings.selector is not None,
            needed=needed,
            only=self.settings.members,
        )

    def _unsettled_members(self, start: Batch) -> set[int]:
        if not start.claim or start.claim == self._acknowledged:
            return set()
        return self._unsettled.setdefault(start.claim, set(start.members))

    def _attached(self, member: int) -> RecordSet:
        state = self.members.held[member].state
        if member not in self.members.attached:
            state = state.attach(self.consumer, self.members.session_id)
        return state

    def _settle(self, start: Batch, needed: set[int]) -> dict[int, RecordSet]:
        """The held members' states with `start` acknowledged, unlogged claims dropped, dead sessions swept."""
        live = set(self._store.sessions())
        now, timeout_ms = self._clock_ms(), self.settings.in_doubt_timeout_ms
        if timeout_ms is None:
            timeout_ms = self.table.snapshot.destination.in_doubt_timeout_ms
        changed: dict[int, RecordSet] = {}
        for member, held in self.members.held.items():
            fresh = member not in self.members.attached
            # An older self that lives, or lived when we started, may run a batch that we drop as unlogged: flag it.
            rivals = [c.id for c in held.state.claims.values() if c.consumer == self.consumer
                      and c.session != self.members.session_id and c.session in self._met | live]  # fmt: skip
            self._check_not_ahead(held.state, member)
            state = self._attached(member)
            if member in needed:
                state = self._acknowledge_start(state, start, member, fresh, held.handle.epoch)
            if self.settings.replayable:
                for claim in rivals:
                    state = state.release(claim, delivered=True)
                state = state.drop(self.consumer)
            floor = self.table.snapshot.destination.start_floor(self.subscription, member)
            changed[member] = state.sweep(live, now, timeout_ms).start_at(floor)
        return changed

    def _check_not_ahead(self, state: RecordSet, member: int) -> None:
        """The store must not know of messages that the table has never had: their numbers would be given again, to
        messages that then count as done."""
        known = max([state.floor, *(ranges.last for ranges in (state.done, state.claimed) if ranges)])
        if known > self.table.snapshot.last_sequence(member) and known > self.table.refresh().last_sequence(member):
            raise RecordSetError(
                f"the store knows message {known} of {self.members.name(member)}, but the table ends at "
                f"{self.table.snapshot.last_sequence(member)}: the table lost commits (power loss, an older copy restored). "
                "Restore the tables and the store from copies of one moment (docs/OPERATING.md, backup)."
            )

    def _acknowledge_start(self, state: RecordSet, start: Batch, member: int, fresh: bool, epoch: int) -> RecordSet:
        picks = start.members[member].picks
        if start.claim in state.claims:
            return state.acknowledge(self.consumer, self.members.session_id, start.claim, epoch, self._clock_ms())
        if state.is_done(picks) or start.claim in self._revoked or (fresh and start.claim not in self._own):
            return state  # acknowledged before, or revoked while we were away: the messages are others' now
        raise ConsumerClosedException(
            f"claim {start.claim} of consumer {self.consumer} on {self.members.name(member)} was revoked: nothing was "
            "acknowledged and its messages go to others, flagged as redelivered. Start the query again."
        )

    def _left_to_others(self, snapshot: Snapshot) -> list[int]:
        """Held members with messages that our selector refuses. Who has his share of members asks for no more, so what is
        there would wait for ever if we kept the record; a free one is taken by whoever looks next."""
        return [
            member
            for member, refused in self.planner.refused.items()
            if member in self.members.held
            and not self.planner.unfinished(member)
            and refused & self.members.held[member].state.available(1, snapshot.last_sequence(member))
        ]

    def _plan(
        self,
        snapshot: Snapshot,
        start: Batch,
        changed: dict[int, RecordSet],
        going: Set[int],
        limits: Limits,
        targets: Mapping[int, int] | None,
    ) -> Batch | None:
        planned: dict[int, Ranges] = {}
        full = {member for member, state in changed.items() if state.outbox_is_full}
        if full:
            log.warning("%s: members %s wait for their acknowledgement table", self.destination, sorted(full))
        for member in sorted(set(changed) - going - full):
            last = snapshot.last_sequence(member)
            if targets is not None:
                last = min(last, targets.get(member, 0))
            epoch = self.members.held[member].handle.epoch
            changed[member], picks = self.planner.picks(snapshot, member, changed[member], last, limits, epoch)
            if picks:
                planned[member] = picks
        total = sum(picks.count for picks in planned.values())
        waited_ms = (time.monotonic() - self._last_batch_s) * 1000
        if total == 0 or (total < limits.min_messages and waited_ms < limits.max_delay_ms and targets is None):
            for member, picks in planned.items():
                self.planner.not_claimed(member, picks)
            return None
        claim = claim_after(start.claim, secrets.token_hex(8))
        members: dict[int, MemberPick] = {}
        for member, count in self.planner.shares(snapshot, planned, limits).items():
            picks = planned[member].take(count).take_ranges(MAX_RANGES_PER_MEMBER)
            self.planner.not_claimed(member, planned[member] - picks)
            if not picks:
                continue
            state = changed[member]
            made = Claim(
                claim, self.consumer, self.members.session_id, picks, self._clock_ms(), self.settings.replayable
            )
            changed[member] = state.claim(made)
            members[member] = MemberPick(self.members.held[member].handle.epoch, picks, state.redelivered(picks))
        return Batch(self.consumer, claim, members)


def read_state(store: Store, name: str) -> RecordSet:
    """A record set as it stands, without opening it."""
    return RecordSet.from_bytes(store.peek(name).get("state"), name)
