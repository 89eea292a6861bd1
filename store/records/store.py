"""Record sets on a replicated store: the engine is the process that opened the regions.

Features: C9, R15 (docs/FEATURES.md)
"""

from __future__ import annotations

from spark_jms.store.engine import EngineBackend
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.opening import StoreOpening
from spark_jms.store.records.finder import RegionEngineFinder
from spark_jms.store.records.settings import parse_replicated
from spark_jms.store.sharing import SharedBackends

LIMIT_MS = 60_000.0
_shared: SharedBackends[EngineBackend] = SharedBackends()


def open_backend(
    uri: str, *, session_timeout_ms: int, create: bool, opening: StoreOpening | None = None
) -> EngineBackend:
    finder = RegionEngineFinder(parse_replicated(uri), session_timeout_ms=session_timeout_ms, create=create)
    return EngineBackend(finder, session_timeout_ms=session_timeout_ms, limit_ms=LIMIT_MS, opening=opening)


class ReplicatedStore(LedgerStore):
    """Record sets in regions. The constructor makes a backend of its own; `shared` uses the one that the process has."""

    def __init__(self, uri: str, *, session_timeout_ms: int = 10_000, create: bool = True) -> None:
        super().__init__(open_backend(uri, session_timeout_ms=session_timeout_ms, create=create))

    @classmethod
    def shared(
        cls, uri: str, *, session_timeout_ms: int = 10_000, create: bool = True, opening: StoreOpening | None = None
    ) -> LedgerStore:
        wanted = opening or StoreOpening()

        def make() -> EngineBackend:
            return open_backend(uri, session_timeout_ms=session_timeout_ms, create=create, opening=wanted)

        return LedgerStore(_shared.take((uri, session_timeout_ms), make, wanted))
