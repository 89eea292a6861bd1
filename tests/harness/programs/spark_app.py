"""A Spark application under test. It runs the streams of its configuration, and reports and restarts a failed query.

    python spark_app.py CONFIG.json

It writes events.jsonl, and reacts to the files `stop` and `restart-NAME` in its directory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.harness.processes.sessions import small_session

POLL_S = 0.05


class Application:
    def __init__(self, config: dict[str, Any]) -> None:
        self.directory = Path(config["directory"])
        self.config = config
        conf = {
            "spark.driver.memory": "640m",
            "spark.python.authenticate.socketTimeout": "60s",  # for a busy machine
            # A disk without checksum files, like HDFS and S3: with them each file of a checkpoint or a table takes twice as
            # many calls of the programs chmod and readlink.
            "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
            "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        }
        self.spark = small_session(config["name"], self.directory, conf)
        self.queries: dict[str, Any] = {}

    def event(self, what: str, query: str = "", error: str = "") -> None:
        line = json.dumps({"at": time.time(), "event": what, "query": query, "error": error, "pid": os.getpid()})
        with open(self.directory / "events.jsonl", "a") as file:
            file.write(line + "\n")

    def start(self, name: str) -> None:
        stream = self.config["streams"][name]
        reader = self.spark.readStream.format(stream["from"])
        for key, value in stream["options"].items():
            reader = reader.option(key, value)
        schema = stream.get("schema")
        frame = (reader.schema(schema) if schema else reader).load()
        writer = frame.selectExpr(*stream["select"]).writeStream.format(stream["to"]).queryName(name)
        for key, value in stream["sinkOptions"].items():
            writer = writer.option(key, value)
        self.queries[name] = writer.trigger(processingTime=stream.get("trigger", "0 seconds")).start()
        self.event("started", name)

    def run(self) -> None:
        for name in self.config["streams"]:
            self.start(name)
        parent = os.getppid()
        while not (self.directory / "stop").exists() and os.getppid() == parent:  # it must not outlive the test
            for name, query in list(self.queries.items()):
                self.supervise(name, query)
            time.sleep(POLL_S)
        for name, query in self.queries.items():
            query.stop()
            self.event("stopped", name)
        self.spark.stop()
        self.event("ended")

    def supervise(self, name: str, query: Any) -> None:
        request = self.directory / f"restart-{name}"
        if request.exists():
            query.stop()
            self.start(name)
            request.unlink()
        elif not query.isActive:
            self.event("failed", name, str(query.exception()))
            if self.config.get("restart", True):
                self.start(name)
            else:
                del self.queries[name]


if __name__ == "__main__":
    os.environ["JMSQ_APP_PID"] = str(os.getpid())
    Application(json.loads(Path(sys.argv[1]).read_text())).run()
