"""A PostgreSQL server for a test or a benchmark: its own directory and loopback port, stopped by process id.

PostgreSQL refuses to run as root, so root starts it as `postgres` or `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from spark_jms.setup.machine import find_postgresql
from spark_jms.testing.domain import wait_until

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
PLAIN: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "autovacuum": "off",
    "max_wal_size": "256MB",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _identity() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return {}


class PrivatePostgresql:
    """The constructor starts it. `fsync=False` suits tests that kill processes: only a power loss would differ."""

    def __init__(
        self, *, fsync: bool = False, settings: Mapping[str, str] | None = None, trusted_network: str = ""
    ) -> None:
        self._programs = find_postgresql()
        self._identity = _identity()
        self.directory = tempfile.mkdtemp(prefix="jmsq-postgresql-")
        self._data = os.path.join(self.directory, "data")
        self._log = os.path.join(self.directory, "log")
        self.port = free_port()
        self._settings = {**PLAIN, "fsync": "on" if fsync else "off", **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()
        try:
            if self._identity:
                os.chown(self.directory, self._identity["user"], self._identity["group"])
            self._run(
                ["initdb", "-D", self._data, "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]
            )
            if trusted_network:
                with open(os.path.join(self._data, "pg_hba.conf"), "a", encoding="ascii") as rules:
                    rules.write(f"host all all {trusted_network} trust\n")
            self.start()
        except BaseException:
            self.close()
            raise

    def _run(self, command: list[str]) -> None:
        program = str(self._programs / command[0])
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
            cwd=self.directory,
            **self._identity,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self._lock:
            options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
            with open(self._log, "ab") as log:
                self._process = subprocess.Popen(
                    [str(self._programs / "postgres"), "-D", self._data, "-p", str(self.port), *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.directory,
                    **self._identity,
                )
            wait_until(self._answers, START_TIMEOUT_S, f"PostgreSQL starts (see {self._log})")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            with open(self._log, encoding="utf-8", errors="replace") as log:
                raise RuntimeError(f"PostgreSQL ended: {log.read()[-2000:]}")
        import psycopg

        try:
            psycopg.connect(self.conninfo, connect_timeout=2).close()
        except psycopg.Error:
            return False
        return True

    @property
    def conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement as the administrator, on a new connection."""
        import psycopg

        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            done = connection.execute(statement, parameters or None)
            return done.fetchall() if done.description else []

    def uri(self, schema: str = "", *, port: int | None = None, **options: object) -> str:
        """A store URI, in a new schema unless one is named."""
        schema = schema or f"t_{uuid.uuid4().hex[:12]}"
        rest = "".join(f"&{name}={value}" for name, value in options.items())
        return f"jdbc:postgresql://postgres@127.0.0.1:{port or self.port}/postgres?schema={schema}{rest}"

    def terminate(self, condition: str = "true") -> int:
        """End other sessions, as an administrator would. Returns their number."""
        ended = self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND {condition}"
        )
        return len(ended)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: end sessions and write everything; SIGQUIT: stop at once, with recovery at the next start."""
        with self._lock:
            process = self._process
            if process is None:
                return
            if process.poll() is None:
                process.send_signal(how)
            process.wait(STOP_TIMEOUT_S)
            self._process = None

    def restart(self, how: signal.Signals = signal.SIGINT, between: Callable[[], None] = lambda: None) -> None:
        self.stop(how)
        between()
        self.start()

    def close(self) -> None:
        self.stop(signal.SIGQUIT)

        def removed() -> bool:
            shutil.rmtree(self.directory, ignore_errors=True)
            return not os.path.exists(self.directory)

        wait_until(
            removed, STOP_TIMEOUT_S, f"{self.directory} is removed"
        )  # its processes may still write for a moment
