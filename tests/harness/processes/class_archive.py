"""Writes the archive of Spark's classes that the JVMs of the tests and of the demo share (Java's class data sharing).

    python -m tests.harness.processes.class_archive

A Spark application loads some 20,000 classes before its first batch. The archive has the classes that one session uses
to send, receive into a Delta table and browse. It takes less than a minute and 200 MB, once. The tests and the demo run without
it as well, more slowly. Lines "step: …" tell set-up's bar how far it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext

from spark_jms.setup.machine import find_java
from spark_jms.setup.session import SHORT_LIVED, class_archive
from tests.harness.domains.feed import QUEUE, consumer, make_queue, send_numbers
from tests.harness.processes.sessions import GENERATED_CODE, small_session

ROWS = 20


def main() -> int:
    archive = class_archive()
    archive.unlink(missing_ok=True)
    writing = archive.with_suffix(f".{os.getpid()}")
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ["JDK_JAVA_OPTIONS"] = SHORT_LIVED
    try:
        with tempfile.TemporaryDirectory(prefix="jmsq-classes-") as directory:
            code = _run(Path(directory), f"-XX:ArchiveClassesAtExit={writing} -Xlog:disable")
        if code != 0 or not writing.is_file():
            print(f"Java ended with {code} and wrote no archive of classes", file=sys.stderr)
            return 1
        writing.rename(archive)
    finally:
        writing.unlink(missing_ok=True)
    return 0


def _run(path: Path, java_options: str) -> int:
    """The exit code of the JVM, which writes the archive when it ends."""
    domain = make_queue(path / "domain")
    send_numbers(domain, range(ROWS))
    print("step: a session")
    spark = small_session("class archive", path, {"spark.driver.extraJavaOptions": java_options, **GENERATED_CODE})
    print("step: receive into a Delta table")
    stream = consumer(path / "domain", path / "output", path / "checkpoint", ROWS)
    query = (
        spark.readStream.format(stream["from"])
        .options(**stream["options"])
        .load()
        .selectExpr(*stream["select"])
        .writeStream.format(stream["to"])
        .options(**stream["sinkOptions"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("step: send and browse")
    options = {"root": str(path / "domain"), "destination": QUEUE}
    received = spark.read.format("delta").load(str(path / "output"))
    received.selectExpr("cast(n AS string) AS text").write.format("jmsq").options(**options).mode("append").save()
    assert received.count() == spark.read.format("jmsq").options(**options).load().count() == ROWS
    print("step: end the session")
    gateway = SparkContext._gateway
    assert gateway is not None
    process: subprocess.Popen[bytes] = gateway.proc
    spark.stop()
    gateway.shutdown()
    assert process.stdin is not None
    process.stdin.close()
    print("step: write the archive")
    return process.wait(300)


if __name__ == "__main__":
    sys.exit(main())
