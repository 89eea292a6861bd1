"""A declaration that changes between the routing of a send and its commit (C4, C5). Found by the concurrency run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_jms.core.destination import Destination
from spark_jms.core.staged_file import StagedFile
from spark_jms.log.declarations import apply_destinations
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.message_writer import MessageWriter
from spark_jms.log.send import send
from tests.process.feed import QUEUE, make_queue


def staged(log: DeltaLog, turn: int, units: bool) -> list[StagedFile]:
    """Two batches of one producer, routed from member `turn` on."""
    writer = MessageWriter(log.storage, log.refresh().destination, turn)
    for start in (0, 40):
        numbers = range(start, start + 40)
        groups = pa.array([f"g{n % 7}" if units else None for n in numbers], pa.string())
        writer.write(pa.RecordBatch.from_arrays([pa.array(map(str, numbers)), groups], names=["text", "JMSXGroupID"]))
    return writer.close()


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


def test_removed_member_loses_no_staged_message(tmp_path: Path) -> None:
    domain = make_queue(tmp_path)
    log = domain.log(QUEUE)
    declare(domain, 6)
    files = staged(log, 0, units=False)
    route = log.snapshot.route_id
    declare(domain, 4)
    send(log, files, route)
    new = messages(log)
    assert set(new) <= {0, 1, 2, 3}
    assert sorted(n for numbers in new.values() for n in numbers) == list(range(80))
    left = {path.name for path in (tmp_path / QUEUE).glob("*.parquet")}
    assert left == set(log.refresh().files)
