"""Barriers and paths of units of order in a destination's log. core/ordering/units_of_order.py has the rules.

Barriers are passed and forgotten by commits to the metadata of the table. Paths are made by sends and ended by housekeeping.

Features: T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import partial

from spark_jms.core.destinations.destination import Subscription
from spark_jms.core.destinations.subscriptions import is_durable
from spark_jms.core.ordering.units_of_order import Barrier, SlotMap, by_member, end_action, path_action, slot_of
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import UnreadableTableError
from spark_jms.log.tables.commit import Decision, commit, commit_prepared, metadata_action
from spark_jms.log.tables.delta_log import Action, DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot

_UNIT = "JMSXGroupID"
_MOST_IN_A_COMMIT = 10_000

# -- barriers ----------------------------------------------------------------------------------------------------------


def pass_barriers(log: DeltaLog, subscription: str, passed: Collection[Barrier]) -> None:
    """Note that a subscription has passed barriers. Does nothing when others have done it already."""
    commit(log, lambda snapshot: decide_passed(snapshot, subscription, passed))


def decide_passed(snapshot: Snapshot, subscription: str, passed: Collection[Barrier]) -> Decision | None:
    """Pure. One that was dropped meanwhile has passed nothing, or another one of its name would have."""
    declared = snapshot.destination
    if declared.slots is None:
        return None
    if declared.is_topic and is_durable(subscription) and subscription not in declared.subscriptions:
        return None
    return _with(snapshot, declared.slots.pass_by(passed, subscription, is_last=not declared.is_topic))


def forget_barriers(log: DeltaLog, known: Collection[Barrier], live: Mapping[str, Subscription]) -> None:
    """Forget barriers of a topic that no subscription waits behind. `known`: the barriers of a snapshot that was fixed before the
    subscriptions were read that are not durable, so one that begins later begins behind them. Commits only when something changes."""
    commit(log, partial(decide_forgotten, frozenset(known), live))


def decide_forgotten(
    known: Collection[Barrier], live: Mapping[str, Subscription], snapshot: Snapshot
) -> Decision | None:
    """Pure."""
    declared = snapshot.destination
    if declared.slots is None or not declared.is_topic:
        return None

    def floor(subscription: str, member: int) -> int:
        if subscription in live:
            return live[subscription].floor(member, snapshot.last_sequence(member))
        return declared.start_floor(subscription, member)

    return _with(snapshot, declared.slots.forgotten(known, {*declared.subscriptions, *live}, floor))


def _with(snapshot: Snapshot, slots: SlotMap) -> Decision | None:
    declared = snapshot.destination
    if slots == declared.slots:
        return None
    after = declared.with_barriers(slots, snapshot.last_sequence)
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])


# -- paths -------------------------------------------------------------------------------------------------------------


def check_placed(log: DeltaLog, snapshot: Snapshot, files: Iterable[StagedFile]) -> None:
    """Raises ServerDownError when a unit that was placed as a new one is not new: the table has messages of it."""
    units = {unit for file in files for unit in file.placed if unit not in snapshot.paths}
    if not units:
        return
    slots, to_look_at = snapshot.destination.slot_map, dict[int, set[str]]()
    for unit in units:
        for member in slots.holders(slot_of(unit)):
            to_look_at.setdefault(member, set()).add(unit)
    known = {unit for member, wanted in to_look_at.items() for unit in _units_of(log, snapshot, member, wanted)}
    snapshot.destination.check_up(slots.owners[slot_of(unit)] for unit in known)


def new_paths(snapshot: Snapshot, files: Iterable[StagedFile]) -> list[Action]:
    """Pure. The paths of the units that were placed, and checked by `check_placed`."""
    placed = {unit: file.member for file in files for unit in file.placed if unit not in snapshot.paths}
    return [path_action(unit, member) for unit, member in sorted(placed.items())]


def ended_paths(ended: Iterable[str]) -> list[Action]:
    return [end_action(unit) for unit in sorted(ended)]


def end_paths(log: DeltaLog) -> int:
    """End the paths of units without messages in the table; returns how many. Without paths it does no I/O."""
    snapshot = log.snapshot
    if not snapshot.paths:
        return 0
    unused = sorted(_without_messages(log, snapshot, snapshot.paths))
    ended = 0
    for first in range(0, len(unused), _MOST_IN_A_COMMIT):
        units = unused[first : first + _MOST_IN_A_COMMIT]
        done = commit_prepared(log, partial(_still_without, log, units), decide_ended)
        ended += 0 if done is None else len(done.decision.actions)
    return ended


class PathEnding:
    """Rounds of `end_paths`. A round looks at every unit that has a path, so with a million of them it takes seconds: then the
    next one waits, and at most a tenth of the time goes to it."""

    _SHARE = 10

    def __init__(self, log: DeltaLog, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock_s = log, clock_s
        self._next_s = clock_s()

    def run(self) -> None:
        began = self._clock_s()
        if began >= self._next_s:
            end_paths(self._log)
            self._next_s = began + self._SHARE * (self._clock_s() - began)


def decide_ended(snapshot: Snapshot, ended: Collection[str]) -> Decision | None:
    """Pure. `ended`: paths without messages in this snapshot."""
    return Decision("END PATHS", ended_paths(ended)) if ended else None


def _still_without(log: DeltaLog, units: Iterable[str], snapshot: Snapshot) -> set[str]:
    return _without_messages(log, snapshot, {unit: snapshot.paths[unit] for unit in units if unit in snapshot.paths})


def _without_messages(log: DeltaLog, snapshot: Snapshot, paths: Mapping[str, int]) -> set[str]:
    """Those of these paths' units."""
    found = by_member(paths)
    return {unit for member, units in found.items() for unit in units - _units_of(log, snapshot, member, units)}


def _units_of(log: DeltaLog, snapshot: Snapshot, member: int, wanted: Collection[str]) -> set[str]:
    """Those of the wanted units that have messages in this member's files. Reads one column of the files whose statistics do not
    exclude them."""
    left, ordered = set(wanted), sorted(wanted)
    for file in snapshot.member_files(member).files:
        if not left:
            break
        if may_have(file, ordered):
            left -= _units_in(log, file, left)
    return set(wanted) - left


def _units_in(log: DeltaLog, file: DataFile, wanted: Set[str]) -> set[str]:
    """Clean-up may have deleted a file that a later version has removed: then what is decided on this one is decided again."""
    try:
        return log.units.among(file.path, wanted)
    except FileNotFoundError as error:
        if log.has_news():
            return set()
        raise UnreadableTableError(f"data file {file.path} of {log.storage.uri} is missing: restore it") from error


def may_have(file: DataFile, units: Sequence[str]) -> bool:
    """By the file's statistics. `units` are sorted."""
    if not file.has_groups:
        return False
    low, high = (file.statistics.get(bound, {}).get(_UNIT) for bound in ("minValues", "maxValues"))
    if low is None or high is None:
        return True
    first = bisect_left(units, low)
    return first < len(units) and units[first] <= high
