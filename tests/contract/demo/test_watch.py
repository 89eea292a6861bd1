"""What observes the demo's queue from outside (M10)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import spark_jms
from spark_jms.demo import account
from spark_jms.demo.account import DepthSample, Watch
from tests.harness.messages.completions import in_thread


def test_last_sample_is_of_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M10: however late the thread is with the one before."""
    spark_jms.apply(tmp_path, {"destinations": {"orders": {"kind": "queue"}}})
    with spark_jms.connect(tmp_path, housekeeping=False) as context:
        context.producer("orders").send(text="a")
        held, go, look = threading.Event(), threading.Event(), Watch.look

        def late(self: Watch) -> DepthSample:
            found = look(self)
            if threading.current_thread().name == "demo watch":
                held.set()
                go.wait()
            return found

        monkeypatch.setattr(account, "EVERY_S", 0.01)
        monkeypatch.setattr(Watch, "look", late)
        watch = Watch(tmp_path, "orders")
        try:
            assert held.wait(60)
            with context.consumer("orders", acknowledge="auto") as consumer:
                assert consumer.receive(60) is not None
            ending = in_thread(watch.end)
            go.set()
            ending.join(60)
            assert [sample.backlog for sample in watch.samples[-2:]] == [1, 0]
        finally:
            go.set()
            watch.close()
