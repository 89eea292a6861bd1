"""The figures of a domain for Prometheus: `jmsq metrics`, or a collector for a program's own registry.

Features: M5 (docs/FEATURES.md)
"""

from spark_jms.metrics.collector import WAIT_S, DomainCollector
from spark_jms.metrics.server import MetricsServer

__all__ = ["WAIT_S", "DomainCollector", "MetricsServer"]
