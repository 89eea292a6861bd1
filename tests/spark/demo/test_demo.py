"""The demo on a few flights: its account, its exit, and the faults that the account must report."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from spark_jms.core.messages.ranges import Ranges
from spark_jms.demo import flights
from spark_jms.demo.account import DepthSample, OpenClaim, queue_account, subscription_account
from spark_jms.demo.processes import Received, batches_after
from spark_jms.demo.story import sparkline
from tests.harness.users.demo_run import demo, expected_account, kept_account, processes_in

ROWS = 6000
BATCH = 50


def until(condition: Callable[[], Any], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


# -- the run -----------------------------------------------------------------------------------------------------------
@pytest.mark.timeout(600)
def test_demo_reports_that_no_message_is_lost_or_doubled(tmp_path: Path) -> None:
    run = demo("--rows", str(ROWS), "--keep", "kept", cwd=tmp_path)
    said, _ = run.communicate(timeout=580)
    assert run.returncode == 0, said
    assert kept_account(tmp_path / "kept") == expected_account(ROWS)
    for heading in ("kill -9", "Messages by member and receiver", "Waiting over time", "Nothing lost, nothing twice"):
        assert heading in said
    assert processes_in(tmp_path) == []


@pytest.mark.timeout(600)
def test_demo_waits_for_no_sample(tmp_path: Path) -> None:
    """A watch that looks every 10 s misses whatever lasts a moment."""
    run = demo("--rows", "2000", "--keep", "kept", cwd=tmp_path, watch_every_s=10.0)
    said, _ = run.communicate(timeout=580)
    assert run.returncode == 0, said
    assert "The application of `a` took" in said


@pytest.mark.timeout(240)
def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    run = demo("--rows", "2000", cwd=tmp_path)
    until(lambda: any("demo.processes" in line for line in processes_in(tmp_path)), 120, "no receiver was started")
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=100)
    assert run.returncode == 130, said
    until(lambda: processes_in(tmp_path) == [], 30, "processes are left")
    assert list(tmp_path.glob("jmsq-demo-*")) == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("interrupted", ["pass", "raise ValueError('C error: read failed')"])
def test_ctrl_c_that_a_library_loses_ends_the_demo(tmp_path: Path, interrupted: str) -> None:
    run = demo("--rows", "2000", cwd=tmp_path, interrupted=interrupted)
    said, _ = run.communicate(timeout=100)
    assert run.returncode == 130, said
    assert "Interrupted; cleaning up." in said
    assert "C error" not in said
    until(lambda: processes_in(tmp_path) == [], 30, "processes are left")
    assert list(tmp_path.glob("jmsq-demo-*")) == []


def test_options_are_checked(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, message in ((("--rows", "5"), "2,000 to 336,776"), (("--keep", "full"), "is not empty")):
        run = demo(*arguments, cwd=tmp_path)
        said, _ = run.communicate(timeout=60)
        assert run.returncode == 2
        assert message in said


# -- the account -------------------------------------------------------------------------------------------------------
class Tables:
    """The tables of two receivers as a faultless run writes them: batches alternate, an aircraft has one member."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.flights = flights.load(400)
        self.tables = {name: directory / name for name in ("a", "b")}
        self.last = {0: 0, 1: 0}
        self.rows = [self._message(row) for row in self.flights.to_pylist()]

    def _message(self, row: dict[str, Any]) -> dict[str, Any]:
        member = sum(map(ord, row["tailnum"] or "")) % 2
        self.last[member] += 1
        row["JMSXGroupSeq"] = row.pop("leg")
        return {
            "member": member,
            "sequence": self.last[member],
            "JMSMessageID": f"ID:{row['number']}",
            "JMSRedelivered": False,
            "JMSXDeliveryCount": 1,
            "JMSXGroupID": row["tailnum"],
            **row,
        }

    def write(self) -> None:
        types = {field.name: field.type for field in flights.FEED_SCHEMA} | {
            "member": pa.int32(),
            "sequence": pa.int64(),
            "JMSMessageID": pa.string(),
            "JMSRedelivered": pa.bool_(),
            "JMSXDeliveryCount": pa.int32(),
            "JMSXGroupID": pa.string(),
            "JMSXGroupSeq": pa.int32(),
        }
        for path in self.tables.values():
            (path / "_delta_log").mkdir(parents=True)
        for i in range(0, len(self.rows), BATCH):
            table = self.tables["ab"[i // BATCH % 2]]
            part = self.rows[i : i + BATCH]
            pq.write_table(
                pa.table({k: pa.array([r[k] for r in part], types[k]) for k in part[0]}), table / f"{i}.parquet"
            )
            actions = ({"commitInfo": {"timestamp": 1000 + i}}, {"add": {"path": f"{i}.parquet"}})
            (table / "_delta_log" / f"{i:020}.json").write_text("\n".join(map(json.dumps, actions)))

    def account(self, samples: tuple[DepthSample, ...] = ()) -> Any:
        self.write()
        return queue_account(self.flights, self.tables, self.last, samples)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def test_account_of_a_faultless_run_has_no_problems(tables: Tables) -> None:
    account = tables.account()
    assert account.problems == []
    assert account.received == {"a": 200, "b": 200}
    assert account.by_several > 5
    assert account.in_order == account.aircraft


def test_account_counts_lost_and_duplicated_messages(tables: Tables) -> None:
    tables.rows[7] = tables.rows[300]
    account = tables.account()
    assert (account.lost, account.duplicated) == (1, 1)


def test_account_counts_a_flight_received_under_two_sequences(tables: Tables) -> None:
    """The queue's sequences alone look faultless."""
    numbers = {key: tables.rows[8][key] for key in ("member", "sequence")}
    tables.rows[8] = {**tables.rows[7], **numbers}
    account = tables.account()
    assert (account.lost, account.duplicated) == (1, 1)


def test_account_counts_altered_columns(tables: Tables) -> None:
    tables.rows[3]["dest"] = "XXX"
    tables.rows[9]["arr_time"] = None
    assert tables.account().altered == 2


def test_account_counts_redelivered_messages_without_a_problem(tables: Tables) -> None:
    tables.rows[3] |= {"JMSRedelivered": True, "JMSXDeliveryCount": 2}
    account = tables.account()
    assert (account.redelivered, account.most_deliveries, account.problems) == (1, 2, [])


def test_account_reports_an_aircraft_out_of_order(tables: Tables) -> None:
    legs = pc.value_counts(tables.flights["tailnum"].drop_null()).to_pylist()
    busiest = max(legs, key=lambda entry: entry["counts"])["values"]
    first, second = [i for i, row in enumerate(tables.rows) if row["tailnum"] == busiest][:2]
    tables.rows[first], tables.rows[second] = tables.rows[second], tables.rows[first]
    account = tables.account()
    assert account.aircraft - account.in_order == 1
    assert account.problems == ["1 aircraft out of order"]


def test_account_counts_aircraft_claimed_by_two_receivers(tables: Tables) -> None:
    row = next(row for row in tables.rows if row["JMSXGroupSeq"] == 2)
    before = next(r for r in tables.rows if r["tailnum"] == row["tailnum"])
    claims = [
        OpenClaim(r["member"], who, Ranges.of((r["sequence"], r["sequence"])))
        for r, who in ((row, "q1"), (before, "q2"))
    ]
    account = tables.account((DepthSample(0.5, 400, 400, tuple(claims)), DepthSample(1.0, 400, 400, tuple(claims[:1]))))
    assert (account.samples, account.samples_shared, account.in_two_hands) == (2, 1, 1)


def test_account_of_a_subscription_counts_lost_and_unwanted_messages(tables: Tables) -> None:
    tables.write()
    first_half = tables.flights.filter(pc.less_equal(tables.flights["number"], 50))
    account = subscription_account("ops", None, first_half, tables.tables["a"])
    assert (account.expected, account.received, account.lost, account.duplicated, account.unwanted) == (
        50,
        200,
        0,
        0,
        150,
    )
    other = subscription_account("ops", None, first_half, tables.tables["b"])
    assert other.lost == 50


def test_feed_writes_flights_in_the_order_of_the_year(tmp_path: Path) -> None:
    table = flights.load(3000)
    assert table["number"].to_pylist() == list(range(1, 3001))
    assert (
        pc.equal(table["time_hour"], table["time_hour"].take(pc.sort_indices(table["time_hour"]))).to_pylist()
        == [True] * 3000
    )
    assert flights.write_feed(table, tmp_path, 0, 2, 4) + flights.write_feed(table, tmp_path, 2, 4, 4) == 3000
    files = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)
    assert files == sorted(tmp_path.glob("*.parquet"))
    assert pa.concat_tables([pq.read_table(path) for path in files]).equals(table)


class FinishedQuery:
    """The part of a streaming query that tells its progress."""

    def __init__(self, *batches: tuple[int, int]) -> None:
        self.recentProgress = [
            {
                "batchId": batch,
                "numInputRows": rows,
                "durationMs": {"triggerExecution": 100 + batch},
                "sources": [{"endOffset": json.dumps({"consumer": "query-1"})}],
            }
            for batch, rows in batches
        ]


def test_received_counts_a_repeated_batch_once() -> None:
    """After kill -9 the receiver repeats the micro-batch it was in."""
    received = Received()
    for query, seen in ((FinishedQuery((0, 0), (1, 5), (2, 7)), 1), (FinishedQuery((2, 7), (3, 1)), -1)):
        for batch in batches_after(query, seen):  # type: ignore[arg-type]
            received.add(batch)
    assert (received.rows, received.batches, received.consumer) == (8, {2: 7, 3: 1}, "query-1")
    assert received.batch_ms == [102, 102, 103]


def test_sparkline_scales_to_height_and_width() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 4, 8, 0]) == " ▄█ "
    assert len(sparkline(list(range(1000)), 60)) == 60
    assert sparkline([0, 0]) == "  "
