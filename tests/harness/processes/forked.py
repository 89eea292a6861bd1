"""`Popen` and `run` of `subprocess` for the Python programs of tests, which start as forks of one process (zygote.py).

A program whose start itself is tested, or that has to be a Python without modules, starts by `subprocess`.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, AnyStr

from tests.harness.project import PROJECT

_PR_SET_CHILD_SUBREAPER = 36
_MOST_BYTES = 4096  # of an answer


class _Zygote:
    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            theirs.set_inheritable(True)
            command = [sys.executable, "-m", "tests.harness.processes.zygote", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                cwd=PROJECT,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process with threads cannot be forked safely
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        answer = self._connection.recv(_MOST_BYTES)
        self.unable = "" if answer == b"ready" else answer.decode() or "it ended while it imported the project"
        if self.unable:
            print(f"programs of tests are no forks, and take longer to start: {self.unable}", file=sys.stderr)
        atexit.register(self._close)

    def start(self, order: dict[str, Any], files: list[int]) -> int:
        with self._lock:
            _adopt_orphans(True)  # only now: the orphans of killed programs belong to the system
            try:
                socket.send_fds(self._connection, [json.dumps(order).encode()], files)
                pid = int(self._connection.recv(64))
                self._connection.recv(64)
            finally:
                _adopt_orphans(False)
        return pid

    def _close(self) -> None:
        self._connection.close()
        self._process.wait()


_zygote = cache(_Zygote)


def _adopt_orphans(adopt: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def _can_fork(command: Sequence[str], environment: dict[str, str] | None) -> bool:
    """A program of this Python, without options of Python and with the project's modules only."""
    ours = {os.environ.get("PYTHONPATH"), str(PROJECT)}
    if sys.platform != "linux" or (environment is not None and environment.get("PYTHONPATH") not in ours):
        return False
    return command[0] == sys.executable and (command[1] in ("-m", "-c") or not command[1].startswith("-"))


class Popen(subprocess.Popen[AnyStr]):
    """Its process is a child of this one like any other."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: bool, *more: Any) -> None:
        pass_fds, cwd, env, _, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *last = more
        command = [] if shell else [os.fsdecode(word) for word in args]
        if preexec_fn or pass_fds or shell or not _can_fork(command, env) or _zygote().unable:
            super()._execute_child(args, executable, preexec_fn, close_fds, *more)  # type: ignore[misc]
            return
        order = {
            "command": command[1:],
            "directory": os.path.abspath(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
            "new_session": bool(last[5]),
        }
        files = [number if ours == -1 else ours for number, ours in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = _zygote().start(order, files)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]


def run(
    command: Sequence[str], *, timeout: float, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run`, as far as tests use it."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen[Any](command, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess[Any](command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done
