"""Housekeeping keeps a destination small while readers and writers use it, also one that is only written to.

Every change is a commit without data change, which checks again that the files it replaces are still in the log. A file that
leaves the log stays on disk for the destination's grace, for batches that still read it.

    purge.py                    files that every subscription has finished, and old acknowledgements, leave the log
    sending/units_of_order.py   paths end of units of order that have no messages left
    compaction.py               runs of small neighbouring files of a member become one; sequences do not change
    clean_up.py                 a Delta checkpoint every 50 versions; deletion of files that are no longer needed

Housekeeping is not what a caller asked for, so its failures go to a `Monitor` and never to a sender or a receiver. Each step fails
and pauses by itself; the others continue.

A process that only sends compacts and writes Delta checkpoints, in a thread of its own (SenderHousekeeping). The versions since
the last Delta checkpoint decide, which are in the log: what one process leaves undone the next one finds.

    versions since the last one    what the sender does
    ---------------------------    --------------------
    fewer than 100                 nothing
    100 or more                    wakes the thread; `close` waits for it
    1,000 at its first send        does the work before it returns: the processes before it ended too early to do it

At most one task for each destination waits. Its failures are also published in the domain for `jmsq stat`, because a sink has no
store.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from spark_jms.log.destinations.domain import Domain
from spark_jms.log.sending.units_of_order import PathEnding
from spark_jms.log.tables.checkpoints import newest_checkpoint_version
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.upkeep.clean_up import CleanUp, checkpoint
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.health import BackgroundFailure, HousekeepingReport, Monitor, failures_from_bytes
from spark_jms.log.upkeep.purge import IsDone, LiveNames, Publish, purge, purge_acknowledgements

DUE_VERSIONS = 100
OVERDUE_VERSIONS = 1000
_HEALTH = "_jmsq/health"
_LONGEST_WAIT_S = 60.0


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


class SenderHousekeeping:
    """Housekeeping by a process that sends to the destinations of one domain. Thread-safe."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._monitors: dict[str, Monitor] = {}
        self._seen: dict[str, int] = {}  # destination -> the newest checkpoint, when we looked last
        self._due: dict[str, DeltaLog] = {}
        self._changed = threading.Condition()
        self._busy = self._closed = False
        self._thread: threading.Thread | None = None

    def sent(self, log: DeltaLog, version: int) -> None:
        """A send has committed this version. Raises nothing. From the second call on it does no I/O."""
        with self._changed:
            known = self._seen.get(log.name)
        if known is None:
            known = self._look(log)
            if version - known >= OVERDUE_VERSIONS:
                self._guarded_work(log)
                return
        if version - known >= DUE_VERSIONS:
            with self._changed:
                self._due[log.name] = log
                self._changed.notify_all()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="jmsq-sender-housekeeping", daemon=True)
                    self._thread.start()

    @property
    def failures(self) -> tuple[BackgroundFailure, ...]:
        with self._changed:
            monitors = list(self._monitors.values())
        return tuple(failure for monitor in monitors for failure in monitor.health.failures.values())

    @property
    def failed_attempts(self) -> int:
        with self._changed:
            return sum(monitor.health.failed_attempts for monitor in self._monitors.values())

    def close(self) -> None:
        """Wait until the work that is due is done, at most a minute, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._due and not self._busy, _LONGEST_WAIT_S)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed)
                if not self._due:
                    return
                name = next(iter(self._due))
                log = self._due.pop(name)
                self._busy = True
            try:
                self._guarded_work(log)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _look(self, log: DeltaLog) -> int:
        """The version of the newest Delta checkpoint."""
        self._monitor(log.name).run(
            f"looking for the Delta checkpoint of {log.name}",
            lambda: self._note(log, newest_checkpoint_version(log.storage) or 0),
        )
        with self._changed:
            return self._seen.setdefault(log.name, 0)

    def _note(self, log: DeltaLog, version: int) -> None:
        with self._changed:
            self._seen[log.name] = version

    def _guarded_work(self, log: DeltaLog) -> None:
        self._monitor(log.name).run(f"housekeeping of {log.name}", lambda: self._work(log))

    def _work(self, log: DeltaLog) -> None:
        """Done or failed, the next 100 versions come first."""
        monitor = self._monitor(log.name)
        before = monitor.health.failures
        self._note(log, log.snapshot.version)
        if log.versions_since_checkpoint() >= DUE_VERSIONS:
            monitor.run(f"compaction of {log.name}", lambda: compact(log, monitor=monitor))
            monitor.run(f"Delta checkpoint of {log.name}", lambda: checkpoint(log))
        monitor.run(f"publishing the health of {log.name}", lambda: self._publish(log.name, monitor, before))

    def _monitor(self, name: str) -> Monitor:
        with self._changed:
            return self._monitors.setdefault(name, Monitor(f"housekeeping of a sender to {name}"))

    def _publish(self, name: str, monitor: Monitor, before: Mapping[str, BackgroundFailure]) -> None:
        """A later success of any sender removes what an earlier one has published."""
        path, failures = f"{_HEALTH}/{name}", monitor.health.failures
        if failures:
            if failures != before:
                self._domain.storage.put(path, monitor.health.to_bytes())
        elif self._domain.storage.exists(path):
            self._domain.storage.delete(path)


def published_sender_failures(domain: Domain, destination: str) -> tuple[BackgroundFailure, ...]:
    """What failed in the housekeeping of the sender that did some last."""
    return failures_from_bytes(domain.storage.get(f"{_HEALTH}/{destination}"))
