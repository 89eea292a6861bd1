"""Writer processes on one store in a private PostgreSQL, a watch over the holders of its lock, and a final account."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psycopg

from spark_jms.store import open_store
from spark_jms.testing.domain import wait_until
from spark_jms.testing.postgresql import PrivatePostgresql
from tests.harness.processes import forked
from tests.harness.project import PROJECT

LIMIT_S = 60.0


class WriterProcess:
    """One `store_writer.py`. `acknowledged` keeps all its numbers over kills and restarts."""

    def __init__(
        self, uri: str, name: str, directory: Path, session_timeout_ms: int = 3_000, prefix: tuple[str, ...] = ()
    ) -> None:
        self._prefix = prefix
        self.uri, self.name = uri, name
        self.acknowledged: list[int] = []
        self.acknowledged_s = 0.0
        self.words: list[list[str]] = []
        self.ready_count = 0
        self.is_engine_at_start = False
        self._session_timeout_ms = session_timeout_ms
        self._log_path = directory / f"{name}.log"
        self._readers: list[threading.Thread] = []
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        with open(self._log_path, "a", encoding="utf-8") as log:
            process = forked.Popen(
                [
                    *self._prefix,
                    sys.executable,
                    "-m",
                    "tests.harness.stores.store_writer",
                    self.uri,
                    self.name,
                    str(self._session_timeout_ms),
                ],
                cwd=PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        reader.start()
        self._readers.append(reader)
        return process

    def _read(self, out: IO[str]) -> None:
        for line in out:
            words = line.split()
            if line.endswith("\n") and words[0] == "n":
                self.acknowledged.append(int(words[1]))
                self.acknowledged_s = time.monotonic()
                continue
            self.words.append(words)
            if words[0] == "ready":
                self.is_engine_at_start = words[2] == "1"
                self.ready_count += 1

    def wait_ready(self, count: int = 1) -> WriterProcess:
        wait_until(lambda: self._alive() and self.ready_count >= count, LIMIT_S, self._told("is ready"))
        return self

    def wait_writes(self, count: int = 3) -> float:
        """Seconds until it has acknowledged `count` more numbers."""
        begun_s, have = time.monotonic(), len(self.acknowledged)
        wait_until(lambda: self._alive() and len(self.acknowledged) >= have + count, LIMIT_S, self._told("writes"))
        return time.monotonic() - begun_s

    def _alive(self) -> bool:
        """AssertionError, with its log, when it died by itself."""
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.log()[-3000:]}")
        return True

    def _told(self, what: str) -> Callable[[], str]:
        """The message when it does not: the stacks of its threads and the end of its log."""

        def told() -> str:
            self.signal(signal.SIGUSR1)  # store_writer.py dumps its stacks
            time.sleep(0.5)
            return f"{self.name} {what}\n{self.log()[-12_000:]}"

        return told

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def pause(self) -> None:
        before = self.words.count(["paused"])
        self.tell("pause")
        wait_until(lambda: self.words.count(["paused"]) > before, LIMIT_S, self._told("pauses"))

    def log(self) -> str:
        return self._log_path.read_text(encoding="utf-8")

    def wait_log(self, pattern: str, timeout_s: float = LIMIT_S) -> None:
        wait_until(
            lambda: re.search(pattern, self.log()), timeout_s, lambda: f"{self.name} logs {pattern!r}:\n{self.log()}"
        )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def suspend(self) -> None:
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        self.process.kill()
        self._join()

    def restart(self) -> None:
        self.kill()
        self.process = self._start()

    def stop(self) -> None:
        """Stops it cleanly and waits for its end."""
        if self.process.poll() is None:
            self.tell("stop")
        self._join()

    def _join(self) -> None:
        self.process.wait(LIMIT_S)
        for reader in self._readers:
            reader.join(LIMIT_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self._join()


@dataclass(frozen=True)
class Holder:
    """A database session with a lock on SIBOWNER: shared for an engine, exclusive for a start."""

    server_pid: int
    mode: str
    name: str


@dataclass
class Watch:
    """Looks at the database's locks all the time. `most`: engines at once; `owners`: in their order."""

    server: PrivatePostgresql
    schema: str
    most: int = 0
    owners: list[str] = field(default_factory=list)
    looks: int = 0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            try:
                with psycopg.connect(self.server.conninfo, autocommit=True, application_name="watch") as connection:
                    while not self._stop.wait(0.01):
                        self._look(connection)
            except psycopg.Error:
                continue  # the database restarts

    def _look(self, connection: psycopg.Connection) -> None:
        shared = [holder for holder in holders(connection, self.schema) if holder.mode == "ShareLock"]
        self.most = max(self.most, len(shared))
        self.looks += 1
        if shared and self.owners[-1:] != [shared[0].name]:
            self.owners.append(shared[0].name)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)


def holders(connection: psycopg.Connection, schema: str) -> list[Holder]:
    rows = connection.execute(
        "SELECT l.pid, l.mode, a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid "
        "JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE l.granted AND c.relname = 'sibowner' AND n.nspname = %s AND l.mode IN ('ShareLock', 'ExclusiveLock')",
        (schema,),
    ).fetchall()
    return [Holder(*row) for row in rows]


def engine_pids(server: PrivatePostgresql, schema: str) -> list[int]:
    """Process ids of the holders of the shared lock, as they told the database."""
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        found = [holder for holder in holders(connection, schema) if holder.mode == "ShareLock"]
    return [int(holder.name.rsplit(" ", 1)[1]) for holder in found]


def check_account(uri: str, writers: list[WriterProcess]) -> int:
    """Asserts that no acknowledged number is lost or was done twice: the numbers of each writer only grow, and the store has
    the last one. Returns how many were acknowledged."""
    with open_store(uri) as store:
        for writer in writers:
            numbers = writer.acknowledged
            again = [pair for pair in itertools.pairwise(numbers) if pair[1] <= pair[0]]
            assert again == [], f"{writer.name}: acknowledged numbers were lost and given again: {again[:5]}"
            objects = store.peek(writer.name)
            assert objects["n"] == objects["twin"]
            assert numbers[-1] <= int(objects["n"]) <= numbers[-1] + 1, (writer.name, numbers[-1], objects["n"])
    return sum(len(writer.acknowledged) for writer in writers)


def schema_of(uri: str) -> str:
    found = re.search(r"schema=(\w+)", uri)
    assert found is not None
    return found[1]
