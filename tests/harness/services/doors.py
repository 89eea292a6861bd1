"""The doors of a cluster of daemons, as one name service of Hadoop (R19)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from spark_jms.store.errors import StoreError
from spark_jms.store.regions.admin.cluster import DaemonAdmin
from spark_jms.testing import wait_until
from tests.harness.processes.java import JavaSide
from tests.harness.services.daemons import Daemons

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def nameservice(spark: SparkSession, ports: list[int]) -> str:
    """Put all doors under one name, with Hadoop's fail-over between them (docs/WEBHDFS.md)."""
    name = f"rs{uuid.uuid4().hex[:8]}"
    hadoop = JavaSide(spark).hadoop_of_context()
    nodes = [f"d{index}" for index in range(len(ports))]
    names = hadoop.get("dfs.nameservices")
    hadoop.set("dfs.nameservices", f"{names},{name}" if names else name)
    hadoop.set(f"dfs.ha.namenodes.{name}", ",".join(nodes))
    for node, port in zip(nodes, ports, strict=True):
        hadoop.set(f"dfs.namenode.http-address.{name}.{node}", f"127.0.0.1:{port}")
    provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
    hadoop.set(f"dfs.client.failover.proxy.provider.{name}", provider)
    hadoop.set("dfs.http.client.failover.sleep.base.millis", "20")
    hadoop.set("dfs.http.client.failover.sleep.max.millis", "500")
    hadoop.set("dfs.http.client.failover.max.attempts", "30")
    hadoop.set("dfs.http.client.retry.max.attempts", "30")
    return name


def serving(daemons: Daemons) -> int | None:
    """The daemon that has the namespace open, or None until every region of the namespace has two copies."""
    for index, process in daemons.processes.items():
        if process.poll() is not None:
            continue
        try:
            admin = DaemonAdmin(str(daemons.path), index)
        except StoreError:
            continue
        try:
            found = [region for region in admin.regions() if region.name.startswith("webhdfs.")]
        finally:
            admin.close()
        if found and all(region.opener and region.secondary is not None for region in found):
            return found[0].primary
    return None


def wait_for_two_copies(daemons: Daemons) -> int:
    found: list[int] = []

    def ready() -> bool:
        index = serving(daemons)
        found[:] = [] if index is None else [index]
        return bool(found)

    wait_until(ready, 30.0)
    return found[0]
