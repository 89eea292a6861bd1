"""The Spark side of the demo: four streaming queries, a few lines each; and questions about a backlog, answered by SQL, through
`format("jmsq")` and by plain Delta readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jms.demo.flights import FLIGHT_COLUMNS, FLIGHT_SCHEMA
from spark_jms.setup.session import short_lived_options, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


MESSAGE_COLUMNS = (
    "member",
    "sequence",
    "JMSMessageID",
    "JMSRedelivered",
    "JMSXDeliveryCount",
    "JMSXGroupID",
    "JMSXGroupSeq",
)
READ_COLUMNS = ",".join([*MESSAGE_COLUMNS, "text"])
SUBSCRIPTIONS = {"ops": "dep_delay > 60", "statistics": None}  # of the topic: selectors
PROPERTIES = ("carrier", "origin", "dest", "distance", "dep_delay")


def session(app_name: str, warehouse: Path, master: str) -> SparkSession:
    """A small session: two of them share the machine for a minute, so extensive JIT compilation and verifying the bytecode of
    Spark's classes do not pay, nor do Delta's statistics and checkpoints of tables with a few commits."""
    java_options = f"-Dderby.system.home={warehouse} {short_lived_options()}"
    found = spark_session(
        app_name,
        master,
        conf={
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.driver.extraJavaOptions": java_options,
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.databricks.delta.stats.collect": "false",
            "spark.databricks.delta.properties.defaults.checkpointInterval": "1000",
        },
    )
    found.sparkContext.setLogLevel("ERROR")
    return found


def as_messages(flights: DataFrame) -> DataFrame:
    """A flight as a message: JSON text, typed properties to select by, and the aircraft as the unit of order."""
    from pyspark.sql import functions as f

    return flights.select(
        f.to_json(f.struct(*FLIGHT_COLUMNS)).alias("text"),
        f.struct(*PROPERTIES).alias("properties"),
        f.col("tailnum").alias("JMSXGroupID"),
        f.col("leg").alias("JMSXGroupSeq"),
    )


def as_flights(messages: DataFrame) -> DataFrame:
    """A message as a flight again, with the queue's columns."""
    from pyspark.sql import functions as f

    parsed = messages.select(*MESSAGE_COLUMNS, f.from_json("text", FLIGHT_SCHEMA).alias("flight"))
    return parsed.select(*MESSAGE_COLUMNS, "flight.*")


def send_feed(
    spark: SparkSession,
    feed: Path,
    root: Path,
    destination: str,
    checkpoint: Path,
    where: str = "true",
    files_per_trigger: int = 1,
) -> StreamingQuery:
    """Files -> messages: the files now in the directory, in micro-batches that keep their order."""
    schema = f"{FLIGHT_SCHEMA}, leg int"
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_trigger).parquet(str(feed))
    writer = as_messages(files.where(where)).writeStream.format("jmsq").queryName(f"feed-{destination}")
    writer = writer.option("root", str(root)).option("destination", destination)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def receive(
    spark: SparkSession,
    root: Path,
    destination: str,
    output: Path,
    checkpoint: Path,
    name: str,
    available_now: bool = False,
    **options: Any,
) -> StreamingQuery:
    """Messages -> a Delta table: Delta's sink takes each micro-batch once, however often it is repeated."""
    reader = spark.readStream.format("jmsq").option("root", str(root)).option("destination", destination)
    messages = reader.option("columns", READ_COLUMNS).options(**options).load()
    writer = as_flights(messages).writeStream.format("delta").queryName(name).outputMode("append")
    writer = writer.option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(availableNow=True) if available_now else writer
    return writer.start(str(output))


def receive_flights(spark: SparkSession, work: Path, name: str, batch: int) -> StreamingQuery:
    """The query of the receiver `name`: from the queue into its table, `batch` messages at most in a micro-batch."""
    checkpoint, output = work / "checkpoints" / name, work / "received" / name
    return receive(spark, work / "domain", "flights", output, checkpoint, name, maxMessagesPerTrigger=batch)


def receive_subscription(spark: SparkSession, work: Path, name: str) -> StreamingQuery:
    """The query that receives the messages which wait for the durable subscription `name` now."""
    output, checkpoint = work / "received" / name, work / "checkpoints" / name
    options = {"subscription": name} | ({"selector": selector} if (selector := SUBSCRIPTIONS[name]) else {})
    return receive(spark, work / "domain", "delays", output, checkpoint, name, available_now=True, **options)


def create_output(spark: SparkSession, work: Path, name: str) -> None:
    """Create the receiver's empty table if it does not exist: a new session's first Delta write takes seconds."""
    from spark_jms.core.messages.columns import spark_schema

    schema = f"{spark_schema(MESSAGE_COLUMNS)}, {FLIGHT_SCHEMA}"
    spark.createDataFrame([], schema).write.format("delta").mode("ignore").save(str(work / "received" / name))


# -- questions about a backlog -----------------------------------------------------------------------------------------

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
