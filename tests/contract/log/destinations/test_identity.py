"""A destination that was dropped and created again is another destination (C5, C9)."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms.claims.messages.scan import Question, scan, units_of
from spark_jms.client import connect
from spark_jms.client.receiving import browser
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.selector import Selector
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import (
    CommitConflictError,
    DestinationReplacedError,
    InvalidDestinationError,
    UnreadableTableError,
)
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import REGISTER, Domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send
from spark_jms.log.tables import delta_log, storage
from spark_jms.log.tables.checkpoints import LOG, commit_path
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.upkeep.clean_up import checkpoint
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.spark.tasks import read_partition
from spark_jms.testing import memory_domain

ORDERS = Destination("orders", "queue")
LIMIT = ReadMaxRows(1000)


def delete(root: str) -> None:
    """Delete the destination by hand: its table and its register entry."""
    shutil.rmtree(f"{root}/orders")
    Domain(root).storage.delete(f"{REGISTER}/orders")


def replace(root: str, *texts: str, destination: Destination = ORDERS) -> DeltaLog:
    """Delete the destination by hand, create it again, and send to it, as another process does."""
    delete(root)
    domain = Domain(root)
    apply_destinations(domain, [destination], lambda *_: False)
    log = domain.log("orders")
    put(log, *texts)
    return log


def staged(log: DeltaLog, text: str, snapshot: Snapshot | None = None) -> list[StagedFile]:
    writer = MessageWriter(log.storage, (snapshot or log.refresh()).destination, turn=0)
    writer.write(pa.RecordBatch.from_pydict({"text": [text]}))
    return writer.close()


def put(log: DeltaLog, *texts: str) -> None:
    """One commit for each text."""
    for text in texts:
        files = staged(log, text)
        send(log, files, log.snapshot.route_id)


def lasts(log: DeltaLog) -> tuple[int, int]:
    """The version and the last sequence of member 0, as a process sees them that starts now."""
    snapshot = DeltaLog(log.storage, "orders").refresh()
    return snapshot.version, snapshot.last_sequence(0)


def data_files(root: str) -> set[str]:
    return {path.name for path in Path(root, "orders").glob("*.parquet")}


# -- the id ---------------------------------------------------------------------------------------------------------------
def test_table_id_stays_with_the_table() -> None:
    """C9: sends, Delta checkpoints and changed declarations keep the id; a new table has another one."""
    with memory_domain(orders="queue") as root:
        log = Domain(root).log("orders")
        first = log.refresh().table_id
        assert first
        put(log, "a")
        info = json.loads((log.storage.get(commit_path(1)) or b"").splitlines()[0])
        assert info["commitInfo"]["tableId"] == first
        checkpoint(log, every=1)
        apply_destinations(Domain(root), [Destination("orders", "distributed-queue", 2)], lambda *_: True)
        assert log.refresh().table_id == first
        assert Domain(root).log("orders").refresh().table_id == first
        assert replace(root).refresh().table_id not in ("", first)


def test_destination_replaced_error_says_what_to_do() -> None:
    """C9."""
    error = pickle.loads(pickle.dumps(DestinationReplacedError()))
    assert "dropped and created again" in str(error)
    assert "fresh checkpointLocation" in str(error)


# -- noticing -------------------------------------------------------------------------------------------------------------
def test_reader_notices_a_commit_of_another_table() -> None:
    """C5: the next version that appears belongs to the new table; nothing of it is added to the old one."""
    with memory_domain(orders="queue") as root:
        log = Domain(root).log("orders")
        put(log, "a", "b")
        old = log.refresh().table_id
        new = replace(root, "c", "d", "e")
        assert log.has_news()
        assert log.refresh().table_id == new.refresh().table_id != old
        assert (log.snapshot.version, log.snapshot.last_sequence(0)) == (3, 3)
        assert len(log.snapshot.files) == 3


def idle(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """31 s pass."""
    now = storage.now_ms()
    monkeypatch.setattr(delta_log, "now_ms", lambda: now + 31_000)


@pytest.mark.parametrize("texts", [(), ("c",), ("c", "d")], ids=["empty", "shorter", "as long"])
def test_idle_reader_notices_a_shorter_table(monkeypatch: pytest.MonkeyPatch, texts: tuple[str, ...]) -> None:
    """C5: the new table has no version that the reader waits for; its own newest version is missing or another commit."""
    with memory_domain(orders="queue") as root:
        log = Domain(root).log("orders")
        put(log, "a", "b")
        new = replace(root, *texts)
        idle(log, monkeypatch)
        assert log.has_news()
        assert log.refresh().table_id == new.refresh().table_id
        assert log.snapshot.last_sequence(0) == len(texts)


def test_idle_reader_notices_a_deleted_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: and a table that is created after that."""
    with memory_domain(orders="queue") as root:
        log = Domain(root).log("orders")
        put(log, "a")
        delete(root)
        idle(log, monkeypatch)
        for _ in range(2):
            with pytest.raises(InvalidDestinationError, match="jmsq apply"):
                log.refresh()
        apply_destinations(Domain(root), [ORDERS], lambda *_: False)
        assert log.refresh().version == 0


