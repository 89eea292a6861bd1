"""The metrics of a client program: which figure of its statistics each is. client/metrics.py gives them to Prometheus.

Features: M5 (docs/FEATURES.md)
"""

from __future__ import annotations

from typing import NamedTuple


class ClientMetric(NamedTuple):
    """`field` is that of ProducerStatistics, ConsumerStatistics, ContextStatistics or its BufferStatistics."""

    field: str
    name: str
    help: str


PRODUCER_COUNTERS = (
    ClientMetric("messages", "jmsq_client_sent_messages_total", "Messages sent by the producers of this program."),
    ClientMetric("bytes", "jmsq_client_sent_bytes_total", "Bytes of the bodies and properties of sent messages."),
    ClientMetric("commits", "jmsq_client_commits_total", "Commits with messages of the producers of this program."),
    ClientMetric(
        "duplicates",
        "jmsq_client_duplicate_sends_total",
        "Calls whose transaction, and messages whose number, was in the log already: they were not sent again.",
    ),
    ClientMetric("one_way", "jmsq_client_one_way_messages_total", "Messages sent one-way that are in the table."),
    ClientMetric(
        "deleted",
        "jmsq_client_one_way_deleted_messages_total",
        "Messages sent one-way that are not in the table and will not be.",
    ),
)
CONSUMER_COUNTERS = (
    ClientMetric("received", "jmsq_client_received_messages_total", "Messages received by consumers."),
    ClientMetric(
        "bytes", "jmsq_client_received_bytes_total", "Bytes of the bodies and properties of received messages."
    ),
    ClientMetric("redelivered", "jmsq_client_redelivered_messages_total", "Received messages with JMSRedelivered set."),
    ClientMetric(
        "acknowledged", "jmsq_client_acknowledged_messages_total", "Messages whose acknowledgement is stored."
    ),
    ClientMetric("returned", "jmsq_client_returned_messages_total", "Messages returned to their destination."),
    ClientMetric(
        "expired",
        "jmsq_client_expired_messages_total",
        "Messages that expired between their claim and their delivery.",
    ),
    ClientMetric("set_aside", "jmsq_client_set_aside_messages_total", "Messages set aside: they cannot be decoded."),
    ClientMetric(
        "listener_failures", "jmsq_client_listener_failures_total", "Calls of message listeners that raised an error."
    ),
)
PRODUCER_GAUGES = (
    ClientMetric(
        "outstanding", "jmsq_client_outstanding_sends", "Asynchronous and one-way sends that are not complete."
    ),
)
CONSUMER_GAUGES = (
    ClientMetric("prefetched", "jmsq_client_prefetched_messages", "Messages claimed and not yet delivered."),
    ClientMetric(
        "unacknowledged", "jmsq_client_unacknowledged_messages", "Messages delivered and not yet acknowledged."
    ),
    ClientMetric("returning", "jmsq_client_returning_messages", "Messages released whose release is not yet stored."),
)
CONTEXT_COUNTERS = (
    ClientMetric(
        "failed_attempts",
        "jmsq_client_background_failed_attempts_total",
        "Failed attempts of this program's background work, later successes included.",
    ),
    ClientMetric(
        "listener_failures",
        "jmsq_client_completion_listener_failures_total",
        "Calls of completion listeners that raised an error.",
    ),
)
BUFFER_GAUGES = (
    ClientMetric("memory_bytes", "jmsq_client_buffer_memory_bytes", "Bytes of waiting messages that are in memory."),
    ClientMetric("paged_bytes", "jmsq_client_buffer_paged_bytes", "Bytes of waiting messages that are paged to files."),
    ClientMetric("paged_messages", "jmsq_client_buffer_paged_messages", "Waiting messages that are paged to files."),
)
BUFFER_COUNTERS = (
    ClientMetric(
        "paged_messages_total", "jmsq_client_buffer_paged_messages_total", "Messages that were paged to files."
    ),
    ClientMetric(
        "failures", "jmsq_client_buffer_paging_failures_total", "Pages that the paging directory did not take."
    ),
)
PRODUCERS = ClientMetric("producers", "jmsq_client_producers", "Open producers.")
CONSUMERS = ClientMetric("consumers", "jmsq_client_consumers", "Open consumers.")
SLOWED = ClientMetric("flow", "jmsq_client_slowed_producers", "Open producers that flow control slows down now.")
FAILURES = ClientMetric(
    "failures", "jmsq_client_background_failures", "Background work of this program that fails now."
)
CLIENT_METRICS = (
    PRODUCERS,
    *PRODUCER_COUNTERS,
    *PRODUCER_GAUGES,
    SLOWED,
    CONSUMERS,
    *CONSUMER_COUNTERS,
    *CONSUMER_GAUGES,
    FAILURES,
    *CONTEXT_COUNTERS,
    *BUFFER_GAUGES,
    *BUFFER_COUNTERS,
)
PRODUCER_COUNTS = tuple(metric.field for metric in PRODUCER_COUNTERS)
CONSUMER_COUNTS = tuple(metric.field for metric in CONSUMER_COUNTERS)
