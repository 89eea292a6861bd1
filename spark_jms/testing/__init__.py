"""Fakes and helpers that ship: test code that uses spark-jms without Spark, without a disk store, without sleeping."""

from spark_jms.testing.domain import memory_domain
from spark_jms.testing.waiting import wait_until

__all__ = ["memory_domain", "wait_until"]
