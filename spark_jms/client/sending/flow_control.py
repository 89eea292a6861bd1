"""A producer's wait for its pace, and how it splits what it may split.

core/limits/flow_control.py has the rules, log/destinations/limits.py tells whether it is to slow down.

Features: T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, inf

from spark_jms.core.limits.flow_control import FlowParameters, Pace, parameters_of
from spark_jms.errors import ClosedError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.limits import FlowWatch, watched_of
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.settings.connection_factory import ConnectionFactory

_SHORTEST_S = 0.001  # a shorter wait stays as debt
_LOOK_AGAIN_S = 1.0  # a waiting sender learns within so long that it may go


@dataclass(frozen=True)
class FlowStatistics:
    """`limit`: messages a second; None: the producer is free. `debt`: messages, sent or waiting, that the limit has not paid for."""

    armed: bool = False
    limit: float | None = None
    debt: float = 0.0
    waited_s: float = 0.0


NOT_SLOWED = FlowStatistics()


@dataclass(frozen=True)
class FlowTurn:
    """Of one send: what has to be paid for before it, when it began to wait, and how long it may."""

    ticket: float
    begun_s: float
    messages: int
    longest_s: float = inf


class ProducerFlow:
    """Thread-safe."""

    def __init__(
        self,
        parameters: FlowParameters,
        watch: FlowWatch,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parameters, self._watch, self._monotonic_s = parameters, watch, monotonic_s
        self.pace = Pace()
        self._armed = False
        self._waited_s = 0.0
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def is_idle(self) -> bool:
        """Nothing slows the producer down, and nothing could."""
        return self.pace.limit is None and not self._watch.has_thresholds

    def share(self, messages: int) -> int:
        """How many of these may go together: all, or what the limit allows in a second."""
        if self.is_idle:
            return messages
        with self._lock:
            self.look()
            return messages if self.pace.limit is None else min(messages, max(ceil(self.pace.limit), 1))

    def wait(self, messages: int, longest_s: float = inf) -> None:
        """Before a send of so many messages: return when they are paid for but the last, or after `longest_s`; then the rest stays
        as debt. Raises ClosedError when the producer is closed meanwhile."""
        if self.is_idle:
            return
        turn = self.enter(messages, longest_s)
        try:
            while (left_s := self.left_s(turn)) > 0:
                self._sleep(left_s)
        except BaseException:  # closed, or an interrupt (Ctrl-C)
            self.leave(turn)
            raise

    def enter(self, messages: int, longest_s: float = inf) -> FlowTurn:
        """Join those that wait, with so many messages."""
        with self._lock:
            self.look()
            turn = FlowTurn(self.pace.ticket(messages), self._monotonic_s(), messages, longest_s)
            self.pace = self.pace.with_debt(messages)
            return turn

    def leave(self, turn: FlowTurn) -> None:
        """Its messages will not be sent: nothing pays for them."""
        with self._lock:
            self.pace = self.pace.without_debt(turn.messages)

    def left_s(self, turn: FlowTurn) -> float:
        """How long to wait before asking again; 0: send now. Raises ClosedError."""
        if self._closed.is_set():
            raise ClosedError("the producer was closed while flow control kept its send back: nothing was sent")
        with self._lock:
            self.look()
            spent_s = self._monotonic_s() - turn.begun_s
            left_s = min(self.pace.wait_ms(turn.ticket) / 1000, _LOOK_AGAIN_S, turn.longest_s - spent_s)
            if left_s >= _SHORTEST_S:
                return left_s
            self._waited_s += spent_s
            return 0.0

    def close(self) -> None:
        self._closed.set()

    def statistics(self) -> FlowStatistics:
        with self._lock:
            return FlowStatistics(self._armed, self.pace.limit, self.pace.debt, self._waited_s)

    def look(self) -> None:
        self._armed = self._watch.armed()
        self.pace = self.pace.at(self._monotonic_s() * 1000, self._parameters, armed=self._armed)

    def _sleep(self, seconds: float) -> None:
        """Until the producer is closed, at most."""
        self._closed.wait(seconds)


class Flows:
    """Of one context: the producers of an address share what is known of its usage. Thread-safe."""

    def __init__(self, domain: Domain, factory: ConnectionFactory) -> None:
        self._domain, self._factory = domain, factory
        self._watches: dict[tuple[str, str | None], FlowWatch] = {}
        self._lock = threading.Lock()

    def of(self, log: DeltaLog, server: str | None) -> ProducerFlow | None:
        """For a new producer; `server` when its address names one. None: nothing slows it down."""
        if not self._factory.flow_control_enabled or self._factory.sends_one_way:
            return None
        with self._lock:
            watch = self._watches.get((log.name, server))
            if watch is None:
                watch = self._watches[log.name, server] = FlowWatch(partial(watched_of, self._domain, log, server))
        return ProducerFlow(parameters_of(self._factory), watch)
