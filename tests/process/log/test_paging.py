"""T7: a client and a job read a large backlog in bounded memory, and a killed process leaves nothing in the paging directory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from spark_jms import apply, connect
from spark_jms.testing.inside import domain_of
from tests.harness.project import PROGRAMS, PROJECT

APP = PROGRAMS / "paging_app.py"
BUFFER_MB, ALLOWED_MB = 64, 64 + 100


def fill(root: Path, destination: str, messages: int) -> None:
    """Messages of 1 MiB."""
    chance = random.Random(3)
    with connect(root, housekeeping=False) as context:
        context.producer(destination).send_many(
            {"body": chance.randbytes(2**20), "priority": chance.randrange(10)} for _ in range(messages)
        )


def start(root: Path, what: str, paging: Path, buffer_mb: int = BUFFER_MB) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(PROJECT),
        "JMSQ_MESSAGE_BUFFER_SIZE": f"{buffer_mb} MB",
        "JMSQ_PAGING_DIRECTORY": str(paging),
    }
    command = [sys.executable, str(APP), str(root), what]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def drained(root: Path, what: str, paging: Path, limit_s: float = 60) -> tuple[int, float, int]:
    """The messages that the application has read, the growth of its memory in MB, and the messages that were paged."""
    with start(root, what, paging) as process:
        try:
            out, _ = process.communicate(timeout=limit_s)
        finally:
            process.kill()
    assert process.returncode == 0
    count, growth, paged = out.split()
    return int(count), float(growth), int(paged)


def test_backlog_larger_than_the_buffer_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """T7: 200 MiB with a buffer of 64 MB, by a job and by a client. The memory of each grows by the buffer and 100 MB at most."""
    root = tmp_path / "root"
    apply(root, {"destinations": {"urgent": {"kind": "queue", "destinationKeys": ["JMSPriority descending"]}}})
    fill(root, "urgent", 200)
    for what in ("job", "client"):
        count, growth_mb, paged = drained(root, what, tmp_path / "paging")
        print(f"{what}: {count} messages, {growth_mb:.0f} MB more, {paged} paged")
        assert count == 200
        assert growth_mb < ALLOWED_MB, f"{what}: {growth_mb:.0f} MB"
        assert paged > 100 or what == "client"  # its prefetched messages are read again from the log


def test_transaction_larger_than_the_buffer_is_sent_in_bounded_memory(tmp_path: Path) -> None:
    """T7, T16: 120 MiB in one commit."""
    root = tmp_path / "root"
    apply(root, {"destinations": {"sent": {"kind": "queue"}}})
    count, growth_mb, paged = drained(root, "sender", tmp_path / "paging")
    assert (count, paged > 40) == (120, True)
    assert growth_mb < ALLOWED_MB, f"{growth_mb:.0f} MB"
    with connect(root, housekeeping=False) as context:
        assert domain_of(context).log("sent").refresh().last_sequence(0) == 120


def test_killed_process_leaves_nothing_in_the_paging_directory(tmp_path: Path) -> None:
    """T7: its files have no names."""
    paging = tmp_path / "paging"
    with start(tmp_path, "holder", paging, buffer_mb=1) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("3 ")
            opened = [os.readlink(file) for file in Path(f"/proc/{process.pid}/fd").iterdir()]
            assert any(str(paging) in name for name in opened)
        finally:
            process.kill()
    assert list(paging.iterdir()) == []
