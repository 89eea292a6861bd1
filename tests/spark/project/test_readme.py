"""Every code block of the README runs literally, in reading order, in a fresh directory that has what a clone has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_jms.setup import find_java
from tests.harness.project import PROJECT
from tests.harness.users.pages import block, lines, promised, says_it_prints
from tests.harness.users.walks import FIRST_MESSAGES, FIVE_ROWS

README = (PROJECT / "README.md").read_text(encoding="utf-8")
NEEDS_A_CLONE = ("pip install",)  # .ci/run and test_wheel.py run these
SHIPPED = ("conf", "examples", ".gitignore")
# As a README's reader meets them: a statement is a spark.sql in the session of the block before.
SQL = """
for statement in {statements!r}:
    print([tuple(row) for row in spark.sql(statement).collect()])
"""
RECEIVED = """
received = spark.read.parquet("messages-received")
print(received.count(), received.select("JMSMessageID").distinct().count())
"""

pytestmark = pytest.mark.timeout(450)  # an application that starts beside others takes its time


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int

    @property
    def uses_spark(self) -> bool:
        return "pyspark" in self.text or self.language == "sql"

    @property
    def runs_examples(self) -> bool:
        return "examples/" in self.text


BLOCKS = [
    Block(found[1], found[2], README[: found.start()].count("\n") + 1)
    for found in re.finditer(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
]
SHELL = [block for block in BLOCKS if block.language == "bash" and not any(w in block.text for w in NEEDS_A_CLONE)]
FIRST, EXAMPLES = SHELL
PLAIN, SPARK = (block for block in BLOCKS if block.language == "python")


@dataclass(frozen=True)
class Fresh:
    """A directory with what a clone has, and the shell of a reader who has activated his environment there."""

    path: Path

    def run(self, *command: str) -> str:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JMSQ_", "SPARK_", "PYSPARK_", "RS_"))}
        done = subprocess.run(
            command,
            cwd=self.path,
            env={
                **kept,
                "PATH": f"{Path(sys.executable).parent}:{find_java().home}/bin:{os.environ['PATH']}",
                "PYTHONPATH": str(PROJECT),  # the package under test; a reader has installed it
                "JAVA_HOME": str(find_java().home),
                "PYSPARK_PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        return done.stdout

    def shell(self, block: Block) -> str:
        return self.run("bash", "-euc", block.text)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fresh]:
    path = tmp_path_factory.mktemp("readme")
    for name in SHIPPED:
        source = PROJECT / name
        shutil.copytree(source, path / name) if source.is_dir() else shutil.copy(source, path / name)
    yield Fresh(path)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def messages(fresh: Fresh) -> str:
    """The output of the first block of commands, which makes the domain `messages`."""
    return fresh.shell(FIRST)


def test_every_block_is_run() -> None:
    """A new block needs a place here."""
    assert {block.language for block in BLOCKS} == {"bash", "python", "sql", "mermaid"}
    skipped = [block for block in BLOCKS if block.language == "bash" and block not in SHELL]
    assert len(skipped) == len(NEEDS_A_CLONE)
    assert "make demo" in README
    assert "make test" in README


def test_commands(messages: str) -> None:
    """C14"""
    assert lines(messages) == promised(FIRST_MESSAGES)


def test_python(fresh: Fresh, messages: str) -> None:
    """C11"""
    assert fresh.run("python", "-c", PLAIN.text) == "1 hello\n"


def test_spark_and_sql(fresh: Fresh, messages: str) -> None:
    """C1: one fresh application with nothing but the package; and the tables of SPARK, which takes the message that INSERT sent."""
    program = SPARK.text + RECEIVED
    for sql in (
        *(one.text for one in BLOCKS if one.language == "sql"),
        block("docs/SPARK.md", "sql", "CREATE TABLE t").text,
    ):
        program += SQL.format(statements=[s.strip() for s in sql.split(";") if s.strip()])
    printed = fresh.run("python", "-c", program)
    # The stream has taken the 1,000 messages of the commands and its own; of six statements two find SQL's message.
    statements = ["[]", "[]", "[('red', 1)]", "[]", "[(…, 'hello')]", "[]"]
    assert lines(printed) == promised("\n".join([FIVE_ROWS, "2000 2000", *statements]))


def test_examples(fresh: Fresh) -> None:
    """C1, C7: as a script and by spark-submit. Of 1,000 messages the selector takes every third with an amount above 100."""
    assert lines(fresh.shell(EXAMPLES)) == says_it_prints(PROJECT / "examples" / "spark_send_receive.py") * 2


def test_git_ignores_what_the_blocks_make(fresh: Fresh, messages: str) -> None:
    """The reader's `git status` stays clean: everything that the tests above left is ignored."""
    fresh.run("git", "init", "-q")
    fresh.run("git", "add", *SHIPPED)
    status = fresh.run("git", "status", "--porcelain").splitlines()
    assert [line for line in status if not line.startswith("A ")] == []
