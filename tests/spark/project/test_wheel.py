"""The wheel with the extra `spark` in an empty environment, as a user without this tree installs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_jms.setup import find_java
from tests.harness.users.installation import Installation, installation, must

DECOYS = ("store", "conf", "core", "client", "log", "records")  # names a user's own modules may have
MODULE_FILE = """
destinations:
  orders: {kind: distributed-queue, members: 2}
"""
# Neither spark_session nor register: only Spark and the installed package.
SEND_AND_BROWSE = """
import sys
from pathlib import Path
import spark_jms
from pyspark.sql import SparkSession

root = sys.argv[1]
assert Path(spark_jms.__file__).is_relative_to(sys.prefix), spark_jms.__file__
spark = (
    SparkSession.builder.master("local[2]").appName("wheel")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
sent = spark.range(100).selectExpr("concat('order ', id) AS text")
sent.write.format("jmsq").option("root", root).option("destination", "orders").mode("append").save()
messages = spark.read.format("jmsq").option("root", root).option("destination", "orders").load().collect()
assert sorted(m.text for m in messages) == sorted(f"order {n}" for n in range(100)), len(messages)
assert len({m.JMSMessageID for m in messages}) == 100
places = sorted((m.member, m.sequence) for m in messages)
counts = {member: sum(1 for m, _ in places if m == member) for member, _ in places}
assert len(counts) == 2, counts
assert places == [(m, n) for m in sorted(counts) for n in range(1, counts[m] + 1)], "sequences are not dense"
spark.stop()
print("BROWSED", len(messages))
"""

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def installed() -> Installation:
    """PYSPARK_PYTHON is its Python: Spark's workers would run the `python3` of the PATH."""
    made = installation("spark", {"JAVA_HOME": str(find_java().home)})
    return Installation(made.venv, {**made.variables, "PYSPARK_PYTHON": str(made.python)})


def test_installed_dependencies_are_consistent(installed: Installation) -> None:
    installed.pip("check")


def test_spark_finds_the_format_and_messages_round_trip(installed: Installation, tmp_path: Path) -> None:
    """C1: also beside a user's own store.py and the like: neither breaks the other."""
    (tmp_path / "module.yaml").write_text(MODULE_FILE, encoding="utf-8")
    must(installed.run("jmsq", "apply", "--root", "domain", "module.yaml", cwd=tmp_path))
    for name in DECOYS:
        (tmp_path / f"{name}.py").write_text("raise ImportError(__file__)", encoding="utf-8")
    assert "BROWSED 100" in must(installed.run("python", "-c", SEND_AND_BROWSE, "domain", cwd=tmp_path))
    assert json.loads(must(installed.run("jmsq", "stat", "--root", "domain", "--json", cwd=tmp_path)))
