"""Random faults under load (S2, S6, S7): no acknowledged write is lost, and there are never two owners."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from spark_jms.testing.domain import wait_until
from spark_jms.testing.postgresql import PrivatePostgresql
from tests.harness.services.proxy import Proxy
from tests.harness.stores.jdbc_writers import LIMIT_S, Watch, WriterProcess, check_account, engine_pids, schema_of

QUICK = {"retry_interval_ms": 50, "verify_interval_ms": 100, "statement_limit_s": 2}


class Storm:
    """Three writers, one of which is the engine; all reach the database through one proxy."""

    def __init__(self, server: PrivatePostgresql, directory: Path, seed: int, on_connection_loss: str) -> None:
        self.server, self.random = server, random.Random(seed)
        self.proxy = Proxy("127.0.0.1", server.port)
        self.uri = server.uri(on_connection_loss=on_connection_loss, **QUICK)
        self.schema = schema_of(self.uri)
        self.watch = Watch(server, self.schema)
        through = self.uri.replace(f":{server.port}/", f":{self.proxy.port}/")
        self.writers = [WriterProcess(through, f"w{number}", directory).wait_ready() for number in range(3)]
        self.faults: Counter[str] = Counter()

    def engine(self) -> WriterProcess | None:
        pids = engine_pids(self.server, self.schema)
        return next((writer for writer in self.writers if writer.process.pid in pids), None)

    def strike(self) -> None:
        kind = self.random.choice(
            [
                "kill engine",
                "kill engine",
                "kill client",
                "terminate",
                "terminate lock",
                "cut",
                "stop engine",
                "full",
                "restart",
            ]
        )
        self.faults[kind] += 1
        engine = self.engine()
        match kind:
            case "kill engine" if engine is not None:
                engine.restart()
            case "kill client":
                self.random.choice([writer for writer in self.writers if writer is not engine]).restart()
            case "terminate":
                self.server.terminate("application_name LIKE 'spark-jms%'")
            case "terminate lock":
                self.server.terminate("application_name LIKE 'spark-jms%' AND state = 'idle in transaction'")
            case "cut":
                self.proxy.cut()
            case "stop engine" if engine is not None:
                engine.suspend()
                self.proxy.cut()
                engine.signal(signal.SIGCONT)
            case "full":
                self.fill_disk()
            case "restart":
                self.server.restart(self.random.choice([signal.SIGINT, signal.SIGQUIT]))

    def fill_disk(self) -> None:
        """The server reports a full disk (SQLSTATE 53100) for writes into SIB000 until a writer was refused."""
        table = f"{self.schema}.sib000"
        refused = sum(words[0] == "refused" for writer in self.writers for words in writer.words)
        self.server.execute(
            f"CREATE OR REPLACE FUNCTION {self.schema}.full() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END$$"
        )
        self.server.execute(
            f"CREATE OR REPLACE TRIGGER full_disk BEFORE INSERT OR UPDATE ON {table} EXECUTE FUNCTION {self.schema}.full()"
        )
        wait_until(
            lambda: sum(words[0] == "refused" for writer in self.writers for words in writer.words) > refused,
            LIMIT_S,
            "a writer is refused",
        )
        self.server.execute(f"DROP TRIGGER full_disk ON {table}")

    def run(self, count: int) -> None:
        begun_s = time.monotonic()
        for _ in range(count):
            self.strike()
            # The next fault comes when one writer has written again, before all of them have.
            self.random.choice(self.writers).wait_writes(self.random.randint(1, 30))
        for writer in self.writers:
            writer.wait_writes()
        took_s = time.monotonic() - begun_s
        for writer in self.writers:
            writer.stop()
        acknowledged = check_account(self.uri, self.writers)
        assert self.watch.most == 1, "two sessions held the engine's lock at once"
        told = ", ".join(f"{kind} {number}" for kind, number in sorted(self.faults.items()))
        print(
            f"{count} faults in {took_s:.0f} s ({told}): {acknowledged} acknowledged, 0 lost, 0 double owners, "
            f"{len(self.watch.owners)} changes of the owner seen"
        )

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.watch.close()
        self.proxy.close()


def weather(server: PrivatePostgresql, directory: Path, seed: int, count: int, on_connection_loss: str) -> None:
    storm = Storm(server, directory, seed, on_connection_loss)
    try:
        storm.run(count)
    finally:
        storm.close()


@pytest.mark.parametrize(("seed", "on_connection_loss"), [(1, "failover"), (2, "retry")])
def test_random_faults_lose_nothing(
    postgresql: PrivatePostgresql, tmp_path: Path, seed: int, on_connection_loss: str
) -> None:
    """S2, S6, S7: 30 faults each way, 60 together."""
    weather(postgresql, tmp_path, seed, 30, on_connection_loss)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 14))
def test_many_random_faults_lose_nothing(postgresql: PrivatePostgresql, tmp_path: Path, seed: int) -> None:
    """S2, S6, S7: 300 faults each."""
    weather(postgresql, tmp_path, seed, 300, ("failover", "retry")[seed % 2])
