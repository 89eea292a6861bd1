"""Spark Connect: a server with spark-jms, clients without it and without Java (C1)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_jms
from spark_jms.setup import find_java
from tests.harness.processes.sessions import java_environment
from tests.harness.project import PROJECT
from tests.harness.users.pages import lines, says_it_prints

CLIENT = PROJECT / "tests/harness/programs/connect_client.py"
EXAMPLE = PROJECT / "examples/spark_connect.py"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

pytestmark = pytest.mark.timeout(900)


def environment() -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("JMSQ_", "SPARK_", "PYSPARK_"))}
    return {
        **kept,
        **java_environment(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def client(remote: str, part: str, work: Path) -> subprocess.Popen[str]:
    variables = {name: text for name, text in environment().items() if "JAVA" not in name and "SPARK" not in name}
    command = [sys.executable, str(CLIENT), remote, part, str(work)]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err[-5000:]
    return out.splitlines()


def until(holds: Callable[[], bool], limit_s: float = 300) -> None:
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """A server on this host, killed at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    given = [part for name, text in conf.items() for part in ("--conf", f"{name}={text}")]
    command = ["spark-submit", "--master", "local[2]", *given, "--class", SERVER, "spark-internal"]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            env={**environment(), "JMSQ_ROOT": str(tmp_path / "messages")},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(lambda: server.poll() is not None or _answers(port))
        assert server.poll() is None, (tmp_path / "server.log").read_text()[-5000:]
        yield f"sc://127.0.0.1:{port}/;session_id={uuid.uuid4()}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_each_way_works_and_a_dead_clients_query_goes_on_until_its_session_stops_it(
    remote: str, tmp_path: Path
) -> None:
    """C1, C5: batch, table, view, INSERT, foreachBatch; an error has Spark's type and our text. The root is the server's
    JMSQ_ROOT or an absolute path: a relative one, that of the server's directory too, is refused. A query outlives its client, which
    was killed, and another client that joins the session stops it: what it has claimed is finished or comes back, once."""
    spark_jms.apply(
        tmp_path / "messages", {"destinations": {"orders": {"kind": "queue"}, "invoices": {"kind": "queue"}}}
    )
    assert output(client(remote, "uses", tmp_path)) == [
        "sent and read: 20",
        "table and view: 21 21",
        "foreachBatch: 21 left: 0",
        "root of the server's environment: 0",
        "relative root: AnalysisException True",
        "error: AnalysisException PYTHON_DATA_SOURCE_ERROR True True",
    ]
    with spark_jms.connect(tmp_path / "messages") as context:
        with context.producer("orders") as producer:
            producer.send_many({"text": str(number)} for number in range(2000))

        def sent() -> list[str | None]:
            return [message.text for message in context.browser("invoices")]

        streaming = client(remote, "streams", tmp_path)
        until(lambda: len(sent()) >= 10)
        streaming.kill()
        streaming.communicate()
        before = len(sent())
        until(lambda: len(sent()) >= before + 30)
        assert output(client(remote, "ends", tmp_path)) == ["stops forward", "active: 0"]
        forwarded = sent()
        assert len(forwarded) == len(set(forwarded)) < 2000
        waiting = {message.text for message in context.browser("orders")}
        assert waiting | set(forwarded) == {str(number) for number in range(2000)}


def test_the_example_prints_what_its_docstring_says() -> None:
    """C1, C5: kill -9 of the client, then of the server, while a query forwards into an idempotent sink: 0 lost, 0 twice."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], env=environment(), capture_output=True, text=True, timeout=850, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert lines(done.stdout) == says_it_prints(EXAMPLE)
