"""The demo's account says what start-up took, and its speeds do not contain it; what Spark prints is in its log."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_jms
from spark_jms.demo import __main__ as demo
from spark_jms.demo import interrupts
from spark_jms.demo import story as screen_module
from spark_jms.demo.__main__ import show
from spark_jms.demo.account import DemoResult, QueueAccount, Speed, row_commits
from spark_jms.demo.flights import DemoError
from spark_jms.demo.processes import Received, ReceivedBatch
from spark_jms.demo.story import Screen, Stage
from spark_jms.testing import memory_domain

ACCOUNT = QueueAccount(9, {"a": 9}, {"a": 3}, {0: {"a": 9}}, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0)


def test_speed_leaves_start_up_out() -> None:
    """45 s for 10,000 messages, of which the first batch took 41 s: 2,083 a second, not 222."""
    speed = Speed.of("send", 10_000, 45.0, [(41.2, 1_666), (42.0, 1_667), (45.2, 6_667)])
    assert (speed.start_up_s, speed.per_second) == (41.2, 2_084)


@pytest.mark.parametrize("batches", [[(9.0, 500)], []])
def test_a_stage_of_one_batch_has_no_speed(batches: list[tuple[float, int]]) -> None:
    """All of it is start-up."""
    speed = Speed.of("receive", 500, 9.0, batches)
    assert (speed.start_up_s, speed.per_second) == (9.0, None)


def test_receiver_counts_its_batches_without_the_idle_time() -> None:
    received = Received()
    for batch, ms in ((0, 8_000), (1, 500), (2, 1_500)):
        received.add(ReceivedBatch(batch, 1_000, ms, "query"))
    assert received.pace == [(8.0, 1_000), (8.5, 1_000), (10.0, 1_000)]
    assert Speed.of("in batches", received.rows, 10.0, received.pace).per_second == 1_000


def test_commits_of_a_destination_are_its_sends() -> None:
    with memory_domain(orders="queue") as root:
        stage = Stage()
        with spark_jms.connect(root) as context:
            producer = context.producer("orders")
            producer.send(text="a")
            with context.transacted_session() as session:
                sender = session.producer("orders")
                for text in "bc":
                    sender.send(text=text)
                session.commit()
        commits = row_commits(Path(root) / "orders")
        assert [commit.rows for commit in commits] == [1, 2]
        assert all(path.is_file() for commit in commits for path in commit.files)
        speed = stage.speed("send", 3, Path(root) / "orders")
        assert 0 <= speed.start_up_s <= speed.seconds
        assert Stage().speed("later", 0, Path(root) / "orders").per_second is None


def test_commits_without_rows_are_left_out(tmp_path: Path) -> None:
    """An empty table, a compaction, and files without statistics, as the receivers write them."""
    (tmp_path / "_delta_log").mkdir()
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "a b.parquet")
    entries = (
        [{"metaData": {}}],
        [{"commitInfo": {"timestamp": 1000}}, {"add": {"path": "a%20b.parquet", "dataChange": True}}],
        [{"commitInfo": {"timestamp": 2000}}, {"add": {"path": "a%20b.parquet", "dataChange": False}}],
    )
    for version, actions in enumerate(entries):
        (tmp_path / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))
    assert [(c.commit_ms, c.rows, c.files) for c in row_commits(tmp_path)] == [(1000, 3, (tmp_path / "a b.parquet",))]


def test_account_says_what_start_up_took(capsys: pytest.CaptureFixture[str]) -> None:
    speeds = [Speed("send, no receiver", 10_000, 45.25, 41.2, 2_084), Speed("receive as ops", 500, 9.0, 9.0, None)]
    show(Screen(plain=True), DemoResult(ACCOUNT, [], speeds, [], [], 0, 0, 14.4, 21.9), 103.0)
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert ["stage", "messages", "seconds", "of", "them", "start-up", "a", "second,", "after", "it"] in rows
    assert ["send,", "no", "receiver", "10,000", "45.2", "41.2", "2,084"] in rows
    assert ["receive", "as", "ops", "500", "9.0", "9.0", "–"] in rows
    assert "Before the first stage Spark started for 14 s." in printed
    assert "The application of `a` took 22 s to start again" in printed


def test_plain_screen_repeats_an_unchanged_line_rarely(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen_module, "PLAIN_EVERY_S", -1.0)
    shown = Screen(plain=True)
    for waiting in (5, 5, 5, 4):
        shown.depth([waiting], waiting)
    assert [line.partition("] ")[2] for line in capsys.readouterr().out.splitlines()] == ["waiting 5; ", "waiting 4; "]


class Noisy:
    """A story that prints as Spark does, then ends as told."""

    ends: BaseException | None = None

    def __init__(self, work: Path, *_: object) -> None:
        self.problems: list[str] = []

    def run(self) -> DemoResult:
        os.write(2, b"Traceback (most recent call last):\nBrokenPipeError: [Errno 32] Broken pipe\n")
        if self.ends is not None:
            raise self.ends
        return DemoResult(ACCOUNT, [], [], [], [], 0, 0, 1.0, 1.0, self.problems)

    def close(self) -> None:
        os.write(2, b"log4j: closing\n")


@pytest.mark.parametrize(
    ("ends", "code", "kept"),
    [
        (None, 0, False),
        (DemoError("no step"), 1, True),
        (RuntimeError("[STREAM_FAILED] no step\n\tat org.apache.spark"), 1, True),
        (KeyboardInterrupt(), 130, False),
    ],
)
def test_demo_names_its_logs_when_it_fails(
    ends: BaseException | None,
    code: int,
    kept: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Nothing that Spark prints is on the screen. The logs stay when the demo fails, and nothing else does."""
    monkeypatch.setattr(demo, "Story", Noisy)
    monkeypatch.setattr(Noisy, "ends", ends)
    monkeypatch.setattr(demo, "end_descendants", lambda: None)
    monkeypatch.setattr(interrupts.signal, "signal", lambda *_: None)
    monkeypatch.setattr(demo.tempfile, "mkdtemp", lambda prefix: str(tmp_path / prefix))
    assert demo.main(["--plain"]) == code
    printed = capfd.readouterr()
    assert "BrokenPipe" not in printed.out + printed.err
    assert "log4j" not in printed.out + printed.err
    logs = tmp_path / "jmsq-demo-" / "logs"
    assert (f"What its applications logged: {logs}" in printed.err) == kept
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.log")] == (
        ["jmsq-demo-/logs/demo.log"] if kept else []
    )
    if kept:
        assert "no step\n" in printed.err
        assert "org.apache" not in printed.err
        logged = (logs / "demo.log").read_text()
        assert "BrokenPipeError: [Errno 32] Broken pipe\n" in logged
        assert logged.endswith("log4j: closing\n")
        assert ("at org.apache.spark" in logged) == isinstance(ends, RuntimeError)
    else:
        assert list(tmp_path.iterdir()) == []
