"""A producer's wait for its pace.

core/limits/flow_control.py has the rules, log/limits/usage.py tells whether it is to slow down.

Features: T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_jms.core.limits.flow_control import LONGEST_WAIT_S, FlowParameters, Pace, parameters_of
from spark_jms.errors import ClosedError
from spark_jms.log.destinations.domain import Domain, watched_of
from spark_jms.log.limits.usage import FlowWatch
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.settings.connection_factory import ConnectionFactory

_SHORTEST_S = 0.001  # a shorter wait stays as debt
_LOOK_AGAIN_S = 1.0  # a waiting sender learns within so long that it may go


@dataclass(frozen=True)
class FlowStatistics:
    """`limit`: messages a second; None: the producer is free. `debt`: sent messages that the limit has not paid for."""

    armed: bool = False
    limit: float | None = None
    debt: float = 0.0
    waited_s: float = 0.0


NOT_SLOWED = FlowStatistics()


@dataclass(frozen=True)
class FlowTurn:
    """Of one send: what has to be paid for before it, and when it began to wait."""

    ticket: float
    begun_s: float
    messages: int


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

    def wait(self, messages: int) -> None:
        """Before a send of so many messages: return when those before it are paid for, at most after LONGEST_WAIT_S. Raises
        ClosedError when the producer is closed meanwhile."""
        if self.is_idle:
            return
        turn = self.enter(messages)
        try:
            while (left_s := self.left_s(turn)) > 0:
                self._sleep(left_s)
        except BaseException:  # closed, or an interrupt (Ctrl-C)
            self.leave(turn)
            raise

    def enter(self, messages: int) -> FlowTurn:
        """Join those that wait, with so many messages."""
        with self._lock:
            self.look()
            turn = FlowTurn(self.pace.due, self._monotonic_s(), messages)
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
            left_s = min(self.pace.wait_ms(turn.ticket) / 1000, _LOOK_AGAIN_S, LONGEST_WAIT_S - spent_s)
            if left_s >= _SHORTEST_S:
                return left_s
            self._waited_s += spent_s
            return 0.0

    def sent(self, messages: int) -> None:
        """After a send whose size `wait` could not know."""
        with self._lock:
            self.pace = self.pace.with_debt(messages)

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
    """Of one context: the producers of a destination share what is known of its usage. Thread-safe."""

    def __init__(self, domain: Domain, factory: ConnectionFactory) -> None:
        self._domain, self._factory = domain, factory
        self._watches: dict[str, FlowWatch] = {}
        self._lock = threading.Lock()

    def of(self, log: DeltaLog) -> ProducerFlow | None:
        """For a new producer; None: nothing slows it down."""
        if not self._factory.flow_control_enabled or self._factory.sends_one_way:
            return None
        with self._lock:
            watch = self._watches.get(log.name)
            if watch is None:
                watch = self._watches[log.name] = FlowWatch(watched_of(self._domain, log))
        return ProducerFlow(parameters_of(self._factory), watch)
