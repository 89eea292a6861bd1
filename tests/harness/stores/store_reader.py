"""A process that is the engine of a store, and reads a record set of it in a loop. It notices when it was stopped.

python -m tests.harness.stores.store_reader URI RECORD SESSION_TIMEOUT_MS

ready ENGINE                  it holds and reads the record set with k = 0; ENGINE is 1 when this process is the engine
woke                          it was stopped (SIGSTOP) and continues; every answer to a read that it begins from here on follows
handle VALUE | ERROR          of a read on the handle that it opened before it was stopped
peek VALUE | ERROR            of an unfenced look
end                           ANSWERS of each
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from spark_jms.store import Handle, Put, Store, StoreError, open_store
from spark_jms.store.engine.backend import EngineBackend
from spark_jms.store.testing import backend_of, server_of
from tests.harness.stores.store_writer import say

ANSWERS = 400
STOPPED_S = 1.5


def answer_of(read: Callable[[], bytes | None]) -> str:
    try:
        return (read() or b"-").decode()
    except StoreError as error:
        return type(error).__name__


class Reader:
    """One thread, which reads as fast as it can."""

    def __init__(self, what: str, read: Callable[[], bytes | None]) -> None:
        self._what, self._read = what, read
        self._reads = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._reads.wait()

    def _run(self) -> None:
        before_s = time.monotonic()
        while True:
            answer_of(self._read)
            now_s = time.monotonic()
            if now_s - before_s > STOPPED_S:
                break  # that read began before the stop: it may have been answered then, and be told only now
            before_s = now_s
            self._reads.set()
        say("woke")
        for _ in range(ANSWERS):
            say(self._what, answer_of(self._read))

    def join(self) -> None:
        self._thread.join()


def run(store: Store, record: str, handle: Handle) -> None:
    readers = [
        Reader("handle", lambda: handle.read("k")),
        Reader("peek", lambda: store.peek(record).get("k")),
    ]
    backend = backend_of(store)
    say("ready", int(isinstance(backend, EngineBackend) and server_of(backend) is not None))
    for reader in readers:
        reader.join()
    say("end")


def main(uri: str, record: str, session_timeout_ms: str) -> None:
    with open_store(uri, session_timeout_ms=int(session_timeout_ms)) as store:
        handle = store.connect("reader").open(record, timeout_ms=60_000)
        handle.commit([Put("k", b"0")])
        run(store, record, handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
