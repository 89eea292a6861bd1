"""Programs that start as forks are processes like those that `subprocess` starts (tests/harness/processes/forked.py)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.processes import forked

STARTS: list[Any] = [subprocess.Popen, forked.Popen]

LOOK = """
import json, os, random, sys, threading
print("for the test", file=sys.stderr)
print(json.dumps({
    "arguments": sys.argv, "name": __name__, "directory": os.getcwd(), "environment": sorted(os.environ.items()),
    "path": sys.path, "parent": os.getppid(), "session": os.getsid(0) == os.getpid(), "input": sys.stdin.read(),
    "files": [os.path.exists(f"/proc/self/fd/{n}") for n in range(100)], "threads": threading.active_count(),
    "kinds": [(s.fileno(), s.encoding, s.errors, s.line_buffering) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "signals": [str(__import__("signal").getsignal(n)) for n in range(1, 32) if n != 2], "main": sys.modules["__main__"].LOOKED,
}))
sys.exit(3)
""".replace("print(json", "LOOKED = True\nprint(json", 1)


@pytest.mark.parametrize("how", ["-c", "-m", "file"])
def test_fork_is_a_process_like_any_other(tmp_path: Path, how: str) -> None:
    """C18: arguments, environment, directory, files, session, parent, input and end are those of a process by itself."""
    (tmp_path / "looking.py").write_text(LOOK)
    words = {"-c": ["-c", LOOK], "-m": ["-m", "looking"], "file": ["looking.py"]}[how]
    seen = []
    for start in STARTS:
        with start(
            [sys.executable, *words, "an argument", ""],
            cwd=tmp_path,
            env={**os.environ, "JMSQ_HERE": "ö"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            out, err = process.communicate("a line", timeout=60)
        seen.append({"code": process.returncode, "errors": err, **json.loads(out)})
    plain, fork = seen
    assert {key: (plain[key], fork[key]) for key in plain if plain[key] != fork[key]} == {}
    assert (fork["code"], fork["parent"], fork["input"]) == (3, os.getpid(), "a line")


def test_forks_share_no_chance() -> None:
    """C18"""
    draw = "import random, uuid; print(random.random(), uuid.uuid4())"
    drawn = [forked.run([sys.executable, "-c", draw], timeout=60, capture_output=True).stdout for _ in range(2)]
    assert drawn[0] != drawn[1]


def test_killed_fork_and_its_children_leave_nothing_behind() -> None:
    """C18: its end is its own; its orphan is the system's and not the test's."""
    program = "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    first, second = (forked.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2))
    orphans = [int(process.stdout.readline()) for process in (first, second)]
    try:
        with first:
            first.kill()
        assert first.returncode == -signal.SIGKILL
        assert second.poll() is None
        with pytest.raises(ChildProcessError):
            os.waitpid(orphans[0], os.WNOHANG)
    finally:
        with second:
            second.kill()
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)


def test_error_of_a_fork_ends_it_with_its_traceback() -> None:
    """C18"""
    done = forked.run([sys.executable, "-c", "1 / 0"], timeout=60, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
