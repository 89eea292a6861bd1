"""Housekeeping keeps a destination small while readers and writers use it (C13).

Every change is a commit without data change, which checks again that the files it replaces are still in the log. A file
that leaves the log stays on disk for the destination's grace, for batches that still read it.

    purge.py       files that every subscription has finished, and old acknowledgements, leave the log
    compaction.py  runs of small neighbouring files of a member become one; sequences do not change
    clean_up.py    a Delta checkpoint every 50 versions; deletion of files that are no longer needed
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from spark_jms.log.clean_up import checkpoint, clean_up
from spark_jms.log.compaction import compact
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.purge import IsDone, purge, purge_acknowledgements
from spark_jms.log.report import HousekeepingReport

_SINK_ONLY_EVERY_VERSIONS = 100


def after_send(log: DeltaLog, version: int) -> None:
    """Senders do a little housekeeping, so that a destination that is only written to stays small as well."""
    if version > 0 and version % _SINK_ONLY_EVERY_VERSIONS == 0:
        compact(log)
        checkpoint(log)


class HousekeepingRounds:
    """Rounds of one destination and its acknowledgement table. `is_done` asks the store."""

    CLEAN_UP_EVERY_S = 60.0

    def __init__(
        self, logs: Mapping[str, DeltaLog], is_done: IsDone, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.logs, self._is_done, self._clock_s = logs, is_done, clock_s
        self._cleaned_s = clock_s()
        self.total = HousekeepingReport()

    def round(self) -> None:
        for kind, log in self.logs.items():
            if kind == "messages":
                purge(log, self._is_done, self.total)
            else:
                purge_acknowledgements(log, self.logs["messages"].snapshot.destination.acknowledgement_retention_ms)
            compact(log, self.total)
            checkpoint(log, self.total)
        if self._clock_s() - self._cleaned_s >= self.CLEAN_UP_EVERY_S:
            self._cleaned_s = self._clock_s()
            for log in self.logs.values():
                clean_up(log, self.total)
