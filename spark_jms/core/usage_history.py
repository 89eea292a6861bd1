"""What passed through each destination, minute by minute, and what it held then. Pure.

Each count has a position up to which the history has it, and the position is written with the count:

    sent       the sequences of a member: dense, never used twice; the window is that of JMSTimestamp
    finished   the rows of the acknowledgement table, which are numbered too; on a topic those of all subscriptions
    dropped    the same, of rows whose consumer is a limit or an administrator
    expired    the count of a record set, which only rises; the window is that in which the difference was seen

So a round that is repeated adds nothing, whichever process repeats it and wherever it was killed, and a history that begins
again from the tables has the same sums. `used` is no sum but what was seen last in the window; a window in which it did not
change and nothing passed has no row.

Features: T3 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from spark_jms.core.acknowledgement import LIMITER, PURGER
from spark_jms.core.expiration import EXPIRER
from spark_jms.core.subscription_limit import LIMIT
from spark_jms.core.usage import MessageUsage

WINDOW_MS = 60_000
KEPT_MS = 30 * 86_400_000
_SKEW_MS = 3_600_000
_DROPPERS = frozenset((PURGER, LIMITER, LIMIT))


@dataclass(frozen=True)
class UsageWindow:
    """One destination in the minute that begins at `start_ms`. `used` None: no process looked, or nothing had changed."""

    destination: str
    start_ms: int
    sent: int = 0
    finished: int = 0
    expired: int = 0
    dropped: int = 0
    used: MessageUsage | None = None

    def __add__(self, later: UsageWindow) -> UsageWindow:
        """Both of the same window."""
        return UsageWindow(
            self.destination,
            self.start_ms,
            self.sent + later.sent,
            self.finished + later.finished,
            self.expired + later.expired,
            self.dropped + later.dropped,
            self.used if later.used is None else later.used,
        )


@dataclass(frozen=True)
class UsageChange:
    """What a history lacks. `positions` are by name, as they are afterwards."""

    windows: tuple[UsageWindow, ...] = ()
    positions: Mapping[str, int] = field(default_factory=dict)


def merged(windows: Iterable[UsageWindow]) -> list[UsageWindow]:
    """One for each destination and minute, in order; earlier ones come first."""
    found: dict[tuple[int, str], UsageWindow] = {}
    for one in windows:
        key = (one.start_ms, one.destination)
        found[key] = found[key] + one if key in found else one
    return [found[key] for key in sorted(found)]


def window_at(at_ms: int, now_ms: int) -> int:
    """The start of the window. A time more than an hour ahead, or before all that is kept, is a wrong clock's, or there is none:
    then it is the window of now."""
    at_ms = at_ms if now_ms - KEPT_MS <= at_ms <= now_ms + _SKEW_MS else now_ms
    return at_ms - at_ms % WINDOW_MS


def acknowledged(destination: str, start_ms: int, consumer: str, messages: int) -> Iterator[UsageWindow]:
    """What a row of the acknowledgement table counts as. Redirected messages count as expired, by their record set."""
    if consumer in _DROPPERS:
        yield UsageWindow(destination, start_ms, dropped=messages)
    elif consumer != EXPIRER:
        yield UsageWindow(destination, start_ms, finished=messages)
