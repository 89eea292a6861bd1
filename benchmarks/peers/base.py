"""The two contracts of a peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

PACE_MS = 350
"""The trigger of the latency cells "batched"."""
PACE = f"{PACE_MS} milliseconds"
LINGER_MS = 100
"""So long the senders of these cells wait for messages that are sent together."""

Sender = Callable[[Sequence[bytes]], None]
"""Send the payloads; may return before they are durable, as the peer's ordinary client does."""


class ThroughputPeer(Protocol):
    """One sink cell and its source cells.

    `begin(n)` makes an empty destination number n, `end(n)` deletes it. `sink` gets a stream of one column `value`.
    Where reading consumes (`consumes`), every source cell is given a destination of its own, filled by the same sink. A peer
    without a `sink_cell` makes its `rows` itself. `checkpoint_files`: workbench.py.
    """

    family: str
    sink_cell: str | None
    source_cells: tuple[str, ...]
    consumes: bool
    checkpoint_files: str

    def begin(self, number: int) -> None: ...

    def sink(self, frame: Any, number: int) -> Any: ...

    def source(self, cell: str, number: int, rows: int) -> Any: ...

    def end(self, number: int) -> None: ...


class LatencyPeer(Protocol):
    """Producer and source of the latency part; `source` has a binary column `body`. `latency_trigger`: the query's processingTime.
    `servers` are the roles of its servers' processes (measure.py)."""

    family: str
    latency_cell: str
    latency_trigger: str
    servers: frozenset[str]
    checkpoint_files: str

    def begin(self, number: int) -> None: ...

    def latency_source(self, number: int) -> Any: ...

    def latency_checkpoint(self, number: int) -> str:
        """An unused checkpointLocation."""
        ...

    def sender(self, number: int) -> AbstractContextManager[Sender]: ...

    def end(self, number: int) -> None: ...
