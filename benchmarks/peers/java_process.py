"""A Java process of a peer: started in a session of its own, ended by its process id."""

from __future__ import annotations

import atexit
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

STOP_TIMEOUT_S = 30


class JavaProcess:
    """`stop` ends exactly that process and removes `home`, and always runs at exit.

    Where `setpriv` exists the kernel ends it too when this process dies without saying goodbye.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, command: Sequence[str]) -> None:
        """`home` exists. The process writes to `broker.log` in it."""
        leash = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        with (self.home / "broker.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*leash, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        atexit.register(self.stop)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> str:
        return (self.home / "broker.log").read_text(encoding="utf-8", errors="replace")[-300:]

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
        shutil.rmtree(self.home, ignore_errors=True)
