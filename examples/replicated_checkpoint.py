"""A replicated store on this machine: objects from Python, then a Spark query with its checkpoint in the store, which continues
when a daemon is killed.

python examples/replicated_checkpoint.py        with temporary daemons

It prints

    1000 objects in two memories, … physical writes
    read back: b'object 999'
    counted: {'blue': 1, 'red': 2}
    daemon …, which served the checkpoint, is killed
    counted: {'blue': 1, 'green': 1, 'red': 3}
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_jms.store.regions.admin import Admin
from spark_jms.store.regions.admin.cluster import Cluster, free_ports
from spark_jms.store.regions.client.instance import StoreInstance

DAEMONS = 3
NAME = "checkpoints"  # all doors under one name, for Hadoop's own fail-over
PROVIDER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise Spark's workers run the python3 of the PATH
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        cluster = Cluster(f"{work}/replicated-store")  # as `jmsq store up` does
        cluster.write_config(DAEMONS, memory="256M")
        try:
            first_door = free_ports(DAEMONS, 9_870)[0]
            doors = cluster.up(door_port=first_door).doors
            asyncio.run(objects(cluster))
            count_with_a_death(cluster, doors, Path(work))
        finally:
            cluster.down(force=True)


async def objects(cluster: Cluster) -> None:
    instance = await StoreInstance.open(cluster.directory, "example", region_bytes=16 * 1024 * 1024)
    things = await instance.connection("example.things")
    handles = await asyncio.gather(*(things.create(b"object %d" % n) for n in range(1000)))
    print(f"{len(handles)} objects in two memories, {instance.statistics().physical_write_count} physical writes")
    print(f"read back: {await things.read(handles[-1])!r}")
    await instance.close()


def count_with_a_death(cluster: Cluster, doors: tuple[str, ...], work: Path) -> None:
    nodes = {f"door{number}": address for number, address in enumerate(doors)}
    settings = {
        "nameservices": NAME,
        f"ha.namenodes.{NAME}": ",".join(nodes),
        f"client.failover.proxy.provider.{NAME}": PROVIDER,
        "http.client.failover.sleep.base.millis": "20",
        "http.client.failover.sleep.max.millis": "500",
        "http.client.failover.max.attempts": "30",
    } | {f"namenode.http-address.{NAME}.{node}": address for node, address in nodes.items()}
    builder = SparkSession.builder.appName("replicated store").master("local[2]")
    for name, value in settings.items():
        builder = builder.config(f"spark.hadoop.dfs.{name}", value)
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    counts: dict[str, int] = {}

    def keep(batch: DataFrame, number: int) -> None:
        counts.update({row["value"]: row["count"] for row in batch.collect()})

    feed = work / "words"
    feed.mkdir()
    (feed / "first.txt").write_text("red\nblue\nred\n")
    words = spark.readStream.format("text").load(str(feed)).groupBy("value").count()
    writer = words.writeStream.outputMode("update").foreachBatch(keep)
    query = writer.option("checkpointLocation", f"webhdfs://{NAME}/queries/words").start()
    try:
        query.processAllAvailable()
        print(f"counted: {dict(sorted(counts.items()))}")
        victim = serving(cluster)
        os.kill(int(cluster.directory.told(victim)["pid"]), signal.SIGKILL)
        print(f"daemon {victim}, which served the checkpoint, is killed")
        (feed / "second.txt").write_text("red\ngreen\n")
        query.processAllAvailable()
        print(f"counted: {dict(sorted(counts.items()))}")
    finally:
        query.stop()
        spark.stop()


def serving(cluster: Cluster) -> int:
    """The daemon that has the namespace, once its region has two copies."""
    deadline_s = time.monotonic() + 30
    with Admin(str(cluster.path)) as admin:
        while time.monotonic() < deadline_s:
            for region in admin.regions("webhdfs.*"):
                if region.primary is not None and region.secondary is not None:
                    return region.primary
            time.sleep(0.1)
    raise SystemExit("the namespace has no second copy after 30 s")


if __name__ == "__main__":
    main()
