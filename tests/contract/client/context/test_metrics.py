"""M5: what a program's producers and consumers have done, as metrics of its own registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import spark_jms
from spark_jms.client import Context
from spark_jms.client.context.metrics import CLIENT_METRICS
from spark_jms.testing import memory_domain


def figures(registry: CollectorRegistry) -> dict[str, dict[str, float]]:
    """Metric -> destination, or "" -> value."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for one in family.samples:
            found.setdefault(one.name, {})[one.labels.get("destination", "")] = one.value
    return found


def registered(context: Context) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(context.metrics())
    return registry


def test_metrics_are_the_statistics_by_destination() -> None:
    """M5: of all producers and consumers of a destination together, closed ones included."""
    with (
        memory_domain(orders="queue", invoices="queue") as root,
        spark_jms.connect(root, housekeeping=False) as context,
    ):
        registry = registered(context)
        with context.producer("orders") as closed:
            closed.send(body=bytes(100))
        kept = context.producer("orders")
        kept.send_many([{"body": bytes(10)}] * 4)
        context.producer("invoices").send(text="x")
        with context.consumer("orders", prefetch=3) as consumer:
            assert consumer.receive(10) is not None
            second = consumer.receive(10)
            assert second is not None
            now = figures(registry)
            assert now["jmsq_client_prefetched_messages"]["orders"] == 1
            assert now["jmsq_client_unacknowledged_messages"]["orders"] == 2
            second.acknowledge()
            assert consumer.receive(10) is not None
        now = figures(registry)
        assert now["jmsq_client_sent_messages_total"] == {"orders": 5, "invoices": 1}
        assert now["jmsq_client_sent_bytes_total"] == {"orders": 140, "invoices": 1}
        assert now["jmsq_client_commits_total"] == {"orders": 2, "invoices": 1}
        assert now["jmsq_client_producers"] == {"orders": 1, "invoices": 1}
        assert now["jmsq_client_received_messages_total"] == {"orders": 3}
        assert now["jmsq_client_received_bytes_total"] == {"orders": 120}
        assert now["jmsq_client_acknowledged_messages_total"] == {"orders": 2}
        assert "jmsq_client_consumers" not in now, "it is closed"
        assert now["jmsq_client_background_failures"] == {"": 0}
        assert set(now) | {"jmsq_client_consumers"} <= {metric.name for metric in CLIENT_METRICS}


def test_temporary_destinations_are_one_series() -> None:
    """M5, C15: their names are never used again."""
    with memory_domain(orders="queue") as root, spark_jms.connect(root, housekeeping=False) as context:
        registry = registered(context)
        for _ in range(3):
            queue = context.create_temporary_queue()
            context.producer(queue.name).send(text="x")
        assert figures(registry)["jmsq_client_sent_messages_total"] == {"(temporary)": 3}
        assert figures(registry)["jmsq_client_producers"] == {"(temporary)": 3}


def test_every_metric_of_a_client_has_a_value() -> None:
    """M5"""
    with memory_domain(orders="queue") as root, spark_jms.connect(root, housekeeping=False) as context:
        registry = registered(context)
        context.producer("orders")
        context.consumer("orders")
        assert set(figures(registry)) == {metric.name for metric in CLIENT_METRICS}
