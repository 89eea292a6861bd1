"""The sessions of this process, and the background thread that reports them to the engine while there are any."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spark_jms.store.errors import StoreError

log = logging.getLogger("store.served")

LONGEST_INTERVAL_S = 1.0


class SessionHeartbeat:
    """`report` sends one heartbeat."""

    def __init__(self, report: Callable[[], None], session_timeout_ms: float) -> None:
        self._report = report
        self._interval_s = min(LONGEST_INTERVAL_S, session_timeout_ms / 5000.0)
        self._lock = threading.Lock()
        self._session_ids: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def session_ids(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._session_ids)

    def add(self, session_id: str) -> None:
        with self._lock:
            self._session_ids.add(session_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="store-session-beat", daemon=True)
                self._thread.start()

    def discard(self, session_id: str) -> None:
        with self._lock:
            self._session_ids.discard(session_id)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._report()
            except StoreError:
                pass  # no engine within the limit: the next caller gets the error, and until then the sessions go stale: safe
            except Exception:  # this process may have tried to become the engine itself
                log.exception("the heartbeat of the sessions of this process failed")

    def stop(self) -> None:
        self._stop.set()
        with self._lock:  # another thread may be about to start it
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
