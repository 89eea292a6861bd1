"""`JdbcStore`, which users open. All openings of one store by one process share one client, or one engine."""

from __future__ import annotations

from spark_jms.store.engine.backend import EngineBackend
from spark_jms.store.jdbc.finder import JdbcFinder
from spark_jms.store.jdbc.retry import Clocks
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.opening import StoreOpening
from spark_jms.store.sharing import SharedBackends

_shared: SharedBackends[EngineBackend] = SharedBackends()


def open_backend(
    uri: str,
    *,
    session_timeout_ms: int = 10_000,
    create: bool = True,
    clocks: Clocks | None = None,
    opening: StoreOpening | None = None,
) -> EngineBackend:
    settings = parse_jdbc(uri)
    clocks, opening = clocks or Clocks(), opening or StoreOpening()
    finder = JdbcFinder(settings, session_timeout_ms=session_timeout_ms, create=create, clocks=clocks, opening=opening)
    return EngineBackend(
        finder,
        session_timeout_ms=session_timeout_ms,
        limit_ms=settings.retry_limit_s * 1000.0,
        clock_ms=clocks.now_ms,
        sleep_ms=clocks.sleep_ms,
        opening=opening,
    )


class JdbcStore(LedgerStore):
    """A store in a database. Each has its own backend; `shared` uses the one of this process."""

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
