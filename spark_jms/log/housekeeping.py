"""Housekeeping keeps a destination small while readers and writers use it.

Every change is a commit without data change, which checks again that the files it replaces are still in the log. A file
that leaves the log stays on disk for the destination's grace, for batches that still read it.

    purge.py       files that every subscription has finished, and old acknowledgements, leave the log
    unit_paths.py  paths end of units of order that have no messages left
    compaction.py  runs of small neighbouring files of a member become one; sequences do not change
    clean_up.py    a Delta checkpoint every 50 versions; deletion of files that are no longer needed

    sender_housekeeping.py  compaction and Delta checkpoints by processes that only send

Housekeeping is not what a caller asked for, so its failures go to a `Monitor` and never to a sender or a receiver. Each
step fails and pauses by itself; the others continue.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

from spark_jms.log.clean_up import CleanUp, checkpoint
from spark_jms.log.compaction import compact
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.monitor import Monitor
from spark_jms.log.purge import IsDone, LiveNames, Publish, purge, purge_acknowledgements
from spark_jms.log.report import HousekeepingReport
from spark_jms.log.unit_paths import PathEnding


class HousekeepingRounds:
    """Rounds of one destination and the tables beside it: of its acknowledgements and, where it has one, of its life-cycle
    log. `is_done`, `live_names` and `publish` ask the store, for the purge; `clean_store` belongs to clean-up."""

    CLEAN_UP_EVERY_S = 60.0

    def __init__(
        self,
        logs: Mapping[str, DeltaLog],
        is_done: IsDone,
        clock_s: Callable[[], float] = time.monotonic,
        monitor: Monitor | None = None,
        clean_store: Callable[[], None] = lambda: None,
        live_names: LiveNames = tuple,
        publish: Publish = lambda: True,
    ) -> None:
        self.logs = dict(logs)
        self._purge_messages = partial(purge, is_done=is_done, live_names=live_names, publish=publish)
        self._clock_s, self._clean_store = clock_s, clean_store
        for log in logs.values():
            log.recent.keep()
        self._clean_ups = {kind: CleanUp(log) for kind, log in logs.items()}
        self._paths = PathEnding(logs["messages"], clock_s)
        self._cleaned_s = clock_s()
        self.total = HousekeepingReport()
        self.monitor = monitor or Monitor(f"housekeeping of {logs['messages'].name}")

    def add(self, kind: str, log: DeltaLog) -> None:
        """Another table, of which old rows are purged as old acknowledgements are."""
        log.recent.keep()
        self.logs[kind], self._clean_ups[kind] = log, CleanUp(log)

    def round(self) -> None:
        """Raises nothing: `monitor` has the failures."""
        clean = self._clock_s() - self._cleaned_s >= self.CLEAN_UP_EVERY_S
        if clean:
            self._cleaned_s = self._clock_s()
        for kind, log in self.logs.items():
            self.monitor.run(f"purge of {kind}", partial(self._purge, kind))
            if kind == "messages":
                self.monitor.run("paths of units of order", self._paths.run)
            self.monitor.run(f"compaction of {kind}", partial(compact, log, self.total, self.monitor))
            self.monitor.run(f"Delta checkpoint of {kind}", partial(self._checkpoint, kind))
            if clean:
                self.monitor.run(f"clean-up of {kind}", partial(self._clean_ups[kind].run, self.total))
        if clean:
            self.monitor.run("clean-up of dropped subscriptions", self._clean_store)

    def _checkpoint(self, kind: str) -> None:
        checkpoint(self.logs[kind], self.total)
        self._clean_ups[kind].note_checkpoint()

    def _purge(self, kind: str) -> None:
        messages = self.logs["messages"]
        if kind == "messages":
            self._purge_messages(messages, report=self.total)
        else:
            purge_acknowledgements(self.logs[kind], messages.snapshot.destination.acknowledgement_retention_ms)
