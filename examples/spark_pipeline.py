"""A declarative pipeline: queue -> table -> queue, killed in the middle and run again. Needs `spark-jms[connect]`.

python examples/spark_pipeline.py

It prints

    killed while the table received: True
    invoices: 600 messages, 600 different ones
    left in orders: 0
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spark_jms import apply, connect
from spark_jms.setup import find_java

PIPELINE = Path(__file__).with_name("pipeline")


def start(work: Path) -> subprocess.Popen[bytes]:
    """What a shell would run: JMSQ_ROOT=… spark-pipelines run. The second run needs a catalog that outlives the first, here Hive's."""
    derby = f"jdbc:derby:;databaseName={work / 'metastore'};create=true"
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.ui.enabled": "false",
    }
    command = [
        "spark-pipelines",
        "run",
        *(part for name, text in conf.items() for part in ("--conf", f"{name}={text}")),
    ]
    own = {"JMSQ_ROOT": str(work / "messages"), "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(find_java().home)}
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **own}
    with (work / "log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=work / "pipeline", env=environment, stdout=log, stderr=log, start_new_session=True
        )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as directory:
        work = Path(directory)
        shutil.copytree(PIPELINE, work / "pipeline")
        spec = work / "pipeline/spark-pipeline.yml"
        spec.write_text(spec.read_text().replace("/tmp/orders-pipeline", f"{work}/storage"))
        apply(work / "messages", {"destinations": {"orders": {"kind": "queue"}, "invoices": {"kind": "queue"}}})
        with connect(work / "messages") as context, context.producer("orders") as producer:
            producer.send_many({"text": f"order {number}"} for number in range(600))
        run, table = start(work), work / "warehouse/received"
        while run.poll() is None and len(list(table.glob("*.parquet"))) < 2:
            time.sleep(0.05)
        os.killpg(run.pid, signal.SIGKILL)
        print(f"killed while the table received: {run.wait() == -signal.SIGKILL}")
        assert start(work).wait() == 0, (work / "log").read_text()[-5000:]
        with connect(work / "messages") as context:
            texts = [message.text for message in context.browser("invoices")]
            print(f"invoices: {len(texts)} messages, {len(set(texts))} different ones")
            print(f"left in orders: {len(list(context.browser('orders')))}")


if __name__ == "__main__":
    main()