def test_idle_reader_keeps_a_version_that_only_a_delta_checkpoint_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """C5, C13: clean-up has deleted all log files; the table is the same."""
    with memory_domain(orders="queue") as root:
        log = Domain(root).log("orders")
        put(log, "a", "b")
        checkpoint(log, every=1)
        for version in range(3):
            log.storage.delete(commit_path(version))
        idle(log, monkeypatch)
        late = Domain(root).log("orders")
        assert log.refresh().version == late.refresh().version == 2
        put(log, "c")
        put(late, "d")
        assert log.refresh().last_sequence(0) == 4


def test_log_loads_its_table_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: the own commits and those of another process are known; nothing is read again from the start."""
    with memory_domain(orders="queue") as root:
        log, other = Domain(root).log("orders"), Domain(root).log("orders")
        loads = []
        load = DeltaLog.load
        monkeypatch.setattr(DeltaLog, "load", lambda self: loads.append(self) or load(self))
        for text in "abc":
            put(log, text, text)
            put(other, text)
        checkpoint(log, every=1)
        put(log, "d")
        assert log.refresh().digest == other.refresh().digest
        assert len(loads) == 2


# -- writing --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("texts", [(), ("c", "d"), ("c", "d", "e")], ids=["shorter", "as long", "longer"])
def test_sleeping_writer_does_not_append_to_another_table(texts: tuple[str, ...]) -> None:
    """C5: the writer slept between its decision and its append; the messages of the new table keep their numbers."""
    with memory_domain(orders="queue") as root:
        log = Domain(root).log("orders")
        put(log, "a", "b")
        asleep = log.snapshot
        new = replace(root, *texts)
        before = lasts(new)
        assert not log.append(asleep, "WRITE", [{"txn": {"appId": "seq/0", "version": 3}}], {})
        assert lasts(new) == before
        assert log.refresh().table_id == new.snapshot.table_id


@pytest.mark.parametrize("texts", [(), ("c", "d")], ids=["shorter", "as long"])
def test_writer_that_slept_in_its_append_takes_it_back(monkeypatch: pytest.MonkeyPatch, texts: tuple[str, ...]) -> None:
    """C5: the table is replaced between the writer's look at the log and the creation of its log file. Until the file is
    taken back, other processes refuse it by name."""
    with memory_domain(orders="queue") as root:
        log = Domain(root).log("orders")
        put(log, "a", "b")
        asleep, real = log.snapshot, log.storage.create
        seen: list[tuple[int, int]] = []

        def create(path: str, data: bytes, *, durable: bool = False) -> bool:
            new = replace(root, *texts)
            seen.append(lasts(new))
            created = real(path, data, durable=durable)
            if texts:  # ours is the next version of the new table
                with pytest.raises(UnreadableTableError, match="version 3 of the log was written for the table"):
                    lasts(new)
            else:
                assert lasts(new) == seen[0]
            return created

        monkeypatch.setattr(log.storage, "create", create)
        assert not log.append(asleep, "WRITE", [{"txn": {"appId": "seq/0", "version": 3}}], {})
        assert len(seen) == 1
        assert not log.storage.exists(commit_path(3))
        new = Domain(root).log("orders")
        put(new, "x")
        assert lasts(new) == (len(texts) + 1, len(texts) + 1)


def test_send_to_a_replaced_destination_fails_by_name() -> None:
    """C5: its files were routed for the old table. Nothing is committed, and no file is left."""
    with memory_domain(orders={"kind": "distributed-queue", "members": 4}) as root:
        log = Domain(root).log("orders")
        put(log, "a")
        old = log.snapshot
        new = replace(root, "b")
        kept = data_files(root)
        files = staged(log, "lost", old)  # the process has not noticed yet
        with pytest.raises(DestinationReplacedError, match="nothing was committed; send again"):
            send(log, files, old.route_id)
        assert lasts(new) == (1, 1)
        assert data_files(root) == kept
        put(log, "c")
        assert lasts(new) == (2, 2)


def test_files_staged_before_the_replacement_are_not_sent() -> None:
    """C5: they were in the old directory."""
    with memory_domain(orders="queue") as root:
        log = Domain(root).log("orders")
        put(log, "a")
        files, old = staged(log, "lost"), log.snapshot
        new = replace(root)
        with pytest.raises((DestinationReplacedError, CommitConflictError)):
            send(log, files, old.route_id)
        assert lasts(new) == (0, 0)


def test_producer_of_a_replaced_destination_fails_once() -> None:
    """C5, C11: the send that meets the new table fails by name; the next one goes there."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        producer = context.producer("orders")
        producer.send(text="a")
        producer.send(text="b")
        new = replace(root)
        with pytest.raises(DestinationReplacedError):
            producer.send(text="c")
        assert producer.send(text="d").sequence == 1
        assert lasts(new) == (1, 1)


