"""The record that a query holds for life: only its owner commits claims and acknowledgements.

Features: C9, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import time

from spark_jms.claims.this_process import is_sibling
from spark_jms.core.query_progress import PROGRESS, QueryProgress
from spark_jms.errors import QueryRunningError
from spark_jms.store import Handle, Operation, Put, RecordHeldError, Session, Store

OPEN_TIMEOUT_S = 15.0  # how long a restarted query waits for its older self to end
_STEP_MS = 250


class ProgressRecord:
    """Not thread-safe: the subscriber's lock guards it. The record is never handed over; closing the session frees it."""

    def __init__(self, store: Store, session: Session, record: str, label: str) -> None:
        self._store, self._session, self._record, self._label = store, session, record, label
        self.handle: Handle | None = None
        self.value = QueryProgress()

    def open(self, timeout_s: float | None = None) -> None:
        """Opens the record if it is not open. Raises QueryRunningError when another instance of the query still lives after
        `timeout_s` (None: OPEN_TIMEOUT_S)."""
        if self.handle is not None:
            return
        deadline = time.monotonic() + (OPEN_TIMEOUT_S if timeout_s is None else timeout_s)
        while True:
            try:
                handle = self._session.open(self._record, timeout_ms=0)
                break
            except RecordHeldError as error:
                if time.monotonic() < deadline:
                    time.sleep(_STEP_MS / 1000)
                    continue
                self._session.cancel(self._record)
                owner = self._store.sessions().get(error.holder or "")
                raise QueryRunningError(self._running(owner.label if owner else "")) from error
        try:
            self.value = QueryProgress.from_bytes(handle.read(PROGRESS), self._label)
        except BaseException:
            handle.close()
            raise
        self.handle = handle

    def _running(self, session: str) -> str:
        advice = (
            "It is a query of this very application, perhaps of a Spark session that was stopped without query.stop(): stop it"
            if is_sibling(session)
            else "Stop the other instance first, which may be a query of this very application"
        )
        return (
            f"another instance of {self._label} is running (session {session or 'unknown'}): nothing was claimed. {advice}; if "
            "this checkpointLocation is a copy, start with a fresh one."
        )

    def close(self) -> None:
        """To be read again. Raises StoreError; it is closed all the same."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.close()

    def operations(self, after: QueryProgress) -> list[Operation]:
        """Its part of a write. There always is one, so that a fenced instance can commit nothing."""
        return [Put(PROGRESS, after.to_bytes())]
