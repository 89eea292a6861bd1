"""Every code block of the documentation: how it is run, and which one is not, with the reason.

A block runs as it stands, in a directory of its own, in which `messages` is the domain of the README (conf/jms-module.yaml), and with
names of its own. A block of text below one is what it prints; a block without one prints nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from tests.harness.project import PROJECT
from tests.harness.users.pages import Block, blocks

PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (PROJECT / "docs").glob("*.md")))
RUN = ("python", "bash", "yaml", "sql")
# Drawn, and checked by the builder of the site and by the tests of the tables that they are drawn from.
DRAWN = ("mermaid",)

# (page, text in the block; "" is all of a page in a language that is run) -> the test that runs it literally
ELSEWHERE: Mapping[tuple[str, str], str] = {
    ("README.md", ""): "tests/spark/project/test_readme.py",
    ("docs/OPERATING.md", "jmsq list"): "tests/process/project/test_walks.py",
    ("docs/OPERATING.md", "jmsq purge orders --dry-run"): "tests/process/project/test_walks.py",
    ("docs/OPERATING.md", "jmsq housekeep --once"): "tests/process/project/test_walks.py",
    ("docs/OPERATING.md", "jmsq backup backups/monday"): "tests/process/project/test_walks.py",
    ("docs/PIPELINES.md", "dp.create_sink("): "tests/spark/project/test_pipeline.py",
    ("docs/PIPELINES.md", "spark-pipelines run"): "tests/spark/project/test_pipeline.py",
    ("docs/MONITORING.md", "alert: JmsqDomainDown"): "tests/unit/metrics/test_metrics.py",
    ("docs/MESSAGES.md", 'expired = changes.where("kind'): "tests/spark/jobs/test_expired_counts.py",
    ("docs/CHANGES.md", "waited = sent.join("): "tests/spark/jobs/test_recipes.py",
    ("docs/CHANGES.md", 'queryName("dead_letters")'): "tests/spark/jobs/test_recipes.py",
    ("docs/CHANGES.md", "foreachBatch(look)"): "tests/spark/jobs/test_recipes.py",
}

# (page, text in the block) -> why no test runs it
NOT_RUN: Mapping[tuple[str, str], str] = {
    (
        "docs/PIPELINES.md",
        '\n\n\n@dp.table(format="parquet", table_properties={"pipelines.reset.allowed": "false"})\n'
        "def received():\n    return spark",
    ): "the first table of the pipeline below it, which runs",
    ("docs/CONNECT.md", ".remote("): "needs a server of Spark Connect on a fixed port: test_connect.py has one",
    (
        "docs/WEBHDFS.md",
        "frame.writeStream",
    ): "needs the jars of Delta: test_replicated_checkpoint.py runs such queries",
    (
        "docs/SPARK.md",
        "python examples/spark_join.py",
    ): "test_examples.py runs all programs, in the session of the tests",
    ("docs/CONTRIBUTING.md", ""): "runs the tests and benchmarks themselves",
    ("docs/MONITORING.md", "scrape_configs:"): "a file of Prometheus",
    (
        "docs/REPLICATED-STORE.md",
        "jmsq store up --daemons 3\n",
    ): "takes fixed ports and 3 GB of memory, where others may run",
    ("docs/REPLICATED-STORE.md", "3 daemons run"): "what that command prints",
    ("docs/REPLICATED-STORE.md", "[Unit]"): "a file of systemd",
    ("docs/SCALING.md", "FROM spark:"): "a file of Docker",
    ("docs/SCALING.md", "spark.kubernetes"): "settings of Kubernetes",
    ("docs/WEBHDFS.md", "spark.hadoop.dfs.nameservices"): "settings of Hadoop: test_replicated_checkpoint.py uses them",
    ("docs/WEBHDFS.md", "retry.policy"): "settings of Hadoop",
    ("docs/WEBHDFS.md", "oauth2"): "settings of Hadoop",
    ("docs/MESSAGES.md", "<ExpiredJMSMessage"): "an entry of a log, which test_expiration_log.py compares",
    ("docs/CLIENT.md", "1 red, unit u"): "a drawing of a backlog",
    ("docs/CONNECT.md", "spark_jms.errors.OptionError"): "a line of a server's log",
    ("docs/OPERATING.md", "_jmsq/domain.json"): "a list of files",
    ("docs/UPGRADE.md", "ROOT/_jmsq/domain.json"): "a list of files",
    ("docs/REPLICATED-STORE-REFERENCE.md", "#address"): "a file of the region cluster",
    ("docs/REPLICATED-STORE.md", "waits for memory"): "a line of a daemon's log",
}

# Text in a command of a block of shell -> why no test runs it. The other commands of the block are run.
COMMANDS_NOT_RUN: Mapping[str, str] = {
    "pip install": "installs packages",
    "jmsq metrics --host": "runs until it is ended",
    "jmsq services orders --only": "runs until it is ended",
    "spark-submit": "runs until it is ended, or on a cluster",
    "--archives environment.tar.gz": "on a cluster",
    "make demo": "on a cluster",
    "hadoop fs": "needs Hadoop",
    "python -m spark_jms.store.webhdfs": "runs until it is ended",
    "drain_orders.py": "a program of the reader's",
    "db.example": "a database of the reader's",
    "migrate OLD NEW": "stores of the reader's",
    "migrate --salvage OLD NEW": "a damaged store of the reader's",
    "jmsq store daemon": "on the hosts of a cluster",
    "jmsq store down": "ends the cluster of the other commands",
    "jmsq store migrate": "of a store in that cluster, with a backup outside of the directory",
    "storeadmin top": "runs until it is ended",
    "storeadmin rmr": "of regions that are lost: test_commands.py removes some",
}
COMMANDS_NOT_RUN_ALONE = {
    "jmsq services": "runs until it is ended",
    "jmsq metrics": "runs until it is ended",
    "jmsq forward": "runs until it is ended",
    "storeadmin": "asks for commands",
}


_SPARK = re.compile(r"(?<![.\w])(spark|frame|changes)[.,]")


def entry(block: Block, table: Mapping[tuple[str, str], str]) -> tuple[str, str] | None:
    """Of the table for this block."""
    for page, text in table:
        if page == block.page and (text in block.text if text else block.language in RUN):
            return page, text
    return None


@lru_cache
def all_blocks() -> tuple[Block, ...]:
    return tuple(block for page in PAGES for block in blocks(page))


def uses_spark(block: Block) -> bool:
    return block.language == "sql" or (block.language == "python" and _SPARK.search(block.text) is not None)


def runnable(*languages: str, with_spark: bool = False) -> Iterator[Block]:
    """The blocks that the tests of blocks run."""
    for block in all_blocks():
        listed = entry(block, ELSEWHERE) or entry(block, NOT_RUN)
        if block.language in languages and uses_spark(block) == with_spark and listed is None:
            yield block


def commands(block: Block) -> list[str]:
    """Those that are run."""
    found = [command for command in block.commands if command not in COMMANDS_NOT_RUN_ALONE]
    return [command for command in found if not any(text in command for text in COMMANDS_NOT_RUN)]
