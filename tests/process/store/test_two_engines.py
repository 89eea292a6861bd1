"""Two engines of one store at once: one was stopped, another took over, the first wakes (C9, R8, S4, S6)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import IO

import pytest

from spark_jms.store import Put, open_store
from spark_jms.testing.domain import wait_until
from spark_jms.testing.postgresql import PrivatePostgresql
from tests.harness.processes import forked
from tests.harness.project import PROJECT
from tests.harness.stores.jdbc_writers import engine_pids, schema_of
from tests.harness.stores.regions_cluster import Make

LIMIT_S = 90.0
SESSION_TIMEOUT_MS = 2_000
RECORD = "r"


class ReaderProcess:
    def __init__(self, uri: str) -> None:
        self.process = forked.Popen(
            [sys.executable, "-m", "tests.harness.stores.store_reader", uri, RECORD, str(SESSION_TIMEOUT_MS)],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.out: IO[str] = self.process.stdout
        assert self.out.readline().split() == ["ready", "1"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def answers_after(self) -> list[list[str]]:
        """Continues it: everything that it reads from then on."""
        self.process.send_signal(signal.SIGCONT)
        found = []
        while (words := self.out.readline().split()) != ["end"]:
            assert words, "the reader ended"
            found.append(words)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.out.close()


@pytest.fixture
def start() -> Iterator[Callable[[str], ReaderProcess]]:
    started: list[ReaderProcess] = []

    def make(uri: str) -> ReaderProcess:
        started.append(ReaderProcess(uri))
        return started[-1]

    yield make
    for reader in started:
        reader.close()


def check(reader: ReaderProcess, uri: str) -> None:
    """The reader is stopped and has lost the store."""
    with open_store(uri, session_timeout_ms=SESSION_TIMEOUT_MS) as store:
        handle = store.connect("next").open(RECORD, timeout_ms=60_000)
        assert handle.read("k") == b"0"
        handle.commit([Put("k", b"1")])
        answers = reader.answers_after()
        peeked = {words[1] for words in answers if words[0] == "peek"}
        read = {words[1] for words in answers if words[0] == "handle"}
    assert peeked == {"1"}
    assert read <= {"StaleEpochError", "SessionLostError"}, read
    assert read


def test_stopped_engine_of_a_replicated_store_answers_no_stale_read(
    make_daemons: Make, start: Callable[[str], ReaderProcess]
) -> None:
    """R8, C9: its daemon has given it up, and another process has opened the regions."""
    daemons = make_daemons(2, RS_CLIENT_TIMEOUT_MS="3000")
    uri = daemons.uri()
    reader = start(uri)
    reader.stop()
    check(reader, uri)


def test_stopped_engine_of_a_database_answers_no_stale_read(
    postgresql: PrivatePostgresql, start: Callable[[str], ReaderProcess]
) -> None:
    """S4, S6, C9: the database has ended its connections, and another process has the lock."""
    uri = postgresql.uri(retry_interval_ms=100, verify_interval_ms=20_000)
    reader = start(uri)
    reader.stop()
    postgresql.terminate(f"application_name = 'spark-jms {reader.process.pid}'")
    wait_until(lambda: not engine_pids(postgresql, schema_of(uri)), LIMIT_S, "its lock is free")
    check(reader, uri)
