"""A run of pytest itself: signals reach its tests, and it ends without a word of what it has loaded."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from tests.harness.project import PROJECT

INTERRUPTED = [
    f"tests/unit/project/test_test_run.py::test_interrupt_{what}" for what in ("reaches_a_test", "ends_a_wait")
]


def ignore_interrupts() -> None:
    """As a shell does for what a script starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_interrupt_reaches_a_test() -> None:
    """C14: tests of Ctrl-C interrupt themselves and the processes that they start."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    handed_down = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.check_output([sys.executable, "-c", handed_down], text=True) == "True\n"


def test_interrupt_ends_a_wait() -> None:
    """C14: also in a run that has loaded polars."""
    waited, main = threading.Event(), threading.get_ident()
    interrupting = [
        threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)),
        threading.Timer(30, waited.set),
    ]
    for timer in interrupting:
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        waited.wait()
    interrupting[1].cancel()
    assert not waited.is_set()


@pytest.mark.parametrize("started", [ignore_interrupts, None], ids=["in the background", "in a terminal"])
def test_run_gets_interrupts_and_reports_no_leak(started: Callable[[], None] | None) -> None:
    """C3, C14: also when a script has started the run, and when it has loaded polars, which handles interrupts by itself, and DuckDB,
    whose module would report what stays."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.harness.domains.other_readers", *INTERRUPTED],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=started,
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
