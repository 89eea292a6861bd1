"""The health of background work: what fails now, since when, and when it is tried again.

    state      event      next       then
    -----      -----      ----       ----
    working    success    working
    working    failure    failing    a log line; the first pause
    failing    failure    failing    twice the pause, up to the longest one; a log line if the error is of another kind
    failing    success    working    a log line

A failure of background work never fails a caller by itself; `docs/PROMISES.md` names the exceptions.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

LONGEST_PAUSE_MS = 600_000
_SHOWN = 50
_ERROR_CHARS = 500


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


def pause(first: int, count: int, longest: int) -> int:
    """The pause after `count` failures in a row: it doubles up to the longest one."""
    return min(longest, first << min(count - 1, 30))


def failures_from_bytes(stored: bytes | None) -> tuple[BackgroundFailure, ...]:
    """Keys that a later version has added are ignored."""
    names = BackgroundFailure.__dataclass_fields__
    return tuple(
        BackgroundFailure(**{k: v for k, v in entry.items() if k in names}) for entry in json.loads(stored or b"[]")
    )
