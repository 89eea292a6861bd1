"""T17: what producers, consumers and contexts count, and high marks."""

from __future__ import annotations

import spark_jms
from spark_jms.admin.statistics import collect, with_rates
from spark_jms.client import ContextStatistics, ProducerStatistics
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import records_of


def test_consumer_counts_bytes_and_its_high_mark() -> None:
    """T17: current values, the most at once, and what was received; from 0 after a reset."""
    with memory_domain(orders="queue") as root, spark_jms.connect(root, housekeeping=False) as context:
        producer = context.producer("orders")
        producer.send_many([{"body": bytes(100)}] * 5 + [{"text": "ab", "properties": {"k": "vw"}}])
        with context.consumer("orders", prefetch=4) as consumer:
            first = consumer.receive(10)
            assert first is not None
            now = consumer.statistics()
            assert (now.received, now.bytes, now.prefetched, now.unacknowledged, now.pending_high) == (1, 100, 3, 1, 4)
            for _ in range(4):
                assert consumer.receive(10) is not None
            now = consumer.statistics()
            assert (now.received, now.bytes, now.prefetched, now.unacknowledged, now.pending_high) == (5, 500, 1, 5, 6)
            consumer.reset_statistics()
            now = consumer.statistics()
            assert (now.received, now.bytes, now.prefetched, now.unacknowledged, now.pending_high) == (0, 0, 1, 5, 6)
            last = consumer.receive(10)
            assert last is not None
            last.acknowledge()
            consumer.reset_statistics()
            now = consumer.statistics()
            assert (now.acknowledged, now.unacknowledged, now.pending_high, now.advised_maximum) == (0, 0, 0, None)


def test_producer_counts_from_0_after_a_reset() -> None:
    """T17"""
    with memory_domain(orders="queue") as root, spark_jms.connect(root, housekeeping=False) as context:
        producer = context.producer("orders")
        producer.send(body=bytes(100))
        assert producer.statistics() == ProducerStatistics(messages=1, commits=1, bytes=100)
        producer.reset_statistics()
        assert producer.statistics() == ProducerStatistics()


def test_context_counts_what_it_opened() -> None:
    """T17: current, most at once, in all."""
    with memory_domain(orders="queue") as root, spark_jms.connect(root, housekeeping=False) as context:
        for _ in range(3):
            context.producer("orders").close()
        with context.producer("orders"), context.producer("orders"), context.consumer("orders"):
            pass

        def numbers(now: ContextStatistics) -> tuple[int, ...]:
            return now.producers, now.producers_high, now.producers_total, now.consumers_high, now.consumers_total

        assert numbers(context.statistics()) == (0, 2, 5, 1, 1)
        kept = context.producer("orders")
        context.reset_statistics()
        assert numbers(context.statistics()) == (1, 1, 0, 0, 0)
        kept.close()


def test_destination_has_current_and_pending_messages() -> None:
    """T17: by member, and in all; a watcher keeps the most that it has seen."""
    with (
        memory_domain("file", orders={"kind": "queue", "redelivery_delay_ms": 3_600_000}) as root,
        spark_jms.connect(root, housekeeping=False) as context,
    ):
        domain = Domain(root)
        context.producer("orders").send_many({"text": str(n)} for n in range(10))
        before = collect(domain, records_of(context), "orders")
        assert (before.backlog, before.current, before.pending) == (10, 10, 0)
        with context.consumer("orders", prefetch=4, acknowledge="individual") as consumer:
            first, second = consumer.receive(10), consumer.receive(10)
            assert first is not None
            assert second is not None
            first.reject()
            second.acknowledge()
            now = with_rates(collect(domain, records_of(context), "orders"), before, 1)
            (member,) = now.members
            assert (member.backlog, member.current + member.pending) == (9, 9)
            assert (now.backlog, now.current, now.pending) == (9, member.current, member.pending)
            assert member.pending >= 1  # it waits for its redelivery
            assert now.rates is not None
            assert (now.rates.backlog_high, now.rates.pending_high) == (10, now.pending)
            third = with_rates(collect(domain, records_of(context), "orders"), now, 1)
            assert third.rates is not None
            assert third.rates.backlog_high == 10
