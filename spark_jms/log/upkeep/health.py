"""The health of background work: what fails now, since when, when it is tried again, and how it gives way to other threads.

    state      event      next       then
    -----      -----      ----       ----
    working    success    working
    working    failure    failing    a log line; the first pause
    failing    failure    failing    twice the pause, up to the longest one; a log line if the error is of another kind
    failing    success    working    a log line

A failure of background work never fails a caller by itself; `docs/PROMISES.md` names the exceptions.

One thread at a time runs Python, and it gives up its turn only after 5 ms unless it waits for something. A sender waits for small
things some thirty times a send. So beside a thread that computes for 20 ms a send would take 20 ms. Housekeeping therefore works
in steps of about a millisecond, and sleeps as long as each took (`give_way`): then a send beside it takes about twice its time. A
sleep of 0 s would not wake the others. What takes minutes, as the search for a million expired messages, also rests in proportion
to its work (`rest`): consumers need the cores.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from spark_jms.log.tables.storage import now_ms

log = logging.getLogger("spark_jms")
LONGEST_PAUSE_MS = 600_000
FIRST_PAUSE_MS = 2_000
_SHOWN = 50
_ERROR_CHARS = 500
STEP_FILES = 64  # of a commit or a merge: about a millisecond of Python
_BREATH_S, _LONGEST_BREATH_S = 0.0005, 0.005
_RESTS = 2.0  # as long as the work: a third of a core is left to it


@dataclass(frozen=True)
class BackgroundFailure:
    """Work that fails now. Times are milliseconds since 1970 UTC; `count` is the number of failed attempts in a row."""

    what: str
    error: str
    count: int
    since_ms: int
    last_ms: int
    retry_ms: int

    @property
    def kind(self) -> str:
        return self.error.partition(":")[0]


@dataclass(frozen=True)
class Health:
    """An immutable value. `failed_attempts` counts all failures so far, also those that later attempts cured."""

    failures: Mapping[str, BackgroundFailure] = field(default_factory=dict)
    failed_attempts: int = 0

    def is_due(self, what: str, now_ms: int) -> bool:
        """False while a failed work pauses."""
        failure = self.failures.get(what)
        return failure is None or now_ms >= failure.retry_ms

    def failed(self, what: str, error: Exception, now_ms: int, first_pause_ms: int, longest_ms: int) -> Health:
        known = self.failures.get(what)
        count = known.count + 1 if known else 1
        text = f"{type(error).__name__}: {error}"[:_ERROR_CHARS]
        retry_ms = now_ms + pause(first_pause_ms, count, longest_ms)
        failure = BackgroundFailure(what, text, count, known.since_ms if known else now_ms, now_ms, retry_ms)
        return Health({**self.failures, what: failure}, self.failed_attempts + 1)

    def succeeded(self, what: str) -> Health:
        if what not in self.failures:
            return self
        return replace(self, failures={name: failure for name, failure in self.failures.items() if name != what})

    # -- in the store, for `jmsq stat` ----------------------------------------------------------------------------
    def to_bytes(self) -> bytes:
        """At most 50 failures, the oldest first."""
        return json.dumps([asdict(failure) for failure in list(self.failures.values())[:_SHOWN]]).encode()


class Monitor:
    """Watches background work: counts and logs its failures, and paces the retries. Thread-safe. `where` names the work in log
    lines: a destination or a thread."""

    def __init__(self, where: str, clock_ms: Callable[[], int] = now_ms) -> None:
        self.where = where
        self.health = Health()
        self._clock_ms = clock_ms
        self._lock = threading.Lock()

    def run(
        self,
        what: str,
        work: Callable[[], object],
        first_pause_ms: int = FIRST_PAUSE_MS,
        longest_ms: int = LONGEST_PAUSE_MS,
    ) -> None:
        """Do the work, unless it failed and its pause is not over. Its errors are recorded, not raised."""
        if not self.is_due(what):
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - `failed` logs it; statistics and `jmsq stat` show it
            self.failed(what, error, first_pause_ms, longest_ms)
        else:
            self.succeeded(what)

    def is_due(self, what: str) -> bool:
        return self.health.is_due(what, self._clock_ms())

    def failed(
        self, what: str, error: Exception, first_pause_ms: int = FIRST_PAUSE_MS, longest_ms: int = LONGEST_PAUSE_MS
    ) -> None:
        with self._lock:
            known = self.health.failures.get(what)
            self.health = self.health.failed(what, error, self._clock_ms(), first_pause_ms, longest_ms)
            failure = self.health.failures[what]
        if known is None or known.kind != failure.kind:
            log.warning("%s: %s failed and will be retried: %s", self.where, what, failure.error)

    def succeeded(self, what: str) -> None:
        with self._lock:
            failure = self.health.failures.get(what)
            self.health = self.health.succeeded(what)
        if failure is not None:
            log.info("%s: %s works again after %d failure(s)", self.where, what, failure.count)

    def forget(self, whats: Iterable[str]) -> None:
        """What failed no longer exists."""
        with self._lock:
            for what in whats:
                self.health = self.health.succeeded(what)


@dataclass
class HousekeepingReport:
    """What housekeeping has done: counts, added up over the rounds of one destination."""

    purged_files: int = 0
    purged_messages: int = 0
    compacted_files: int = 0
    checkpoints: int = 0
    deleted_files: int = 0
    expired_messages: int = 0


def failures_from_bytes(stored: bytes | None) -> tuple[BackgroundFailure, ...]:
    """Keys that a later version has added are ignored."""
    names = BackgroundFailure.__dataclass_fields__
    return tuple(
        BackgroundFailure(**{k: v for k, v in entry.items() if k in names}) for entry in json.loads(stored or b"[]")
    )


def pause(first: int, count: int, longest: int) -> int:
    """The pause after `count` failures in a row: it doubles up to the longest one."""
    return min(longest, first << min(count - 1, 30))


# -- giving way --------------------------------------------------------------------------------------------------------


def give_way() -> None:
    """Sleep as long as the thread has worked since its last breath, within bounds: its work may have begun later."""
    worked_s = time.monotonic() - _breath.ended_s
    time.sleep(min(max(worked_s, _BREATH_S), _LONGEST_BREATH_S))
    _breath.ended_s = time.monotonic()


def rest(begun_s: float) -> float:
    """After work that began then, of a monotonic clock. Work that takes longer because others compute rests longer too. Returns the
    time."""
    time.sleep(max((time.monotonic() - begun_s) * _RESTS, _BREATH_S))
    return time.monotonic()


class Breath(threading.local):
    ended_s = 0.0  # of the thread's last breath, of a monotonic clock


_breath = Breath()
