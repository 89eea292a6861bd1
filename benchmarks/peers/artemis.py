"""ActiveMQ Artemis, durable: one broker on loopback, started and stopped by the benchmark, and its STOMP client.

Each message is persistent and journalled with a forced write before its receipt, as a JMS send() of a persistent message.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks import jars
from benchmarks.errors import PeerMissingError
from benchmarks.peers.java_process import JavaProcess
from benchmarks.peers.kafka import free_ports

ARTEMIS = "2.55.0"
BROKER = jars.JarSet(
    f"artemis-{ARTEMIS}",
    (
        ("org.apache.artemis", "artemis-server", ARTEMIS),
        ("org.apache.artemis", "artemis-stomp-protocol", ARTEMIS),
        ("org.slf4j", "slf4j-nop", "2.0.17"),
    ),
    transitive=True,
)
START_TIMEOUT_S = 120
CALL_TIMEOUT_S = 30
HEAP = "1g"
CONFIGURATION = """\
<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
  <persistence-enabled>true</persistence-enabled>
  <security-enabled>false</security-enabled>
  <journal-type>NIO</journal-type>
  <journal-directory>{data}/journal</journal-directory>
  <bindings-directory>{data}/bindings</bindings-directory>
  <large-messages-directory>{data}/large</large-messages-directory>
  <paging-directory>{data}/paging</paging-directory>
  <acceptors><acceptor name="stomp">tcp://127.0.0.1:{port}?protocols=STOMP</acceptor></acceptors>
  <address-settings><address-setting match="#">
    <default-address-routing-type>ANYCAST</default-address-routing-type>
    <default-queue-routing-type>ANYCAST</default-queue-routing-type>
  </address-setting></address-settings>
</core></configuration>
"""
MAIN = """\
public class Main {
  public static void main(String[] arguments) throws Exception {
    var broker = new org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ();
    broker.setConfigResourcePath(arguments[0]);
    broker.start();
    Thread.currentThread().join();
  }
}
"""


class ArtemisBroker:
    """One Java process; `stop` ends it, and always runs at exit."""

    def __init__(self, home: Path, broker_jars: list[Path]) -> None:
        self._home, self._jars = home, broker_jars
        self._process = JavaProcess(home)
        self.port = 0

    def start(self) -> None:
        self._home.mkdir(parents=True)
        (self.port,) = free_ports(1)
        configuration, main = self._home / "broker.xml", self._home / "Main.java"
        configuration.write_text(CONFIGURATION.format(data=self._home / "data", port=self.port), encoding="utf-8")
        main.write_text(MAIN, encoding="utf-8")
        classes = ":".join(str(jar) for jar in self._jars)
        command = [
            jars.java(),
            f"-Xms{HEAP}",
            f"-Xmx{HEAP}",
            "-cp",
            classes,
            str(main),
            f"file:{configuration}",
        ]
        self._process.start(command)
        self._wait_until_up()

    def stop(self) -> None:
        self._process.stop()

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self._process.is_running:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.1)
        raise PeerMissingError(
            f"Artemis {ARTEMIS}: not up within {START_TIMEOUT_S} s, or it died: {self._process.log_tail()}"
        )


class ArtemisClient:
    """One connection and one queue. Not thread-safe."""

    def __init__(self, port: int, queue: str) -> None:
        import stomp

        self._queue = queue
        self._receipts: SimpleQueue[str] = SimpleQueue()
        self.messages: SimpleQueue[Any] = SimpleQueue()
        self._sent = 0
        self._connection = stomp.Connection12([("127.0.0.1", port)], auto_decode=False)
        self._connection.set_listener("", _Listener(self._receipts, self.messages))
        self._connection.connect(wait=True)

    def send(self, body: bytes) -> None:
        """Returns when the broker has forced the message to the disk."""
        self._sent += 1
        self._connection.send(self._queue, body, headers={"persistent": "true"}, receipt=str(self._sent))
        self._receipts.get(timeout=CALL_TIMEOUT_S)

    def send_many(self, bodies: list[bytes]) -> None:
        """Returns when the broker has them all."""
        for body in bodies[:-1]:
            self._connection.send(self._queue, body, headers={"persistent": "true"})
        self.send(bodies[-1])

    def subscribe(self) -> None:
        self._connection.subscribe(self._queue, id="1", ack="client-individual")

    def acknowledge(self, frame: Any) -> None:
        self._sent += 1
        self._connection.ack(frame.headers["ack"], receipt=str(self._sent))
        self._receipts.get(timeout=CALL_TIMEOUT_S)

    def close(self) -> None:
        self._connection.disconnect()


class _Listener:
    """What stomp.py calls, in its thread."""

    def __init__(self, receipts: SimpleQueue[str], messages: SimpleQueue[Any]) -> None:
        self._receipts, self._messages = receipts, messages
        self.connected = threading.Event()

    def on_receipt(self, frame: Any) -> None:
        self._receipts.put(frame.headers["receipt-id"])

    def on_message(self, frame: Any) -> None:
        self._messages.put(frame)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *_: None
        raise AttributeError(name)


@contextlib.contextmanager
def artemis(home: Path, cache: Path) -> Iterator[ArtemisBroker]:
    """A running broker. PeerMissingError when it cannot be resolved or started."""
    try:
        import stomp  # noqa: F401
    except ImportError as error:
        raise PeerMissingError("stomp.py is not installed: pip install 'spark-jms[bench]'") from error
    broker = ArtemisBroker(home, jars.ensure(BROKER, cache))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
