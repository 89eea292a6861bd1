"""A process that writes numbers into a record set of its own, and prints the acknowledged ones.

    python store_writer.py URI NAME SESSION_TIMEOUT_MS

    ready EPOCH ENGINE            it has the record set open; ENGINE is 1 when this process is the engine
    n NUMBER                      acknowledged
    lost ERROR                    fenced: it reopens the record set and continues with the number it has
    refused ERROR                 not acknowledged (disk full …); it tries the same number again

It reads a line from stdin: `pause` (it answers `paused`), `go`, `stop` (a clean stop). The log goes to stderr.
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import threading

from spark_jms.store import (
    FencedError,
    OutcomeUnknownError,
    Put,
    RecordHeldError,
    Session,
    StoreError,
    StoreWriteError,
    open_store,
)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class Writer:
    def __init__(self, uri: str, name: str, session_timeout_ms: int) -> None:
        self.uri, self.name, self.session_timeout_ms = uri, name, session_timeout_ms
        self.may_go, self.stopped = threading.Event(), threading.Event()
        self.may_go.set()

    def listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "pause":
                self.may_go.clear()
            elif line.strip() == "go":
                self.may_go.set()
            else:
                break
        self.stopped.set()
        self.may_go.set()

    def run(self) -> None:
        threading.Thread(target=self.listen, daemon=True).start()
        with open_store(self.uri, session_timeout_ms=self.session_timeout_ms) as store:
            session = self.again(store)
            while not self.stopped.is_set():
                try:
                    self.write(session, store)
                except FencedError as error:
                    say("lost", type(error).__name__)
                    session = self.again(store)
                except OutcomeUnknownError as error:
                    say("unknown", type(error).__name__)
                    session = self.again(store)

    @staticmethod
    def again(store: object) -> Session:
        while True:
            try:
                return store.connect("again")  # type: ignore[attr-defined,no-any-return]
            except StoreWriteError as error:
                say("refused", type(error).__name__)

    def write(self, session: Session, store: object) -> None:
        while True:
            try:
                handle = session.open(self.name, timeout_ms=60_000)
                break
            except RecordHeldError:
                say("held")
            except StoreWriteError as error:
                say("refused", type(error).__name__)
        number = int(handle.read("n") or b"0")
        finder = getattr(getattr(store._backend, "_route", None), "finder", None)  # type: ignore[attr-defined]
        say("ready", handle.epoch, int(getattr(finder, "_engine", None) is not None))
        while not self.stopped.is_set():
            if not self.may_go.is_set():
                say("paused")
                self.may_go.wait()
                continue
            number += 1
            try:
                handle.commit([Put("n", b"%d" % number), Put("twin", b"%d" % number), Put("pad", b"x" * 300)])
            except (FencedError, OutcomeUnknownError):
                raise
            except StoreError as error:
                say("refused", type(error).__name__)
                number = int(handle.read("n") or b"0")
                continue
            say("n", number)


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # dumps the stacks into the log
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s.%(msecs)03d %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    Writer(sys.argv[1], sys.argv[2], int(sys.argv[3])).run()
