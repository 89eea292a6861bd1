"""What a consumer leaves when it ends with all that it can have, and why: the warnings of Trigger.AvailableNow.

What keeps a message is looked up, in the store and in the table; it does not follow from this consumer's lack of it. Reasons that may
end within moments are waited for before (`waits_for`):

    another session has opened the member's record set     an administrator closes it within moments
    a claim is in doubt                                    its time-out may end within the wait
    anything else                                          is not waited for: a live consumer's claim is that consumer's

Features: C6, C9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from spark_jms.claims.batches.planner import Planner
from spark_jms.claims.batches.units_of_order import WHAT_TO_DO, HeldBack, behind
from spark_jms.claims.messages.scan import Question, first_delivery_time, scan, units_of
from spark_jms.claims.records.members import BacklogReader, Members
from spark_jms.core.destinations.pause import CONSUMPTION
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot

LOOKED_AT = 10_000  # messages of a member whose headers are read to find out what they wait for


@dataclass(frozen=True)
class LeftMessages:
    """So many messages of a member, and what keeps them."""

    member: int
    count: int
    why: str


class _Blocker(NamedTuple):
    sequence: int
    why: str


class LeftReader:
    """Finds out what a consumer leaves, and why. Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        table: DeltaLog,
        members: Members,
        planner: Planner,
        backlog: BacklogReader,
        clock_ms: Callable[[], int],
    ) -> None:
        self._table, self._members, self._planner, self._backlog = table, members, planner, backlog
        self._clock_ms = clock_ms

    def waits_for(self, snapshot: Snapshot, targets: Mapping[int, int], within_ms: int) -> bool:
        """Some message up to `targets` may become available within this time, because another session closes a record set, or a
        claim is revoked."""
        soon = self._clock_ms() + within_ms
        for member, last in targets.items():
            state, rest = self._rest(snapshot, member, last)
            if rest and member not in self._members.known:
                return True
            for claim in self._of_others(state):
                ends_ms = self._doubt_ends_ms(snapshot, claim)
                if ends_ms is not None and ends_ms <= soon and rest & claim.picks:
                    return True
        return False

    def left(self, snapshot: Snapshot, targets: Mapping[int, int]) -> list[LeftMessages]:
        """The unfinished messages up to `targets`, without those that the selector refuses, and without paused members."""
        declared = snapshot.destination
        paused = declared.pauses.members(CONSUMPTION, declared.member_ids)
        return [
            LeftMessages(member, picks.count, why)
            for member, last in sorted(targets.items())
            if member not in paused
            for why, picks in self._reasons(snapshot, member, last)
        ]

    # -- inside ---------------------------------------------------------------------------------------------------
    def _rest(self, snapshot: Snapshot, member: int, last: int) -> tuple[RecordSet, Ranges]:
        state = self._backlog.state(member)
        return state, self._backlog.unfinished(state, snapshot, member, last) - self._planner.refused.get(member, EMPTY)

    def _reasons(self, snapshot: Snapshot, member: int, last: int) -> Iterator[tuple[str, Ranges]]:
        state, rest = self._rest(snapshot, member, last)
        for claim in self._of_others(state):
            if picks := rest & claim.picks:
                yield self._of_claim(snapshot, claim), picks
        for intent in state.intents.values():
            if picks := rest & intent.picks:
                yield f"they are moving to {', '.join(target.destination for target in intent.targets)}", picks
        for pledge in state.pledges.values():
            if picks := rest & pledge.picks:
                yield f"a transaction of consumer {pledge.consumer} has received them and has not ended", picks
        for until_ms, ranges in sorted(state.delays.items()):
            if picks := rest & ranges.all():
                yield f"their redelivery is delayed until {_moment(until_ms)}", picks
        rest = rest - state.claimed - state.moving - state.waiting
        opener = self._opener(member)
        if rest and opener is not None:
            yield f"{opener} has opened the member's record set", rest
        elif rest:
            yield from self._of_headers(snapshot, member, state, rest)

    def _of_claim(self, snapshot: Snapshot, claim: Claim) -> str:
        ends_ms = self._doubt_ends_ms(snapshot, claim)
        if ends_ms is None:
            return f"consumer {claim.consumer} holds them"
        return f"consumer {claim.consumer} has ended, and may come back for them until {_moment(ends_ms)}"

    def _of_headers(
        self, snapshot: Snapshot, member: int, state: RecordSet, rest: Ranges
    ) -> Iterator[tuple[str, Ranges]]:
        """Of available messages: what their headers tell."""
        rest, now_ms = rest.take(LOOKED_AT), self._clock_ms()
        question = Question(now_ms=now_ms, due_ms=snapshot.destination.due_ms(member, now_ms))
        found = scan(self._table, member, rest, question, table_id=snapshot.table_id)
        if delayed := rest - found.picks - found.expired - found.gone:
            due_ms = first_delivery_time(self._table, member, delayed, table_id=snapshot.table_id)
            yield f"the delivery time of the first one is {_moment(due_ms)}", delayed
        blockers = self._blockers(snapshot, member, state, delayed)
        refused = self._planner.first_refused_of_units(member, state)
        waiting, first, kept, held = EMPTY, "", EMPTY, list[HeldBack]()
        for unit, sequence, picks in self._units(snapshot, member, found.picks):
            blocker = blockers.get(unit)
            if unit in refused:
                kept = kept | picks
                held.append(HeldBack(member, unit, refused[unit], picks.count))
            elif blocker is not None:
                waiting = waiting | picks
                first = (
                    first or f"message {sequence} waits for message {blocker.sequence} of unit {unit!r}, {blocker.why}"
                )
        if waiting:
            yield f"they wait behind others of their units of order: {first}", waiting
        if held:
            refused_first = behind(sorted(held, key=lambda one: -one.messages))
            yield (
                f"the selector takes them, and refuses earlier ones of their units of order: {refused_first}. {WHAT_TO_DO}",
                kept,
            )
        if ready := found.picks - waiting - kept:
            units = snapshot.destination.handles_units_of_work
            yield "their units of work are not complete" if units else "they were not available at the last look", ready

    def _blockers(self, snapshot: Snapshot, member: int, state: RecordSet, delayed: Ranges) -> dict[str, _Blocker]:
        """unit -> a message that holds others of the unit back, though the selector takes it."""
        kept: list[tuple[str, Ranges]] = [
            ("which is delayed", delayed | state.waiting),
            ("which is moving, or in an open transaction", state.moving),
            *((f"which consumer {claim.consumer} holds", claim.picks) for claim in self._of_others(state)),
        ]
        found: dict[str, _Blocker] = {}
        for why, picks in kept:
            firsts = units_of(self._table, member, picks, table_id=snapshot.table_id).first_of_units() if picks else {}
            found |= {unit: _Blocker(sequence, why) for unit, sequence in firsts.items()}
        return found

    def _units(self, snapshot: Snapshot, member: int, picks: Ranges) -> list[tuple[str, int, Ranges]]:
        """The units of these messages: name, first message, all messages."""
        rows = units_of(self._table, member, picks, table_id=snapshot.table_id).rows if picks else None
        numbers: dict[str, list[int]] = {}
        for unit, sequence in zip(rows["unit"].to_pylist(), rows["sequence"].to_pylist(), strict=True) if rows else ():
            numbers.setdefault(unit, []).append(sequence)
        return [(unit, min(found), Ranges.from_numbers(found)) for unit, found in numbers.items()]

    def _of_others(self, state: RecordSet) -> list[Claim]:
        return [claim for claim in state.claims.values() if claim.consumer != self._members.consumer]

    def _doubt_ends_ms(self, snapshot: Snapshot, claim: Claim) -> int | None:
        """None: its session lives."""
        if claim.session in self._members.store.sessions():
            return None
        timeout_ms = claim.in_doubt_timeout_ms
        timeout_ms = snapshot.destination.in_doubt_timeout_ms if timeout_ms is None else timeout_ms
        return (claim.in_doubt_since_ms or self._clock_ms()) + (timeout_ms if claim.replayable else 0)

    def _opener(self, member: int) -> str | None:
        """The session, as people know it, that has opened the member's record set; None: no other one."""
        info = self._members.store.info(self._members.record(member))
        if info is None or info.holder in (None, self._members.session_id):
            return None
        known = self._members.store.sessions().get(info.holder or "")
        return f"the session {known.label}" if known else "another session"


def merged(left: list[LeftMessages]) -> list[LeftMessages]:
    """One for each member and reason."""
    counts: dict[tuple[int, str], int] = {}
    for one in left:
        counts[one.member, one.why] = counts.get((one.member, one.why), 0) + one.count
    return [LeftMessages(member, count, why) for (member, why), count in counts.items()]


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).isoformat(timespec="seconds")
