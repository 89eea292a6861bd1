"""A Spark standalone cluster on loopback: a master and workers, each a process of its own, ended by process id."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyspark

from spark_jms.demo.processes import end_session
from spark_jms.setup.machine import find_java
from spark_jms.testing.domain import wait_until

_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_START_S = 90.0
LOOPBACK = "127.0.0.1"


class StandaloneCluster:
    """`url` is its master. An application that asks for no number of cores gets one on each worker, so several run at once."""

    def __init__(self, directory: Path, workers: int = 2, environment: dict[str, str] | None = None) -> None:
        self._directory, self._processes = directory, list[subprocess.Popen[bytes]]()
        self._environment = {
            **os.environ,
            **(environment or {}),
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_MASTER_OPTS": f"-Dspark.deploy.defaultCores={workers}",
            "SPARK_DAEMON_MEMORY": "256m",
        }
        directory.mkdir(parents=True)
        try:
            words = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
            log = self._start("master", "org.apache.spark.deploy.master.Master", *words)
            port = self._said(log, r"Successfully started service 'sparkMaster' on port (\d+)")
            self.url = f"spark://{LOOPBACK}:{port}"
            logs = []
            for number in range(workers):
                where = ("--cores", str(workers), "--memory", "4g", "--work-dir", str(directory / f"work-{number}"))
                logs.append(
                    self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *words, *where, self.url)
                )
            for log in logs:
                self._said(log, r"(Successfully registered with master)")
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, *command: str) -> Path:
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(_SPARK_CLASS), *command],
                env=self._environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # its executors are in it, and end with it
            )
        self._processes.append(process)
        return log

    def _said(self, log: Path, pattern: str) -> str:
        """Waits until the log has a line of this pattern; its group."""

        def found() -> re.Match[str] | None:
            assert all(process.poll() is None for process in self._processes), log.read_text()[-4000:]
            return re.search(pattern, log.read_text())

        wait_until(found, _START_S)
        match = found()
        assert match is not None
        return match[1]

    def kill_worker(self, number: int) -> None:
        """With its executors."""
        process = self._processes[1 + number]
        process.kill()
        process.wait()
        end_session(process.pid)

    def executors(self) -> set[Path]:
        """The directories of all executors that ran here: worker/application/number."""
        return {path for path in self._directory.glob("work-*/app-*/*") if path.is_dir()}

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            end_session(process.pid)
