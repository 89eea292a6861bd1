"""What housekeeping costs the process that it runs in: a sender must not feel it (C11, C13)."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spark_jms
from spark_jms.claims.servers.stores import store_of
from spark_jms.claims.transactions.transaction import Coordinators
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.client.context.context import Context
from spark_jms.client.sending import shared_send
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import ActiveSubscription
from spark_jms.log.destinations.domain import Register
from spark_jms.log.tables import files
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import RecentRows
from spark_jms.log.upkeep import compaction, health
from spark_jms.log.upkeep.compaction import compact
from spark_jms.store import RecordInfo
from spark_jms.testing.inside import coordinators_of, domain_of, records_of

SEVEN_FILES = 7  # compaction leaves fewer than 8 files of a level


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    spark_jms.apply(str(tmp_path), {"destinations": {"orders": {"kind": "queue"}}})
    with spark_jms.connect(str(tmp_path), housekeeping=False) as made:
        yield made


def log_of(context: Context) -> DeltaLog:
    return domain_of(context).log("orders")


def send(context: Context, count: int) -> None:
    producer = context.producer("orders")
    for number in range(count):
        producer.send(text=f"message {number}", properties={"n": number, "red": number % 2 == 0}, priority=number % 10)


def rows_of(log: DeltaLog) -> pa.Table:
    found = [pq.read_table(log.storage.root / file.path) for file in log.refresh().member_files(0).files]  # type: ignore[attr-defined]
    return pa.concat_tables(found)


def opened_files(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []
    open_input = log.storage.open_input
    monkeypatch.setattr(log.storage, "open_input", lambda path: opened.append(path) or open_input(path))
    return opened


def test_compaction_opens_no_file_that_its_process_has_just_sent(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13: it merges the rows that the sends have left in memory, and the merged file has the rows that the files have."""
    log = log_of(context)
    log.recent.keep()
    send(context, 40)
    in_files, opened = rows_of(log), opened_files(log, monkeypatch)
    assert compact(log).compacted_files == 40
    assert opened == []
    assert log.recent.bytes == 0
    merged = rows_of(log)
    assert merged.drop_columns(["ordinal"]).equals(in_files.drop_columns(["ordinal"]))
    assert merged.column("ordinal").to_pylist() == list(range(40))


