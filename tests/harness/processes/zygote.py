"""A process that has imported the project and forks the Python programs that tests start (forked.py):
python -m tests.harness.processes.zygote FD

An import of the client and of what it needs costs more CPU time than most programs of the tests themselves. A fork has it, and
is otherwise a new process: its own arguments, environment, directory, files, `__main__` and chance. It becomes a child of the
test, since the fork between it and this process ends at once and the test adopts orphans at that moment.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import runpy
import socket
import sys
import time
import types
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

# What the programs import sooner or later.
MODULES = (
    "spark_jms.client",
    "spark_jms.cli.__main__",
    "spark_jms.store.file",
    "spark_jms.store.jdbc",
    "spark_jms.store.replicated",
    "spark_jms.store.kinds.daemon",
    "psycopg",
    "sqlite3",
)
MALLOC_THREAD = "jemalloc_bg_thd"  # pyarrow's; jemalloc itself prepares it for a fork
MOST_BYTES = 1 << 17  # of an order
READY = b"ready"


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    standard = f"python{sys.version_info.major}{sys.version_info.minor}.zip"  # what is before it comes from the start, not from Python
    installed = sys.path[[os.path.basename(entry) for entry in sys.path].index(standard) :]
    for name in MODULES:
        importlib.import_module(name)
    pa.array([1])  # imports pandas
    gc.collect()
    gc.freeze()
    threads = [Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")]
    if len({*threads} - {MALLOC_THREAD}) > 1:
        connection.send(f"a process with the threads {', '.join(threads)} cannot be forked safely".encode())
        return
    connection.send(READY)
    try:
        while received := socket.recv_fds(connection, MOST_BYTES, 3):
            text, files = received[:2]
            if not text:
                return
            if _is_forked(connection):
                connection.close()
                order = json.loads(text)
                break
            for file in files:
                os.close(file)
            connection.send(b"started")
    except KeyboardInterrupt:
        return
    _become(order, files, installed)
    _run(order["command"])


def _is_forked(connection: socket.socket) -> bool:
    """True in the program's process, once it is the test's child."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    program = os.fork()
    if program:
        connection.send(str(program).encode())
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0002)
    return True


def _become(order: dict[str, Any], files: list[int], installed: list[str]) -> None:
    if order["new_session"]:
        os.setsid()
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, max(files) + 2)
    raw = io.BufferedReader(io.FileIO(0, closefd=False))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(raw, sys.stdin.encoding, sys.stdin.errors)
    sys.stdout = sys.__stdout__ = _writer(1, sys.stdout)
    sys.stderr = sys.__stderr__ = _writer(2, sys.stderr)
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *installed]


def _writer(number: int, like: TextIO) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    if os.environ.get("PYTHONUNBUFFERED"):
        return io.TextIOWrapper(raw, like.encoding, like.errors, write_through=True)  # type: ignore[arg-type]
    return io.TextIOWrapper(
        io.BufferedWriter(raw), like.encoding, like.errors, line_buffering=number == 2 or raw.isatty()
    )


def _run(command: list[str]) -> None:
    """As Python does with these arguments. The caller returns afterwards, and Python ends as ever."""
    if command[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = ["-m", *command[2:]]
        is_package = hasattr(sys.modules.get(command[1]), "__path__")
        # Python would warn that the module of the program is imported already.
        sys.modules.pop(f"{command[1]}.__main__" if is_package else command[1], None)
        runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
        return
    program = types.ModuleType("__main__")
    if command[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *command[2:]]
        code = compile(command[1], "<string>", "exec")
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        sys.argv = command
        program.__file__ = command[0]
        with open(command[0], "rb") as file:
            code = compile(file.read(), command[0], "exec")
    sys.modules["__main__"] = program
    exec(code, program.__dict__)


if __name__ == "__main__":
    main()
