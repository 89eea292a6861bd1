"""What one consumer may be given of the members it holds: the picks of a batch, before they are claimed (C6, C7, C12).

One plan reads the headers of a bounded number of messages. Where that is not enough to get through a member, the *pass*
goes on with the next plan, behind what was looked at:

    a pass begins   at the first available message, with the first plan and after the end of the one before
    it goes on      behind the last message looked at, or at the first one that was found and not claimed
    it ends         at the last message

In a pass nobody looks back, so a unit of order that was in others' hands while the pass went by stays out of it until
its end: or a later message of the unit could be picked before an earlier one that has become free.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_jms.claims.scan import Question, groups_of, scan
from spark_jms.core.batch import Limits, fair_shares
from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.core.record_set import RecordSet
from spark_jms.core.selector import Selector
from spark_jms.errors import DataLossError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.snapshot import Snapshot

log = logging.getLogger("spark_jms")
MAX_ROWS_READ = 200_000  # headers read by one plan in one member: about half a second


@dataclass(frozen=True)
class _Pass:
    behind: int  # the last sequence looked at
    units: frozenset[str]  # in others' hands at some time of this pass
    epoch: int  # of the record: what others did while they had it was not seen


class Planner:
    """Not thread-safe: the subscriber's lock guards it. `refused` is what the selector refuses of a queue's members."""

    def __init__(
        self,
        table: DeltaLog,
        consumer: str,
        selector: Selector | None,
        fail_on_data_loss: bool,
        name: Callable[[int], str],
        clock_ms: Callable[[], int],
    ) -> None:
        self.table, self.consumer, self.selector = table, consumer, selector
        self.refused: dict[int, Ranges] = {}
        self._fail_on_data_loss, self._name, self._clock_ms = fail_on_data_loss, name, clock_ms
        self._passes: dict[int, _Pass] = {}

    def unfinished(self, member: int) -> bool:
        """A pass goes on: ask again, there may be more."""
        return member in self._passes

    def start_again(self, member: int) -> None:
        """Something that the pass has left behind has become free by ourselves."""
        self._passes.pop(member, None)

    def not_claimed(self, member: int, picks: Ranges) -> None:
        """These were found and not taken: a pass goes on with them."""
        known = self._passes.get(member)
        if known and picks and picks.first <= known.behind:
            self._passes[member] = _Pass(picks.first - 1, known.units, known.epoch)

    def picks(
        self, snapshot: Snapshot, member: int, state: RecordSet, last: int, limits: Limits, epoch: int
    ) -> tuple[RecordSet, Ranges]:
        """What may go now, in order, and the state without what is expired, lost or, in a topic, refused. With a limit no
        more is looked at than is needed: a plan costs the same whatever the backlog."""
        going, most_rows = self._passes.get(member), self._most_rows(limits)
        if going and going.epoch != epoch and any(f.has_groups for f in snapshot.member_files(member).files):
            going, most_rows = None, None  # units may have come back meanwhile: from the start, and to the end
        available = state.available(1, last) - self.refused.get(member, EMPTY)
        ahead = available.between(going.behind + 1, last) if going and going.behind < last else available
        if not ahead or ahead is available:
            going, ahead = None, available
        others = union(c.picks for c in state.claims.values() if c.consumer != self.consumer)
        units = (groups_of(self.table, member, others) if others else frozenset()) | (
            going.units if going else frozenset()
        )
        question = Question(self.selector, units, self._clock_ms())
        enough = None if limits.max_messages is None else max(limits.max_messages, limits.min_messages)
        picks, left, read = EMPTY, ahead, 0
        while left and (enough is None or picks.count < enough) and (most_rows is None or read < most_rows):
            window = left if enough is None or left is not ahead else left.take(enough)
            state, there = self._check_loss(snapshot, state, window, member)
            rest = left - window
            if there:
                found = scan(
                    self.table, member, there, question,
                    None if enough is None else enough - picks.count, None if most_rows is None else most_rows - read,
                )  # fmt: skip
                state = self._settle(snapshot, state, member, found.expired, found.refused, found.gone)
                picks, read, rest = picks | found.picks, read + found.read, found.left | rest
            left = rest
        if left and (going or (most_rows is not None and read >= most_rows)):
            self._passes[member] = _Pass(left.first - 1, units, epoch)
        else:
            self._passes.pop(member, None)
        return state, picks

    def shares(self, snapshot: Snapshot, planned: Mapping[int, Ranges], limits: Limits) -> dict[int, int]:
        """How many of each member's picks the batch takes."""
        shares = {member: picks.count for member, picks in planned.items()}
        if limits.max_messages is not None:
            shares = fair_shares(limits.max_messages, shares)
        if limits.max_bytes is not None:
            share_bytes = limits.max_bytes // max(len(planned), 1)
            shares = {m: min(n, _fitting(snapshot, m, planned[m], share_bytes)) for m, n in shares.items()}
        return shares

    # -- inside ---------------------------------------------------------------------------------------------------
    @staticmethod
    def _most_rows(limits: Limits) -> int | None:
        """A batch that waits for a minimum has to see all there is."""
        return MAX_ROWS_READ if limits.min_messages <= 1 else None

    def _settle(
        self, snapshot: Snapshot, state: RecordSet, member: int, expired: Ranges, refused: Ranges, gone: Ranges
    ) -> RecordSet:
        if expired:
            state = state.skip(expired)
        if refused and snapshot.destination.is_topic:
            state = state.skip(refused)  # not for this subscription, ever
        elif refused:
            known = self.refused.get(member, EMPTY) & state.unfinished(1, snapshot.last_sequence(member))
            self.refused[member] = known | refused  # what is done is forgotten
        return self._lose(state, gone, member) if gone else state

    def _check_loss(
        self, snapshot: Snapshot, state: RecordSet, wanted: Ranges, member: int
    ) -> tuple[RecordSet, Ranges]:
        files = snapshot.member_files(member).overlapping(wanted.first, wanted.last)
        covered = Ranges.of(*((f.first, f.last) for f in files))
        missing = wanted - covered
        return (self._lose(state, missing, member), wanted & covered) if missing else (state, wanted)

    def _lose(self, state: RecordSet, missing: Ranges, member: int) -> RecordSet:
        if self._fail_on_data_loss:
            raise DataLossError(
                f"{self._name(member)}: {missing.count} message(s) that were not consumed are gone ({missing}): purged or "
                "deleted. Set failOnDataLoss to false to go on without them."
            )
        log.warning("%s: %d message(s) are gone (%s) and are skipped", self._name(member), missing.count, missing)
        return state.skip(missing)


def _fitting(snapshot: Snapshot, member: int, picks: Ranges, limit_bytes: int) -> int:
    """How many of the first picks have about `limit_bytes`, by the files' averages; at least one, so nothing is stuck."""
    used, count = 0.0, 0
    for file in snapshot.member_files(member).overlapping(picks.first, picks.last):
        average = file.bytes / max(file.rows, 1)
        rows = picks.between(file.first, file.last).count
        fits = int((limit_bytes - used) / average)
        if fits < rows:
            return max(count + max(fits, 0), 1)
        used, count = used + rows * average, count + rows
    return max(count, 1)