def test_compaction_reads_what_is_not_in_memory_between_what_is(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13: rows of another process, and those that were dropped, come from their files, in order."""
    log = log_of(context)
    send(context, 10)
    log.recent.keep()
    send(context, 10)
    with spark_jms.connect(context.root, housekeeping=False) as other:
        send(other, 10)
    send(context, 10)
    in_files, opened = rows_of(log), opened_files(log, monkeypatch)
    compact(log)
    assert len(opened) == 20
    assert rows_of(log).drop_columns(["ordinal"]).equals(in_files.drop_columns(["ordinal"]))


def test_recent_rows_are_kept_only_for_compaction_and_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: a sender that leaves compaction to others keeps nothing; one that compacts keeps the newest small files."""
    rows = pa.record_batch({"a": [1]})
    monkeypatch.setattr(files, "RECENT_ROWS_BYTES", 100_000)
    recent = RecentRows()
    recent.add("early", rows, 1_000)
    assert recent.take("early") is None
    recent.add("large", rows, files.SMALL_BYTES + 1)
    for number in range(100):
        recent.add(f"f{number}", rows, 1_000)
        assert recent.bytes <= 100_000
    assert recent.take("large") is None
    assert recent.take("f0") is None
    assert recent.take("f99") is rows
    assert recent.take("f99") is None
    for number in range(100):
        recent.take(f"f{number}")
    assert recent.bytes == 0


def test_pauses_are_as_long_as_the_work_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: so a send beside housekeeping takes about twice its time; within bounds, also when the work began much later."""
    now_s, slept = iter((100.0, 100.01, 100.0125, 100.02, 100.0201, 100.03)), list[float]()
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: next(now_s), sleep=slept.append))
    monkeypatch.setattr(health, "_breath", health.Breath())
    for _ in range(3):
        health.give_way()
    assert slept == pytest.approx([0.005, 0.0025, 0.0005])


def test_housekeeping_works_in_small_steps_with_pauses(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: no commit of compaction replaces more files than a step, and before each one the other threads get their turn."""
    log, steps = log_of(context), list[str]()
    monkeypatch.setattr(compaction, "STEP_FILES", 8)
    monkeypatch.setattr(compaction, "give_way", lambda: steps.append("breath"))
    append = log.append

    def counted(snapshot: object, operation: str, actions: list[object], parameters: object) -> bool:
        steps.append(f"{len(actions) - 1} files")
        return append(snapshot, operation, actions, parameters)  # type: ignore[arg-type]

    send(context, 40)
    monkeypatch.setattr(log, "append", counted)
    compact(log)
    commits = [at for at, step in enumerate(steps) if step != "breath"]
    assert len(commits) >= 5
    assert all(steps[at - 1] == "breath" for at in commits)
    assert all(int(steps[at].split()[0]) <= 8 for at in commits)
    assert health.STEP_FILES <= 64


def test_purge_reads_the_register_once_a_round_not_once_a_file(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13: a round over 40 files asks the register as often as one over 10."""
    asked: list[str] = []
    entry = Register.entry

    def counted(self: Register, name: str) -> object:
        asked.append(name)
        return entry(self, name)

    housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
    try:
        monkeypatch.setattr(Register, "entry", counted)
        counts = []
        for _ in range(2):
            send(context, SEVEN_FILES)
            asked.clear()
            assert housekeeper.run()
            counts.append(len(asked))
        send(context, 40)
        asked.clear()
        assert housekeeper.run()
        assert len(asked) <= counts[-1]
    finally:
        housekeeper.close()


def test_domain_without_transactions_is_rarely_searched_for_them(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16, C13: the search goes through the names of all records; with the first transaction it is done every 5 s."""
    housekeeper, looks = Housekeeper(domain_of(context), records_of(context), "orders"), list[int]()
    recover = Coordinators.recover

    def counted(self: Coordinators) -> tuple[str, ...]:
        looks.append(1)
        return recover(self)

    monkeypatch.setattr(Coordinators, "recover", counted)

    def looks_after(seconds: float) -> int:
        looks.clear()
        now_s[0] += seconds
        assert housekeeper.run()
        return len(looks)

    now_s = [time.monotonic()]
    clock = SimpleNamespace(monotonic=lambda: now_s[0], strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr("spark_jms.claims.upkeep.housekeeping.time", clock)
    assert looks_after(0) == 1
    assert [looks_after(seconds) for seconds in (1, 6, 61)] == [0, 0, 1]
    coordinators_of(context).give_back(coordinators_of(context).take())
    assert [looks_after(seconds) for seconds in (1, 6, 61)] == [0, 1, 1]
    housekeeper.close()


def test_uses_are_not_read_for_each_record_set(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10, C13: a round of housekeeping reads each use a few times, however many subscriptions there are."""
    count = 12
    spark_jms.apply(context.root, {"destinations": {"prices": {"kind": "topic"}}})
    for _ in range(count):
        context.consumer("prices")
    context.producer("prices").send(text="x")
    housekeeper = Housekeeper(domain_of(context), records_of(context), "prices")
    read = 0
    real = ActiveSubscription.from_bytes

    def counted(name: str, data: bytes) -> ActiveSubscription:
        nonlocal read
        read += 1
        return real(name, data)

    monkeypatch.setattr(ActiveSubscription, "from_bytes", staticmethod(counted))
    housekeeper.run()
    monkeypatch.undo()
    housekeeper.close()
    assert read <= 4 * count, read


def test_sends_leave_no_work_for_the_garbage_collector(context: Context) -> None:
    """C11: cycles of objects would keep each message in memory until the collector runs, in the middle of a later send."""
    send(context, 3)
    gc.collect()
    gc.disable()
    try:
        send(context, 10)
        kept = [one for one in gc.get_objects() if isinstance(one, (shared_send.Shipment, shared_send.Part))]
    finally:
        gc.enable()
    assert kept == []


def test_looking_for_the_lease_of_another_process_writes_nothing(context: Context) -> None:
    """C9, C13: every process looks every two seconds, and each write would have to be read by all consumers."""
    domain = domain_of(context)
    with opened_store(domain) as store:
        first, second = (Housekeeper(domain, store, "orders") for _ in range(2))
        try:
            assert first.run()
            before = store.statistics().physical_write_count
            assert not second.run()
            assert not second.run()
            assert store.statistics().physical_write_count == before
        finally:
            first.close()
        try:
            assert second.run()
        finally:
            second.close()


def test_a_lease_that_an_unknown_outcome_has_left_with_this_process_is_taken(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13: else no process would ever keep house."""
    domain = domain_of(context)
    with opened_store(domain) as store:
        before = store.sessions().keys()
        housekeeper = Housekeeper(domain, store, "orders")
        try:
            (own,) = store.sessions().keys() - before
            monkeypatch.setattr(store_of(store, HOME), "info", lambda name: RecordInfo(name, 1, own, ()))
            assert housekeeper.run()
        finally:
            housekeeper.close()
