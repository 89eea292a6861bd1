"""Flow control of a query's sink. core/flow_control.py has the rules.

Spark makes a new writer for each batch, and a new process may commit it, so the pace of a query stands in a file under the
query's id. A commit waits until the batches before it are paid for, in bounds; its own messages then join the debt, once for
each batch, however often Spark repeats its commit.

ROOT/_jmsq/flow/<table id>/<query id>     JSON: the newest batch, the pace, what is armed; none while the query is free

Features: T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_jms.core.flow_control import FREE, Pace, parameters_of
from spark_jms.core.thresholds import UNARMED, Arming
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.flow_watch import FLOW, watched_of
from spark_jms.log.named_files import NamedFiles
from spark_jms.log.storage import now_ms
from spark_jms.settings.connection_factory import ConnectionFactory

LONGEST_COMMIT_WAIT_S = 30.0
_SHORTEST_S, _LOOK_AGAIN_S = 0.001, 1.0
log = logging.getLogger("spark_jms")


@dataclass(frozen=True)
class QueryPace:
    """Of a query. `batch`: the newest whose messages have joined the debt."""

    batch: int = -1
    pace: Pace = FREE
    armed: Mapping[str, Arming] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        armed = {name: [arming.messages, arming.bytes] for name, arming in self.armed.items()}
        return json.dumps({"v": 1, "batch": self.batch, "pace": self.pace.to_json(), "armed": armed}).encode()

    @staticmethod
    def from_bytes(data: bytes) -> QueryPace:
        """Raises KeyError, ValueError or TypeError."""
        stored = json.loads(data)
        armed = {str(name): Arming(bool(messages), bool(size)) for name, (messages, size) in stored["armed"].items()}
        return QueryPace(int(stored["batch"]), Pace.from_json(stored["pace"]), armed)


@dataclass(frozen=True)
class SinkFlow:
    """Of one destination, for the queries that send to it."""

    domain: Domain
    table: DeltaLog
    factory: ConnectionFactory
    clock_ms: Callable[[], int] = now_ms
    sleep: Callable[[float], object] = time.sleep

    def wait(self, query: str, batch: int, messages: int, longest_s: float) -> float:
        """Before the commit of a batch: wait until the batches before it are paid for, at most `longest_s` and
        LONGEST_COMMIT_WAIT_S. Returns how long, in seconds."""
        watched = watched_of(self.domain, self.table)
        if not self.factory.flow_control_enabled or not any(one.thresholds() for one in watched):
            return 0.0
        files = NamedFiles(self.domain.storage, f"{FLOW}/{self.table.snapshot.table_id}")
        stored = self._read(files, query)
        known, pace, armed = stored or QueryPace(), (stored or QueryPace()).pace, dict((stored or QueryPace()).armed)
        pace = pace.not_after(self.clock_ms())
        most_s, waited_s = min(longest_s, LONGEST_COMMIT_WAIT_S), 0.0
        while True:
            armed = {one.name: one.after(armed.get(one.name, UNARMED)) for one in watched}
            pace = pace.at(self.clock_ms(), parameters_of(self.factory), armed=any(armed.values()))
            left_s = min(pace.wait_ms(pace.due) / 1000, most_s - waited_s, _LOOK_AGAIN_S)
            if left_s < _SHORTEST_S:
                break
            self.sleep(left_s)
            waited_s += left_s
        if known.batch != batch:
            pace = pace.with_debt(messages)
        if pace.limit is not None:
            files.put(query, QueryPace(batch, pace, armed).to_bytes())
        elif stored is not None:
            files.delete(query)
        return waited_s

    def _read(self, files: NamedFiles, query: str) -> QueryPace | None:
        data = files.get(query)
        if data is None:
            return None
        try:
            return QueryPace.from_bytes(data)
        except (KeyError, ValueError, TypeError) as error:
            log.warning("%s is damaged and counts as missing: %r", files.shown(query), error)
            return None
