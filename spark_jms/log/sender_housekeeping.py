"""Housekeeping by senders: a destination that is only written to stays small as well.

A sender counts versions, and a thread of its own compacts and writes Delta checkpoints. The versions since the last Delta
checkpoint decide, which are in the log: what one process leaves undone the next one finds.

    versions since the last one    what the sender does
    ---------------------------    --------------------
    fewer than 100                 nothing
    100 or more                    wakes the thread; `close` waits for it
    1,000 at its first send        does the work before it returns: the processes before it ended too early to do it

At most one task for each destination waits. Failures are logged, and published in the domain for `jmsq stat`, because a sink
has no store; they never reach the sender.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from spark_jms.core.health import BackgroundFailure, failures_from_bytes
from spark_jms.log.checkpoints import newest_checkpoint_version
from spark_jms.log.clean_up import checkpoint
from spark_jms.log.compaction import compact
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.monitor import Monitor

DUE_VERSIONS = 100
OVERDUE_VERSIONS = 1000
_HEALTH = "_jmsq/health"
_LONGEST_WAIT_S = 60.0


class SenderHousekeeping:
    """Of the destinations of one domain. Thread-safe."""

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
