"""Flow control: when a destination or server tells its senders to slow down, and how fast each of them may send then. Pure.

Each of two measures of a destination or server, messages and bytes, is *armed* and unarmed by itself, with a band in between that
changes nothing:

                 above high    low to high    below low
    unarmed      armed         unarmed        unarmed
    armed        armed         armed          unarmed

The destination or server is armed while one of its measures is.

A sender is free, or it has a limit in messages a second. The limit is evaluated every `interval / steps`, a step:

    sender    armed                                       unarmed
    ------    -----                                       -------
    free      at once: the limit is `maximum`             free
    limited   at a step: the limit falls by one part of   at a step: the limit rises by one part of the
              a geometric series, down to `minimum`       difference; at `maximum` the sender is free

    down:  limit x (minimum / maximum) ^ (1 / steps)      100, 50, 25, 12.5 from 100 to 12.5 in 3 steps
    up:    limit + (maximum - minimum) / steps            10, 40, 70, 100 from 10 to 100 in 3 steps

So a sender that is armed again on its way up keeps its lower limit until the next step. A step that passed without a look,
because the sender had nothing to send, is evaluated by the next look.

A limited sender has a *debt*: messages that its limit has not paid for yet. A send joins the debt and goes when all but the last of
its own messages are paid for, so in any time the sender sends what its limit allows, and one message more. An idle sender saves
nothing up.

Features: T5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.destination import DestinationSettings, ServerSettings
from spark_jms.settings.fields import NO_THRESHOLD


@dataclass(frozen=True)
class FlowThreshold:
    """Of one measure: `high` is exceeded, or usage falls below `low`. NO_THRESHOLD: never armed."""

    high: int = NO_THRESHOLD
    low: int = NO_THRESHOLD

    def arms(self, used: int, *, armed: bool) -> bool:
        if self.high == NO_THRESHOLD or used < self.low:
            return False
        return armed or used > self.high


@dataclass(frozen=True)
class FlowThresholds:
    messages: FlowThreshold = FlowThreshold()
    bytes: FlowThreshold = FlowThreshold()

    def __bool__(self) -> bool:
        return self.messages.high != NO_THRESHOLD or self.bytes.high != NO_THRESHOLD

    def to_json(self) -> dict[str, list[int]]:
        return {"messages": [self.messages.high, self.messages.low], "bytes": [self.bytes.high, self.bytes.low]}

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> FlowThresholds:
        """Raises ValueError or TypeError."""
        return FlowThresholds(*(FlowThreshold(*map(int, stored.get(name, ()))) for name in ("messages", "bytes")))


NO_THRESHOLDS = FlowThresholds()


def thresholds_of(settings: DestinationSettings | ServerSettings) -> FlowThresholds:
    return FlowThresholds(
        FlowThreshold(settings.messages_threshold_high, settings.messages_threshold_low),
        FlowThreshold(settings.bytes_threshold_high, settings.bytes_threshold_low),
    )


@dataclass(frozen=True)
class Arming:
    """Which measures are armed."""

    messages: bool = False
    bytes: bool = False

    def __bool__(self) -> bool:
        return self.messages or self.bytes

    def after(self, thresholds: FlowThresholds, messages: int, size: int) -> Arming:
        """By a usage of so many messages and bytes."""
        return Arming(
            thresholds.messages.arms(messages, armed=self.messages), thresholds.bytes.arms(size, armed=self.bytes)
        )


UNARMED = Arming()


# -- the pace of a sender ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FlowParameters:
    """Messages a second, `minimum` at most `maximum`. Within `interval_ms` a limit goes from one to the other, in `steps`."""

    maximum: float = 500
    minimum: float = 50
    interval_ms: int = 60_000
    steps: int = 10

    @property
    def step_ms(self) -> float:
        return self.interval_ms / self.steps

    def lower(self, limit: float) -> float:
        """One step down."""
        factor = (self.minimum / self.maximum) ** (1 / self.steps)
        found = max(limit * factor, self.minimum)
        return self.minimum if found <= self.minimum * (1 + 1e-9) else found

    def higher(self, limit: float) -> float | None:
        """One step up; None: the sender is free."""
        found = limit + (self.maximum - self.minimum) / self.steps
        return None if found >= self.maximum * (1 - 1e-9) else found


def parameters_of(factory: ConnectionFactory) -> FlowParameters:
    return FlowParameters(factory.flow_maximum, factory.flow_minimum, factory.flow_interval_ms, factory.flow_steps)


@dataclass(frozen=True)
class Pace:
    """Of one sender. `limit` None: it is free. Counts of messages: `due` were sent since the beginning, `paid` of them are paid
    for, as of `at_ms`. `stepped_ms`: when the limit was evaluated last."""

    limit: float | None = None
    stepped_ms: float = 0
    at_ms: float = 0
    due: float = 0
    paid: float = 0

    def at(self, now_ms: float, parameters: FlowParameters, *, armed: bool) -> Pace:
        """The pace now. Time that goes backwards changes nothing."""
        if self.limit is None:
            if not armed:
                return self
            first = parameters.maximum if parameters.step_ms else parameters.minimum
            return replace(self, limit=first, stepped_ms=now_ms, at_ms=now_ms, paid=self.due)
        if not parameters.step_ms:
            jumped = self._paid_until(now_ms)
            return replace(jumped, limit=parameters.minimum) if armed else jumped._free()
        pace, step_ms = self, parameters.step_ms
        while pace.limit is not None and now_ms - pace.stepped_ms >= step_ms:
            boundary_ms = pace.stepped_ms + step_ms
            before = pace._paid_until(boundary_ms)
            assert before.limit is not None
            limit = parameters.lower(before.limit) if armed else parameters.higher(before.limit)
            if limit is None:
                return before._free()
            if limit == before.limit:  # at the minimum
                boundary_ms += (now_ms - boundary_ms) // step_ms * step_ms
            pace = replace(before, limit=limit, stepped_ms=boundary_ms)
        return pace._paid_until(now_ms)

    def ticket(self, messages: int) -> float:
        """What has to be paid for before so many more can go: all that is due before them, and they but the last."""
        return self.due + max(messages - 1, 0)

    def with_debt(self, messages: int) -> Pace:
        """So many more join."""
        return self if self.limit is None else replace(self, due=self.due + messages)

    def without_debt(self, messages: int) -> Pace:
        """So many will not be sent. Those that wait keep their tickets."""
        return replace(self, paid=min(self.paid + messages, self.due))

    def not_after(self, now_ms: float) -> Pace:
        """Of a wall clock that was set back since: else nothing would be paid for until it is there again."""
        return replace(self, at_ms=min(self.at_ms, now_ms), stepped_ms=min(self.stepped_ms, now_ms))

    def wait_ms(self, ticket: float) -> float:
        """How long until the first `ticket` messages are paid for, at this limit."""
        return 0.0 if self.limit is None else max(ticket - self.paid, 0.0) / self.limit * 1000

    @property
    def debt(self) -> float:
        return self.due - self.paid

    def _paid_until(self, now_ms: float) -> Pace:
        if self.limit is None or now_ms <= self.at_ms:
            return self
        return replace(self, paid=min(self.paid + (now_ms - self.at_ms) * self.limit / 1000, self.due), at_ms=now_ms)

    def _free(self) -> Pace:
        return replace(self, limit=None, paid=self.due)

    def to_json(self) -> dict[str, float | None]:
        return {"limit": self.limit, "stepped_ms": self.stepped_ms, "at_ms": self.at_ms, "debt": self.debt}

    @staticmethod
    def from_json(stored: Mapping[str, float | None]) -> Pace:
        """Raises KeyError, ValueError or TypeError."""
        limit = stored["limit"]
        stepped_ms, at_ms, debt = (float(stored[key] or 0) for key in ("stepped_ms", "at_ms", "debt"))
        return Pace(None if limit is None else float(limit), stepped_ms, at_ms, debt, 0.0)


FREE = Pace()
