"""Questions about a backlog, answered by SQL: first through format("jmsq"), then by plain Delta readers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BY_CARRIER = """
    SELECT {carrier} AS carrier, count(*) AS waiting FROM {table}
    GROUP BY 1 ORDER BY waiting DESC, carrier LIMIT 5"""
SPARK_QUESTIONS = (
    ("Which carriers wait most?", _BY_CARRIER.format(carrier="properties['carrier']", table="backlog")),
    (
        "How deep is each member, and how long has its oldest message waited?",
        """
    SELECT member, count(*) AS waiting, min(sequence) AS next, max(sequence) AS last,
           date_format(timestamp_millis(min(JMSTimestamp)), 'HH:mm:ss') AS oldest_sent_utc
    FROM backlog GROUP BY member ORDER BY member""",
    ),
    (
        "Where in the queue is the latest departure so far?",
        """
    WITH one AS (SELECT member, sequence, JMSXGroupID, cast(properties['dep_delay'] AS int) AS delay FROM backlog
                 ORDER BY delay DESC NULLS LAST, member, sequence LIMIT 1)
    SELECT one.member, one.sequence, one.delay AS minutes_late, one.JMSXGroupID AS aircraft,
           (SELECT count(*) FROM backlog b, one WHERE b.member = one.member AND b.sequence < one.sequence) AS before_it
    FROM one""",
    ),
)


@dataclass(frozen=True)
class QueryAnswer:
    question: str
    columns: list[str]
    rows: list[tuple[Any, ...]]


def by_spark(spark: SparkSession, root: Path) -> list[QueryAnswer]:
    """Browsing by SQL consumes nothing."""
    browsed = spark.read.format("jmsq").option("root", str(root)).option("destination", "flights")
    aircraft = (
        browsed.option("columns", "JMSXGroupID")
        .load()
        .groupBy("JMSXGroupID")
        .count()
        .orderBy("count", "JMSXGroupID", ascending=False)
    )
    top = aircraft.where("JMSXGroupID is not null").limit(3).toDF("aircraft", "waiting")
    spark.sql(f"""
        CREATE OR REPLACE TEMPORARY VIEW backlog USING jmsq
        OPTIONS (root '{root}', destination 'flights',
                 columns 'member,sequence,JMSTimestamp,JMSXGroupID,properties')""")
    out = [_answer("Which aircraft (units of order) wait most?", top)]
    return out + [_answer(question, spark.sql(sql)) for question, sql in SPARK_QUESTIONS]


def _answer(question: str, frame: Any) -> QueryAnswer:
    return QueryAnswer(question, frame.columns, [tuple(row) for row in frame.collect()])


def by_delta_readers(root: Path) -> list[QueryAnswer]:
    """The destination is a plain Delta table: delta-rs reads it and DuckDB queries it, without Spark or spark-jms."""
    import duckdb
    from deltalake import DeltaTable

    table = DeltaTable(str(root / "flights"))
    messages = table.to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.register("messages", messages)
    out = []
    for question, sql in (
        (
            "The same with DuckDB over delta-rs: which carriers wait most?",
            _BY_CARRIER.format(carrier="properties['carrier']", table="messages"),
        ),
        (
            f"Version {table.version()} of the table: sequence = first_sequence + ordinal",
            """
         SELECT member, count(*) AS messages, min(first_sequence + ordinal) AS first, max(first_sequence + ordinal) AS last
         FROM messages GROUP BY member ORDER BY member""",
        ),
    ):
        found = connection.execute(sql)
        out.append(QueryAnswer(question, [column[0] for column in found.description or []], found.fetchall()))
    connection.close()
    return out
