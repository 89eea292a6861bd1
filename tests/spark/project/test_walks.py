"""The first hour of a data engineer who knows Spark and Kafka, by the README."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms.setup import find_java
from tests.harness.users.installation import Installation, installation
from tests.harness.users.pages import block, lines, promised
from tests.harness.users.walks import FIRST_MESSAGES, FIVE_ROWS, Walk

README = "README.md"

pytestmark = pytest.mark.timeout(1200)


def test_kafka_engineer_gets_a_first_spark_result(tmp_path: Path) -> None:
    """C1: from the clone to messages in a streaming query, with the extra `spark`."""
    made = installation("spark")
    java = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": str(made.python)}
    walk = Walk.start("Kafka engineer", Installation(made.venv, java), tmp_path)
    assert lines(walk.shell(block(README, "bash", "export JMSQ_ROOT").text)) == promised(FIRST_MESSAGES)
    walk.reached("first message")
    printed = walk.run("python", "-c", block(README, "python", "readStream").text)
    assert lines(printed) == promised(FIVE_ROWS)
    walk.reached("first Spark result")
