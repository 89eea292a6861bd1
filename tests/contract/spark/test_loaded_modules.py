"""What Spark's Python processes load for a plain queue (C1, C5): each module costs every query's start CPU time.

A module that is new here makes each start slower: put it into the list if every query needs it, else import it where it is used.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import spark_jms

# Of the process of a task that reads: all that is ours. Nothing that plans, declares, stores or opens a domain.
READING = [
    "spark_jms",
    "spark_jms.claims",
    "spark_jms.claims.messages",
    "spark_jms.claims.messages.fetch",
    "spark_jms.core",
    "spark_jms.core.messages",
    "spark_jms.core.messages.arrays",
    "spark_jms.core.messages.carried",
    "spark_jms.core.messages.columns",
    "spark_jms.core.messages.compression",
    "spark_jms.core.messages.message_bytes",
    "spark_jms.core.messages.properties",
    "spark_jms.core.messages.ranges",
    "spark_jms.core.messages.types",
    "spark_jms.core.ordering",
    "spark_jms.core.ordering.sort_order",
    "spark_jms.core.ordering.units_of_work",
    "spark_jms.core.transactions",
    "spark_jms.core.transactions.transfer",
    "spark_jms.errors",
    "spark_jms.log",
    "spark_jms.log.messages",
    "spark_jms.log.messages.data_files",
    "spark_jms.log.tables",
    "spark_jms.log.tables.files",
    "spark_jms.log.tables.object_store",
    "spark_jms.log.tables.storage",
    "spark_jms.settings",
    "spark_jms.settings.destination",
    "spark_jms.settings.fields",
    "spark_jms.settings.quota",
    "spark_jms.settings.table",
    "spark_jms.settings.types",
    "spark_jms.spark",
    "spark_jms.spark.tasks",
]
# Of the process of a source: the rooms, with how many modules of each.
PLANNING = {
    "spark_jms": 1,
    "spark_jms.claims.batches": 6,
    "spark_jms.claims.consumers": 6,
    "spark_jms.claims.failures": 3,
    "spark_jms.claims.messages": 3,
    "spark_jms.claims.records": 4,
    "spark_jms.claims.servers": 3,
    "spark_jms.claims.transactions": 3,
    "spark_jms.claims.upkeep": 5,
    "spark_jms.core.destinations": 5,
    "spark_jms.core.limits": 2,
    "spark_jms.core.messages": 9,
    "spark_jms.core.ordering": 4,
    "spark_jms.core.records": 12,
    "spark_jms.core.transactions": 3,
    "spark_jms.log.destinations": 7,
    "spark_jms.log.limits": 3,
    "spark_jms.log.messages": 2,
    "spark_jms.log.sending": 3,
    "spark_jms.log.tables": 7,
    "spark_jms.log.upkeep": 6,
    "spark_jms.settings": 9,
    "spark_jms.spark": 4,
    "spark_jms.store": 4,
    "spark_jms.store.file": 6,
    "spark_jms.store.kinds": 2,
    "spark_jms.store.ledger": 9,
}
# Nothing of ours may bring these into a process of Spark.
NEVER = ("pandas", "obstore", "lark", "msgspec", "sqlalchemy", "rich", "click", "yaml", "spark_jms.core.selector")

LOADED = "import json, sys; print(json.dumps(sorted(sys.modules)))"
SOURCE = """
import pickle, sys
import pyspark.sql.streaming.python_streaming_source_runner
import pyspark_jmsq
from pyspark.cloudpickle import dumps
from spark_jms.settings.types import Use
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
source = JmsqStreamReader(parse_options({"root": sys.argv[1], "destination": "orders"}, Use.READ_STREAM))
limit, start = source.getDefaultReadLimit(), source.initialOffset()
assert source.latestOffset(start, limit) == start
end = source.latestOffset(start, limit)
with open(sys.argv[2], "wb") as file:
    file.write(dumps((source, list(source.partitions(start, end)))))
assert source.latestOffset(end, limit) == end
source.reportLatestOffset()
source.stop()
"""
TASK = """
import pickle, sys
import pyspark.worker, pyspark.sql.worker.plan_data_source_read
with open(sys.argv[2], "rb") as file:
    reader, partitions = pickle.load(file)
assert sum(batch.num_rows for one in partitions for batch in reader.read(one)) == 12
"""


def loaded(program: str, *arguments: str) -> set[str]:
    command = [sys.executable, "-c", f"{program}\n{LOADED}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def source_and_task(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """The modules of both processes after a batch of all columns, of messages from several small files."""
    directory: Path = tmp_path_factory.mktemp("loaded")
    root, planned = str(directory / "domain"), str(directory / "planned")
    spark_jms.apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 4}}})
    with spark_jms.connect(root, housekeeping=False) as context:
        producer = context.producer("orders")
        for number in range(12):
            producer.send(text=str(number), properties={"number": number})
    return loaded(SOURCE, root, planned), loaded(TASK, root, planned)


def ours(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.split(".")[0] == "spark_jms")


def test_process_of_a_task_loads_what_reads(source_and_task: tuple[set[str], set[str]]) -> None:
    """C5: and no module of the planning, whose reader it was sent by."""
    assert ours(source_and_task[1]) == sorted(READING)


def test_process_of_a_source_loads_what_plans_a_plain_queue(source_and_task: tuple[set[str], set[str]]) -> None:
    """C1: as many modules of each room as listed, and of no other room."""
    names = ours(source_and_task[0])
    packages = {name.rpartition(".")[0] for name in names}
    counts: dict[str, int] = {}
    for name in names:
        if name not in packages:
            room = name.rpartition(".")[0]
            counts[room] = counts.get(room, 0) + 1
    assert counts == PLANNING


@pytest.mark.parametrize("process", ["source", "task"])
def test_processes_of_spark_load_no_pandas(source_and_task: tuple[set[str], set[str]], process: str) -> None:
    """C1, C5: 0.2 to 0.36 s of CPU time in each process, which pyarrow spends where it converts a Python value."""
    assert sorted(source_and_task[process == "task"] & set(NEVER)) == []