def test_producer_of_a_deleted_destination_fails_by_name() -> None:
    """C5, C11: the directory is deleted, and the send does not make another one."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        producer = context.producer("orders")
        producer.send(text="a")
        delete(root)
        with pytest.raises(InvalidDestinationError, match="deleted|there is no destination"):
            producer.send(text="b")
        assert not Path(root, "orders").exists()


def test_housekeeping_asleep_spares_a_replaced_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: clean-up of the old table deletes no file of the new one."""
    from spark_jms.log.upkeep.clean_up import clean_up

    def hours_later(hours: int) -> Callable[[], int]:
        now = storage.now_ms() + hours * 3_600_000
        return lambda: now

    with memory_domain(orders={"kind": "queue", "file_grace_ms": 0}) as root:
        log = Domain(root).log("orders")
        put(log, "a", "b")
        replace(root, "c")
        kept = data_files(root)
        later = hours_later(2)
        monkeypatch.setattr(delta_log, "now_ms", later)
        clean_up(log, now=later())
        assert data_files(root) == kept
        assert Path(root, "orders", LOG).exists()


# -- the whole ------------------------------------------------------------------------------------------------------------
def test_destination_deleted_and_created_again_delivers_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """C9, C18: 10 messages are consumed, the table and its register entry are deleted by hand, and 12 are sent to the new
    one: a new consumer gets all 12. An old consumer that still runs, and a query with the old checkpoint, fail by name."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        producer, old = context.producer("orders"), context.consumer("orders")
        producer.send_many({"text": f"old {n}"} for n in range(10))
        query = reader(root)
        start = query.initialOffset()
        query.latestOffset(start, LIMIT)
        query.partitions(start, start)
        for _ in range(10):
            message = old.receive(timeout=10)
            assert message is not None
            message.acknowledge()
        query.stop()
        replace(root, *(f"new {n}" for n in range(12)))
        with pytest.raises(DestinationReplacedError):
            old.receive(timeout=10)
        with context.consumer("orders") as consumer:
            assert [consumer.receive(timeout=10).text for _ in range(12)] == [f"new {n}" for n in range(12)]
            assert consumer.receive(timeout=0) is None
        again = reader(root)
        again.initialOffset()
        with pytest.raises(DestinationReplacedError, match="fresh checkpointLocation"):
            again.latestOffset(start, LIMIT)
        again.stop()


@pytest.mark.parametrize("selector", [None, "JMSPriority < 10"])
def test_browser_of_a_replaced_destination_shows_no_other_messages(
    selector: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11, C18: the table is replaced between two windows of an iteration; sequence 2 is another message now."""
    monkeypatch.setattr(browser, "_WINDOW", 1)
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        put(Domain(root).log("orders"), "old 1", "old 2")
        messages = iter(context.browser("orders", selector=selector))
        assert next(messages).text == "old 1"
        replace(root, "new 1", "new 2")
        with pytest.raises(DestinationReplacedError):
            next(messages)
        assert [message.text for message in context.browser("orders", selector=selector)] == ["new 1", "new 2"]


def test_scan_of_a_replaced_destination_picks_nothing() -> None:
    """C18: the plan was made on the old table; its sequences are other messages now."""
    with memory_domain(orders="queue") as root:
        log = Domain(root).log("orders")
        put(log, "old")
        table_id, question = log.refresh().table_id, Question(Selector.parse("JMSPriority < 10"))
        replace(root, "new")
        with pytest.raises(DestinationReplacedError):
            scan(log, 0, Ranges.of((1, 1)), question, table_id=table_id)
        log.verify()
        with pytest.raises(DestinationReplacedError):
            units_of(log, 0, Ranges.of((1, 1)), table_id=table_id)


def test_task_of_a_replaced_destination_reads_no_other_messages() -> None:
    """C9, C18: the task starts after the table was replaced; sequence 1 is another message now."""
    with memory_domain(orders="queue") as root:
        put(Domain(root).log("orders"), "old")
        query = reader(root)
        start = query.initialOffset()
        query.latestOffset(start, LIMIT)
        query.partitions(start, start)
        (partition,) = query.partitions(start, query.latestOffset(start, LIMIT))
        replace(root, "new")
        with pytest.raises(DestinationReplacedError):
            list(read_partition(partition))  # type: ignore[arg-type]
        query.stop()


def reader(root: str) -> JmsqStreamReader:
    return JmsqStreamReader(parse_options({"root": root, "destination": "orders"}))
