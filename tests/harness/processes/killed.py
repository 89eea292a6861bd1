"""Clients that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.processes import forked

_SCRIPT = """
import sys, time
from spark_jms import connect
context = connect(sys.argv[1], housekeeping=False)
{}
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def killed_client(root: str, work: str) -> Iterator[None]:
    """A process that has done its work with a `context` of the domain when the block begins; kill -9 at the end of the block."""
    child = forked.Popen([sys.executable, "-c", _SCRIPT.format(work), root], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
