"""Whether a destination, or a server that it is on, tells its senders to slow down. core/thresholds.py has the rule.

A process looks at the usage once a second at most, while it sends; and not at all where there are no thresholds.

Features: T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from spark_jms.core.destination import Destination
from spark_jms.core.placement import HOME
from spark_jms.core.thresholds import NO_THRESHOLDS, UNARMED, Arming, FlowThresholds, thresholds_of
from spark_jms.core.usage import MessageUsage
from spark_jms.errors import JmsqError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain

FLOW = "_jmsq/flow"
LOOK_EVERY_S = 1.0
_SERVERS_KEPT_S = 60.0
log = logging.getLogger("spark_jms")


@dataclass(frozen=True)
class Watched:
    """A destination or a server. `usage` raises JmsqError or OSError when it cannot be read."""

    name: str
    thresholds: Callable[[], FlowThresholds]
    usage: Callable[[], MessageUsage]

    def after(self, before: Arming) -> Arming:
        """Whether it is armed now. What changes is logged."""
        thresholds = self.thresholds()
        try:
            used = self.usage() if thresholds else MessageUsage()
        except (JmsqError, OSError) as error:
            log.warning("%s: its usage cannot be read, so flow control stays as it is: %s", self.name, error)
            return before
        now = before.after(thresholds, used.messages, used.bytes)
        self._tell("messages", used, was=before.messages, armed=now.messages)
        self._tell("bytes", used, was=before.bytes, armed=now.bytes)
        return now

    def _tell(self, measure: str, used: MessageUsage, *, was: bool, armed: bool) -> None:
        held = f"{used.messages:,} messages, {used.bytes:,} bytes"
        if armed and not was:
            log.warning("%s exceeds its %sThresholdHigh: senders slow down (%s)", self.name, measure, held)
        elif was and not armed:
            log.info("%s is below its %sThresholdLow: senders may go faster (%s)", self.name, measure, held)


class FlowWatch:
    """Of a destination and its servers, for the senders of one process. Thread-safe. One that begins while the usage is
    between low and high takes them for unarmed."""

    def __init__(self, watched: Iterable[Watched], monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._watched, self._monotonic_s = tuple(watched), monotonic_s
        self._armed: Mapping[str, Arming] = {}
        self._next_look_s = float("-inf")
        self._lock = threading.Lock()

    @property
    def has_thresholds(self) -> bool:
        return any(one.thresholds() for one in self._watched)

    def armed(self) -> bool:
        """As of the last second."""
        with self._lock:
            if not self.has_thresholds:
                self._armed, self._next_look_s = {}, float("-inf")
            elif self._monotonic_s() >= self._next_look_s:
                self._armed = {one.name: one.after(self._armed.get(one.name, UNARMED)) for one in self._watched}
                self._next_look_s = self._monotonic_s() + LOOK_EVERY_S
            return any(self._armed.values())


def watched_of(domain: Domain, table: DeltaLog) -> list[Watched]:
    """A destination and its servers. The destination's thresholds are those of its newest known snapshot, a server's those of the
    last minute. Nothing is read before the thresholds of a server are asked for."""
    found = [
        Watched(table.name, lambda: thresholds_of(table.snapshot.destination), lambda: domain.usage_of(table.name))
    ]
    for server in table.snapshot.destination.servers:
        if server != HOME:
            thresholds, usage = partial(_of_server, domain, server), partial(domain.usage_of_server, server)
            found.append(Watched(f"server {server}", thresholds, usage))
    return found


def publishes_usage(domain: Domain, destination: Destination) -> bool:
    """Its senders, or those of other destinations on its servers, have to know what it holds."""
    return destination.measures_usage or any(_of_server(domain, s) for s in destination.servers if s != HOME)


def _of_server(domain: Domain, server: str) -> FlowThresholds:
    """Read once a minute by a process: each send to a destination on servers asks. They stay as they are while they cannot be
    read, since flow control never fails a send."""
    key, now_s = (domain.root, server), time.monotonic()
    until_s, thresholds = _known.get(key, (0.0, NO_THRESHOLDS))
    if now_s >= until_s:
        try:
            thresholds = domain.servers.entry(server).thresholds
        except (JmsqError, OSError) as error:
            log.warning("server %s: its thresholds cannot be read, so flow control stays as it is: %s", server, error)
        _known[key] = (now_s + _SERVERS_KEPT_S, thresholds)
    return thresholds


_known: dict[tuple[str, str], tuple[float, FlowThresholds]] = {}  # of servers: until when, what
