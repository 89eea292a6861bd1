"""T7: the test of tests/process/log/test_paging.py with a backlog of 2 GiB: two minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms import apply
from tests.process.log.test_paging import ALLOWED_MB, drained, fill


@pytest.mark.soak
def test_two_gigabytes_are_read_in_the_memory_of_the_buffer(tmp_path: Path) -> None:
    """T7: by a job that gets all of it in one sorted batch, and by a client. The memory does not grow with the backlog."""
    root = tmp_path / "root"
    apply(root, {"destinations": {"urgent": {"kind": "queue", "destinationKeys": ["JMSPriority descending"]}}})
    fill(root, "urgent", 2048)
    for what in ("job", "client"):
        count, growth_mb, paged = drained(root, what, tmp_path / "paging", limit_s=900)
        print(f"{what}: {count} messages, {growth_mb:.0f} MB more, {paged} paged")
        assert count == 2048
        assert growth_mb < ALLOWED_MB, f"{what}: {growth_mb:.0f} MB"
