"""Spark's Kafka connector, and the single-node KRaft broker it talks to: on loopback, started and stopped by the benchmark."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import jars
from benchmarks.errors import PeerMissingError
from benchmarks.measure import BROKER
from benchmarks.peers.base import LINGER_MS, PACE, Sender
from benchmarks.peers.java_process import JavaProcess
from benchmarks.workbench import FEWER_FORKS, SPARKS, Workbench

HEAP = "1g"
START_TIMEOUT_S = 120
CALL_TIMEOUT_S = 30
PARTITIONS = 4

SERVER = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
log.dirs={data}
num.partitions=4
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.delete.delay.ms=1000
"""
LOGGING = """\
status = off
rootLogger.level = warn
rootLogger.appenderRef.c.ref = C
appender.c.type = Console
appender.c.name = C
appender.c.target = SYSTEM_ERR
appender.c.layout.type = PatternLayout
appender.c.layout.pattern = %d %p %c{1}: %m%n
"""


class Broker:
    """One Java process; `stop` ends it, and always runs at exit."""

    def __init__(self, home: Path, broker_jars: list[Path]) -> None:
        self._home = home
        self._jars = broker_jars
        self._process = JavaProcess(home)
        self.bootstrap = ""

    def start(self) -> None:
        conf = self._home / "conf"
        conf.mkdir(parents=True)
        (conf / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
        port, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{port}"
        properties = conf / "server.properties"
        text = SERVER.format(port=port, controller=controller, data=self._home / "data")
        properties.write_text(text, encoding="utf-8")
        self._format(properties)
        command = [*self._java(f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseG1GC"), "kafka.Kafka", str(properties)]
        self._process.start(command)
        self._wait_until_up()

    def stop(self) -> None:
        self._process.stop()

    def _java(self, *options: str) -> list[str]:
        path = ":".join([str(self._home / "conf"), *(str(jar) for jar in self._jars)])
        return [jars.java(), *options, "-cp", path]

    def _format(self, properties: Path) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # A leading dash would be read as an option.
        arguments = ["format", "--standalone", "-c", str(properties), "-t", cluster.replace("-", "A")]
        command = [*self._java("-Xmx256m"), "kafka.tools.StorageTool", *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
        if run.returncode != 0:
            raise PeerMissingError(f"Kafka {jars.KAFKA}: formatting failed: {(run.stdout + run.stderr)[-300:]}")

    def _wait_until_up(self) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self._process.is_running:
                raise PeerMissingError(f"Kafka {jars.KAFKA}: the broker died: {self._process.log_tail()}")
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=2)
                return
        raise PeerMissingError(f"Kafka {jars.KAFKA}: not up within {START_TIMEOUT_S} s: {self._process.log_tail()}")


UNPACED, PACED_KAFKA, HELPED_KAFKA = "spark-kafka", "spark-kafka, batched", "spark-kafka, fewer forks"


class KafkaPeer:
    """Topics of 4 partitions; acks=all, a linger of 5 ms and batches of 128 KiB: the fastest settings found here."""

    family = "kafka"
    consumes = False
    checkpoint_files = SPARKS
    sink_cell = "spark-kafka"
    source_cells: tuple[str, ...] = ("spark-kafka",)
    latency_cell = UNPACED
    latency_trigger = "0 seconds"
    linger_ms = 0
    servers = frozenset({BROKER})

    def __init__(self, bench: Workbench, broker: Broker) -> None:
        from confluent_kafka.admin import AdminClient

        self._bench = bench
        self._bootstrap = broker.bootstrap
        self._admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def begin(self, number: int) -> None:
        from confluent_kafka.admin import NewTopic

        made = self._admin.create_topics([NewTopic(self._topic(number), PARTITIONS, 1)])
        for future in made.values():
            future.result(CALL_TIMEOUT_S)

    def sink(self, frame: Any, number: int) -> Any:
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", self._bootstrap)
        writer = writer.option("topic", self._topic(number)).option("kafka.acks", "all")
        return writer.option("kafka.linger.ms", "5").option("kafka.batch.size", "131072")

    def source(self, cell: str, number: int, rows: int) -> Any:
        reader = self._bench.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._bootstrap)
        return reader.option("subscribe", self._topic(number)).option("startingOffsets", "earliest").load()

    def latency_source(self, number: int) -> Any:
        return self.source(self.latency_cell, number, 0).withColumnRenamed("value", "body")

    def latency_checkpoint(self, number: int) -> str:
        return str(self._bench.new_path("checkpoint"))

    @contextlib.contextmanager
    def sender(self, number: int) -> Iterator[Sender]:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": self.linger_ms, "acks": "all"})

        def send(payloads: Sequence[bytes]) -> None:
            for payload in payloads:
                producer.produce(self._topic(number), value=payload)
            producer.poll(0)

        yield send
        producer.flush(CALL_TIMEOUT_S)

    def end(self, number: int) -> None:
        for future in self._admin.delete_topics([self._topic(number)]).values():
            future.result(CALL_TIMEOUT_S)

    def _topic(self, number: int) -> str:
        return f"bench-{number}"


class HelpedKafkaPeer(KafkaPeer):
    """The same with the checkpoint file manager that forks less."""

    latency_cell = HELPED_KAFKA
    checkpoint_files = FEWER_FORKS

    def _topic(self, number: int) -> str:
        return f"bench-helped-{number}"


class PacedKafkaPeer(KafkaPeer):
    """The same with a linger of LINGER_MS, and a batch every PACE_MS."""

    latency_cell = PACED_KAFKA
    linger_ms = LINGER_MS
    latency_trigger = PACE

    def _topic(self, number: int) -> str:
        return f"bench-paced-{number}"


def free_ports(count: int) -> list[int]:
    """Currently free ports. If another process takes one first, the start fails with a named error."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listening in sockets:
            listening.bind(("127.0.0.1", 0))
        return [int(listening.getsockname()[1]) for listening in sockets]
