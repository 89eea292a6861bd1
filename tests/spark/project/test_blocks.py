"""The code blocks of the documentation that need Spark run in one session, each in a new domain.

They stand as on the page, but for the root: Spark's processes have their directory from the session's start, so `messages` is
written as a path.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import spark_jms
from tests.harness.project import PROJECT
from tests.harness.users.page_blocks import runnable
from tests.harness.users.pages import Block, block, prints_what_is_promised

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FEED = block("docs/CHANGES.md", "python", "changes = (").text
CATALOG = "spark.sql.catalog.spark_catalog"
DELTA = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
TABLE = "CREATE TABLE t USING jmsq OPTIONS (root 'messages', destination 'orders')"
FRAME = 'frame = spark.createDataFrame([("a",), ("b",)], "text string")\n'
# What the page or the reader has before a block: Python.
BEFORE: Mapping[tuple[str, str], str] = {
    ("docs/CHANGES.md", "by_minute ="): FEED,
    ("docs/SPARK.md", 'frame.writeTo("t")'): f'spark.sql("{TABLE}")\n{FRAME}'
    'stream = spark.readStream.format("jmsq").option("root", "messages").option("destination", "invoices").load()\n'
    'stream = stream.select("text")\n',
    ("docs/SPARK.md", "MERGE INTO accounts"): f'spark.sql("{TABLE}")\n'
    f'spark.conf.set("{CATALOG}", "{DELTA}")\n'
    'spark.sql("CREATE TABLE accounts (text STRING) USING delta")\n',
    ("docs/SPARK.md", "import fresh"): 'frame = spark_jms.browse(spark, "messages", "orders")\n'
    'frame.createOrReplaceTempView("backlog")\n',
    ("docs/SPARK.md", "ThreadPoolExecutor"): FRAME + "frames = [frame, frame]\n"
    "def send(frame):\n"
    '    frame.write.format("jmsq").option("root", "messages").option("destination", "orders").mode("append").save()\n',
}
# What holds after a block: Python.
AFTER: Mapping[tuple[str, str], str] = {
    ("docs/CHANGES.md", "changes = ("): "assert changes.isStreaming\n",
    ("docs/CHANGES.md", "by_minute ="): "assert by_minute.isStreaming\n",
    ("docs/OPTIONS.md", "def read("): "assert both.isStreaming\n",
    ("docs/MESSAGES.md", "onPoison"): "assert stream.isStreaming\n",
    ("docs/SPARK.md", 'frame.writeTo("t")'): 'assert spark_jms.browse(spark, "messages", "orders").count() == 3\n',
    (
        "docs/SPARK.md",
        "MERGE INTO accounts",
    ): 'assert [row.text for row in spark.table("accounts").collect()] == ["hello"]\n',
    ("docs/SPARK.md", "ThreadPoolExecutor"): 'assert spark_jms.browse(spark, "messages", "orders").count() == 5\n',
}
PROMOTED = block("docs/MESSAGES.md", "yaml", "promotedProperties").text
PYTHON = list(runnable("python", with_spark=True))
SQL = list(runnable("sql", with_spark=True))


@pytest.fixture
def root(tmp_path: Path) -> str:
    root = tmp_path / "messages"
    spark_jms.apply(root, PROJECT / "conf" / "jms-module.yaml")
    with spark_jms.connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="hello", properties={"color": "red", "amount": 120.0})
    return str(root)


@pytest.fixture
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SparkSession]:
    """Of the same application, with views and settings of its own; Spark's own class of catalog is set."""
    monkeypatch.chdir(tmp_path)
    session = spark.newSession()
    session.conf.set(CATALOG, "builtin")
    yield session
    for query in session.streams.active:
        query.stop()
    for table in ("t", "accounts"):
        session.sql(f"DROP TABLE IF EXISTS {table}")


def part(block: Block, table: Mapping[tuple[str, str], str]) -> str:
    return "".join(code for (page, text), code in table.items() if page == block.page and text in block.text)


def at(root: str, code: str) -> str:
    """With the root as a path, wherever the code names it; checkpoints beside it."""
    code = re.sub(r"""((?:\broot"?,?(?: =)? |spark, )["'])messages(?=["'])""", rf"\g<1>{root}", code)
    return code.replace("`messages/", f"`{root}/").replace('checkpointLocation="ck"', f'checkpointLocation="{root}-ck"')


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python(block: Block, root: str, session: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """C1, M4, M12, R14"""
    names: dict[str, Any] = {"__name__": "__main__", "spark": session, "spark_jms": spark_jms}
    exec(at(root, part(block, BEFORE)), names)
    capsys.readouterr()
    exec(at(root, block.text), names)
    printed = capsys.readouterr().out
    exec(at(root, part(block, AFTER)), names)
    assert prints_what_is_promised(printed, block.prints or ""), printed


@pytest.mark.parametrize("block", SQL, ids=str)
def test_sql(block: Block, root: str, session: SparkSession) -> None:
    """C1, M3, T6: each statement is answered."""
    if "delta.`" in block.text:  # a destination as a Delta table, declared as above on the page
        session.conf.set(CATALOG, DELTA)
        shutil.rmtree(root)
        spark_jms.apply(root, yaml.safe_load(PROMOTED))
    for statement in filter(str.strip, block.text.split(";")):
        session.sql(at(root, statement)).collect()
