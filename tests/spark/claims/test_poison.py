"""A real query whose sink refuses messages: restarted until the poison message is set aside (M4)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql.streaming import DataStreamWriter

from tests.harness.project import PROJECT
from tests.harness.users.pages import says_it_prints

pytestmark = pytest.mark.timeout(450)  # a query that is started seven times beside others takes its time
EXAMPLE = "spark_poison.py"


def test_failing_query_isolates_its_poison_message(
    run_example: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4, C8: Spark ends the process of a failed query's source with SIGTERM, which notes the failure. One of 8 messages on
    two members is poison: it is set aside after a few restarts, the sink has every other message once, and has the poison
    message too when it is mended and the message is redriven."""
    starts = []
    start = DataStreamWriter.start
    monkeypatch.setattr(DataStreamWriter, "start", lambda self: starts.append(self) or start(self))
    assert run_example(EXAMPLE) == says_it_prints(PROJECT / "examples" / EXAMPLE)
    failures = len(starts) - 2
    assert 4 <= failures <= 2 + 3 + 1
