"""Expired messages leave their member by the policy of the destination: core/expiration.py has the rules.

The holder of a record set calls this: a consumer for what its plan has found, the scan of a process for the rest. The log
tells of a message once its end is written, so never twice; a process that dies in between has not logged it.

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_jms.claims.error_destination import ErrorDestination, UnclaimedMessages
from spark_jms.claims.fetch import fetch
from spark_jms.core.destination import Destination
from spark_jms.core.expiration import EXPIRER, REASON
from spark_jms.core.expiration_log import columns_of, entry
from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.utf8 import readable_rows
from spark_jms.errors import JmsqError
from spark_jms.log.breath import rest
from spark_jms.log.data_file import FileHint
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.snapshot import Snapshot
from spark_jms.settings.destination import UNLIMITED
from spark_jms.settings.expiration import DISCARD, LOG, REDIRECT, LoggedFields

# Messages of one step of a search. While it lasts no consumer has the record, and logging 50,000 takes seconds: consumers that
# gave the record away more often would deliver more than one message in a hundred late.
LOGGED, REDIRECTED = 50_000, 2_000
IDLE = 500  # of a plan of a consumer that delivers nothing
DELIVERING, DELIVERING_EVERY_MS = 100, 1_000  # of one that does, and how often; the search takes the others
_STEP_ROWS = 25  # of the log: about a millisecond of Python
log = logging.getLogger("spark_jms")
expiration_log = logging.getLogger("spark_jms.expiration")


@dataclass(frozen=True)
class _Unlogged:
    """Expired messages, as they were before their end was written."""

    destination: str
    table_id: str
    member: int
    picks: Ranges
    redelivered: dict[int, Ranges]
    files: Sequence[FileHint]  # a purge may take them out of the log
    fields: LoggedFields


class Expiration:
    """Of one holder. Not thread-safe: the holder's lock guards it."""

    def __init__(
        self,
        table: DeltaLog,
        errors: ErrorDestination,
        session: str,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
        *,
        beside: bool,
    ) -> None:
        """`beside`: the holder is a consumer."""
        self._table, self._beside = table, beside
        self._unclaimed = UnclaimedMessages(errors, EXPIRER, session, label, clock_ms)
        self._unlogged: list[_Unlogged] = []
        self._clock_ms = clock_ms
        self._delivered_ms = 0  # when a plan had others to deliver last
        self._taken_ms = 0  # when some were taken beside them

    def expire(
        self, state: RecordSet, snapshot: Snapshot, member: int, over: Ranges, epoch: int, *, delivers: bool = False
    ) -> RecordSet:
        """The state of a held member without these messages, as far as possible: so many in one step if they are logged or
        redirected, but units of work as a whole. A consumer that `delivers` others takes a step a second, until it had none to
        deliver for so long: its plan between two messages is empty too. When it has a new intent, the caller writes the state and
        then finishes the transfer. Raises DataLossError for messages that are gone."""
        declared = snapshot.destination
        over = state.unfinished_of(over - state.claimed - state.moving - state.refused)
        if delivers:
            self._delivered_ms = self._clock_ms()
        if over and (most := self._most(declared)) is not None:
            over = over.take(most)
        if not over:
            return state
        if declared.expiration_policy == REDIRECT:
            if not self._unclaimed.may_move(member):
                return state
            kept_back = "have expired; they are kept back, because they"
            return self._unclaimed.move(state, declared, member, over, epoch, REASON, kept_back)
        if declared.expiration_policy == LOG and expiration_log.isEnabledFor(logging.WARNING):
            self._unlogged.append(_unlogged(state, snapshot, member, over))
        return state.expire(over)

    def _most(self, declared: Destination) -> int | None:
        """Of one step; None: all. Reading and logging takes as long as a delivery, but others may depend on the whole: a unit of
        work, or a limit that counts what is not finished."""
        if declared.expiration_policy == DISCARD or declared.handles_units_of_work:
            return None
        if not self._beside:
            return LOGGED if declared.expiration_policy == LOG else REDIRECTED
        now = self._clock_ms()
        if not self._is_recent(self._delivered_ms, now) or declared.messages_limit_override != UNLIMITED:
            return IDLE
        if self._is_recent(self._taken_ms, now):
            return 0
        self._taken_ms = now
        return DELIVERING

    @staticmethod
    def _is_recent(then_ms: int, now_ms: int) -> bool:
        return 0 <= now_ms - then_ms < DELIVERING_EVERY_MS

    def forget(self) -> None:
        """What was expired last is not written."""
        self._unlogged = []

    def log_written(self) -> None:
        """What was expired is written: log it."""
        unlogged, self._unlogged = self._unlogged, []
        for each in unlogged:
            try:
                _log(self._table, each, beside=self._beside)
            except (JmsqError, OSError) as error:  # they have expired, so this fails nothing else
                log.warning(
                    "%s, member %d: %d message(s) have expired (%s), and could not be read for the log: %s",
                    each.destination,
                    each.member,
                    each.picks.count,
                    each.picks,
                    error,
                )


def _unlogged(state: RecordSet, snapshot: Snapshot, member: int, picks: Ranges) -> _Unlogged:
    declared = snapshot.destination
    files = snapshot.member_files(member).overlapping(picks.first, picks.last)
    return _Unlogged(
        declared.name,
        snapshot.table_id,
        member,
        picks,
        state.redelivered(picks),
        [file.hint for file in files if picks.between(file.first, file.last)],
        LoggedFields.parse(declared.expiration_logging_policy),
    )


def _log(table: DeltaLog, each: _Unlogged, *, beside: bool) -> None:
    """A search lets others run meanwhile: the threads of its process, and consumers of this machine."""
    begun_s = time.monotonic()
    rows = fetch(
        table,
        each.destination,
        each.member,
        each.picks,
        each.redelivered,
        columns=columns_of(each.fields),
        files=each.files,
        fail_on_data_loss=False,
        table_id=each.table_id,
    )
    for batch in rows:
        for at in range(0, batch.num_rows, _STEP_ROWS):
            _log_rows(batch.slice(at, _STEP_ROWS), each.fields)
            if not beside:
                begun_s = rest(begun_s)


def _log_rows(rows: pa.RecordBatch, fields: LoggedFields) -> None:
    for row in readable_rows(rows).to_pylist():
        expiration_log.warning("%s", entry(row, dict(row.get("properties") or ()), fields))
