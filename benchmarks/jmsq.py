"""spark-jms itself as a peer, through its public surface only."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import DAEMONS
from benchmarks.peers.base import LINGER_MS, PACE, Sender
from benchmarks.workbench import FEWER_FORKS, SPARKS, Workbench

DESTINATION = "orders"
MEMBERS = 4
ALL = "jmsq all columns"
TWO = "jmsq body,sequence"
REPLICATED = "jmsq, replicated checkpoint"
PACED, HELPED = "jmsq, batched", "jmsq, fewer forks"


class JmsqPeer:
    """A root for each destination number, holding one distributed queue of 4 members."""

    family = "jmsq"
    consumes = True
    checkpoint_files = SPARKS
    sink_cell = "jmsq"
    source_cells: tuple[str, ...] = (ALL, TWO)
    latency_cell = "jmsq"
    latency_trigger = "0 seconds"
    servers: frozenset[str] = frozenset()

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._home = bench.new_path("jmsq")

    def begin(self, number: int) -> None:
        import spark_jms

        root = self._root(number)
        root.mkdir(parents=True, exist_ok=True)
        spark_jms.apply(str(root), {"destinations": {DESTINATION: {"kind": "distributed-queue", "members": MEMBERS}}})

    def sink(self, frame: Any, number: int) -> Any:
        renamed = frame.withColumnRenamed("value", "body")
        writer = renamed.writeStream.format("jmsq").option("root", str(self._root(number)))
        return writer.option("destination", DESTINATION)

    def source(self, cell: str, number: int, rows: int = 0) -> Any:
        reader = self._bench.spark.readStream.format("jmsq").option("root", str(self._root(number)))
        reader = reader.option("destination", DESTINATION)
        if cell == TWO:
            reader = reader.option("columns", "body,sequence")
        return reader.load()

    def latency_source(self, number: int) -> Any:
        return self.source(ALL, number)

    def latency_checkpoint(self, number: int) -> str:
        return str(self._bench.new_path("checkpoint"))

    @contextlib.contextmanager
    def sender(self, number: int) -> Iterator[Sender]:
        import spark_jms

        with spark_jms.connect(str(self._root(number))) as context:
            producer = context.producer(DESTINATION)

            def send(payloads: Sequence[bytes]) -> None:
                if len(payloads) == 1:
                    producer.send(body=payloads[0])
                else:
                    producer.send_many([{"body": payload} for payload in payloads])

            yield send

    def end(self, number: int) -> None:
        shutil.rmtree(self._root(number), ignore_errors=True)

    def _root(self, number: int) -> Path:
        return self._home / f"root-{number}"


class HelpedPeer(JmsqPeer):
    """The same with the checkpoint file manager that forks less, as docs/SPARK.md recommends for queries without state."""

    latency_cell = HELPED
    checkpoint_files = FEWER_FORKS


class PacedPeer(JmsqPeer):
    """The same with asynchronous sends, of which those of LINGER_MS share a commit and, as Kafka's producers put a batch of messages
    without keys into one partition, a member; and a batch every PACE_MS."""

    latency_cell = PACED
    latency_trigger = PACE

    @contextlib.contextmanager
    def sender(self, number: int) -> Iterator[Sender]:
        import spark_jms
        from spark_jms.client import Completion, ConnectionFactory

        failed: list[Exception] = []
        completion = Completion(lambda _: None, lambda _, error: failed.append(error))
        factory = ConnectionFactory(asynchronous_send_linger_ms=LINGER_MS, load_balancing_enabled=False)
        with spark_jms.connect(str(self._root(number)), connection_factory=factory) as context:
            producer = context.producer(DESTINATION)

            def send(payloads: Sequence[bytes]) -> None:
                for payload in payloads:
                    producer.send(body=payload, completion=completion)
                if failed:
                    raise failed[0]

            yield send


class ReplicatedPeer(JmsqPeer):
    """The same, with the query's checkpoint behind the WebHDFS door of a replicated store on this machine."""

    latency_cell = REPLICATED
    servers = frozenset({DAEMONS})

    def __init__(self, bench: Workbench, door: str) -> None:
        super().__init__(bench)
        self._door = door

    def latency_checkpoint(self, number: int) -> str:
        return f"webhdfs://{self._door}/{self._bench.new_path('checkpoint').name}"


@contextlib.contextmanager
def replicated_door(directory: Path) -> Iterator[str]:
    """Three daemons with their doors; the first door's host:port."""
    from spark_jms.store.regions.admin.cluster import Cluster, free_ports

    cluster = Cluster(str(directory))
    cluster.write_config(3, "1G", first_port=17_100)
    try:
        yield cluster.up(door_port=free_ports(1, 19_870)[0]).doors[0]
    finally:
        cluster.down(force=True)
