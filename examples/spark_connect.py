"""Spark Connect: a client dies, and its query goes on; its server dies, and another continues. Needs `spark-jms[connect]`.

python examples/spark_connect.py

It prints

    client killed: its query goes on in the server
    server killed: some messages are left
    another server and client: 600 messages, 600 different ones, 0 left
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jms import apply, browse, connect
from spark_jms.setup import find_java

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


def client(remote: str, work: str) -> None:
    """Queue orders -> queue invoices: the sink `jmsq` writes each batch once. Client and server see the same directory here."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    orders = spark.readStream.format("jmsq").option("root", f"{work}/messages").option("destination", "orders")
    invoices = orders.option("maxMessagesPerTrigger", 20).load().selectExpr("concat('invoice of ', text) AS text")
    writer = invoices.writeStream.format("jmsq").option("root", f"{work}/messages").option("destination", "invoices")
    writer.option("checkpointLocation", f"{work}/checkpoint").start()
    while browse(spark, f"{work}/messages", "orders").count():
        time.sleep(0.5)


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    own = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with log.open("ab") as file:
        return subprocess.Popen(command, env={**os.environ, **own}, stdout=file, stderr=file, start_new_session=True)


def serve(port: int, log: Path) -> subprocess.Popen[bytes]:
    conf = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": "127.0.0.1"}
    given = [part for name, text in conf.items() for part in ("--conf", f"{name}={text}")]
    server = start(["spark-submit", "--master", "local[2]", *given, "--class", SERVER, "spark-internal"], log)
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.2)
    raise RuntimeError(log.read_text())


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        log = Path(work, "log")
        apply(f"{work}/messages", {"destinations": {"orders": {"kind": "queue"}, "invoices": {"kind": "queue"}}})
        command = [sys.executable, __file__, f"sc://127.0.0.1:{port}", work]
        with connect(f"{work}/messages") as context:
            with context.producer("orders") as producer:
                producer.send_many({"text": f"order {number}"} for number in range(600))

            def sent(destination: str = "invoices") -> list[str | None]:
                return [message.text for message in context.browser(destination)]

            def wait(messages: int) -> None:
                while len(sent()) < messages:
                    time.sleep(0.2)

            server = serve(port, log)
            first = start(command, log)
            wait(20)
            os.killpg(first.pid, signal.SIGKILL)
            wait(len(sent()) + 60)
            print("client killed: its query goes on in the server")
            os.killpg(server.pid, signal.SIGKILL)
            print(f"server killed: {'some' if sent('orders') else 'no'} messages are left")
            server = serve(port, log)
            start(command, log).wait()
            wait(600)
            os.killpg(server.pid, signal.SIGKILL)
            different, left = len(set(sent())), len(sent("orders"))
            print(f"another server and client: {len(sent())} messages, {different} different ones, {left} left")


if __name__ == "__main__":
    client(*sys.argv[1:]) if len(sys.argv) == 3 else main()
