"""The staged files that a backup needs: of transactions and transfers that the copied records leave open.

They are in no table yet and may be the only copy of their messages. Whether a target has them, its own copy says: what is appended
there is among its data files. The backup does not complete what is open, because a target may be paused, full or away for long.

Features: C18, C19, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from spark_jms.core.record_set_form import intents_of
from spark_jms.core.transaction import COORDINATOR_KEY, COORDINATORS_PREFIX, coordinator_from_bytes
from spark_jms.core.transfer import TargetOutcome, Ticket, TransferTarget, outcome_of
from spark_jms.errors import FormatVersionError, RecordSetError
from spark_jms.store.reports import DumpedRecord

log = logging.getLogger("spark_jms")


class StagedTarget(NamedTuple):
    """What a transaction or transfer has staged at one of its targets."""

    ticket: Ticket
    target: TransferTarget

    def needed(self, transactions: Mapping[str, int]) -> frozenset[str]:
        """The files that a copy of the target's table with these transactions lacks."""
        if outcome_of(self.ticket, transactions.get(self.ticket.app_id)) is not TargetOutcome.UNDECIDED:
            return frozenset()
        return frozenset(file.path for file in self.target.files)


def staged_targets(records: Iterable[DumpedRecord]) -> dict[str, list[StagedTarget]]:
    """By the id of the target's table."""
    found: dict[str, list[StagedTarget]] = {}
    for record in records:
        try:
            for staged in _staged(record):
                found.setdefault(staged.target.table_id, []).append(staged)
        except (RecordSetError, FormatVersionError) as error:
            log.warning("the backup has a record that cannot be read, as the domain has: %s", error)
    return found


def _staged(record: DumpedRecord) -> Iterator[StagedTarget]:
    objects = dict(record.objects)
    if record.name.startswith(COORDINATORS_PREFIX):
        state = coordinator_from_bytes(objects.get(COORDINATOR_KEY), record.name)
        if state is not None and state.open is not None:
            for target in state.open.targets:
                yield StagedTarget(state.open.ticket, target)
        return
    for intent in intents_of(objects, record.name):
        for target in intent.targets:
            yield StagedTarget(intent.ticket, target)
