"""A declaration that changes between the routing of a send and its commit (C4, C5). Found by the concurrency run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.columns import normalise
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages import message_writer
from spark_jms.log.messages.data_files import ORDER_KEY
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import now_ms
from tests.harness.domains.feed import QUEUE, make_queue


def staged(log: DeltaLog, turn: int, units: bool) -> list[StagedFile]:
    """Two batches of one producer, routed from member `turn` on."""
    writer = MessageWriter(log.storage, log.refresh().destination, turn)
    for start in (0, 40):
        numbers = range(start, start + 40)
        groups = pa.array([f"g{n % 7}" if units else None for n in numbers], pa.string())
        writer.write(pa.RecordBatch.from_arrays([pa.array(map(str, numbers)), groups], names=["text", "JMSXGroupID"]))
    return writer.close()


def normalised(text: str) -> pa.RecordBatch:
    return normalise(pa.RecordBatch.from_pydict({"text": [text]}), now_ms(), 1_000_000)


def declare(domain: Domain, members: int) -> None:
    apply_destinations(domain, [Destination(QUEUE, "distributed-queue", members)], lambda *_: True)


def messages(log: DeltaLog) -> dict[int, list[int]]:
    """member -> numbers, in the order of their sequences."""
    out = {}
    for member, files in log.refresh().members.items():
        texts = [
            pq.read_table(log.storage.root / file.path, partitioning=None)["text"].to_pylist() for file in files.files
        ]
        out[member] = [int(text) for part in texts for text in part]
    return out


def test_added_member_keeps_the_order_of_staged_messages(tmp_path: Path) -> None:
    domain = make_queue(tmp_path)
    log = domain.log(QUEUE)
    for turn in range(4):
        files = staged(log, turn, units=turn == 3)
        route = log.snapshot.route_id
        declare(domain, 5 + turn)
        before = {member: len(numbers) for member, numbers in messages(log).items()}
        send(log, files, route)
        new = {member: numbers[before.get(member, 0) :] for member, numbers in messages(log).items()}
        assert sorted(n for numbers in new.values() for n in numbers) == list(range(80))
        assert all(numbers == sorted(numbers) for numbers in new.values()), f"turn {turn}: {new}"


@pytest.mark.parametrize("routing", ["round-robin", "random"])
@pytest.mark.parametrize("turn", range(6))
def test_removed_member_loses_no_staged_message_and_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int, routing: str
) -> None:
    """C4, C5: the rows of removed members are put among those of the members that remain, in the producer's order, whichever
    shares they were; those of another task that had none there keep their files."""
    monkeypatch.setattr(message_writer, "_WINDOW_ROWS", 7)
    domain = make_queue(tmp_path)
    log = domain.log(QUEUE)
    apply_destinations(domain, [Destination(QUEUE, "distributed-queue", 6, routing=routing)], lambda *_: True)
    files = staged(log, turn, units=turn == 5)
    writer = MessageWriter(log.storage, log.refresh().destination, 0)
    writer.write_routed(normalised("1000"), pa.array([0], pa.int32()))
    other = writer.close()
    route = log.snapshot.route_id
    declare(domain, 4)
    sent = send(log, [*files, *other], route)
    new = messages(log)
    assert set(new) <= {0, 1, 2, 3}
    assert sorted(n for numbers in new.values() for n in numbers) == [*range(80), 1000]
    assert all(numbers == sorted(numbers) for numbers in new.values()), new
    assert set(other) <= set(sent.files)
    left = {path.name for path in (tmp_path / QUEUE).glob("*.parquet")}
    assert left == set(log.refresh().files)


def test_files_of_a_destination_that_cannot_shrink_note_no_order(tmp_path: Path) -> None:
    """C4: nothing is paid where nothing can be removed."""
    log = make_queue(tmp_path).log(QUEUE)
    for file in staged(log, 0, units=False):
        assert ORDER_KEY not in (pq.ParquetFile(log.storage.root / file.path).metadata.metadata or {})
