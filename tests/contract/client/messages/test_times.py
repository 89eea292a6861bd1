"""Times of messages, from the sender to consumers, browsers, statistics and the command (C2, C11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_jms import connect
from spark_jms.admin.statistics import collect
from spark_jms.client.context.context import Context
from spark_jms.client.messages.message import Message
from spark_jms.errors import MessageFormatError
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of

NEVER = 2**63 - 1  # Java's greatest long
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001


@pytest.fixture
def context() -> Iterator[Context]:
    with (
        memory_domain(
            "file", orders="queue", sorted={"kind": "queue", "destination_keys": ("JMSExpiration descending",)}
        ) as root,
        connect(root, housekeeping=False) as made,
    ):
        yield made


@pytest.mark.parametrize("queue", ["orders", "sorted"])
def test_time_beyond_the_calendar_is_delivered(context: Context, queue: str) -> None:
    """C2: its datetime is None, its milliseconds are there; it is browsed, counted and sent on."""
    context.producer(queue).send_many([Message("a", expiration_ms=NEVER), Message("b", expiration_ms=NEVER)])
    (first, _) = context.browser(queue)
    assert (first.expiration, first.expiration_ms, first.to_dict()["expiration_ms"]) == (None, NEVER, NEVER)
    assert collect(domain_of(context), records_of(context), queue)
    with context.consumer(queue, acknowledge="individual") as consumer:
        for redelivered in (False, True, False):
            message = consumer.receive(timeout=5)
            assert message is not None
            assert (message.expiration, message.expiration_ms, message.redelivered) == (None, NEVER, redelivered)
            if message.text == "a" and not redelivered:
                message.reject()
            else:
                context.producer("orders").send_many([message])
                message.acknowledge()


def test_delivery_time_beyond_the_calendar_is_not_reached(context: Context) -> None:
    """C2: and no wait overflows; its neighbour is delivered."""
    context.producer("orders").send_many([Message("later", delivery_time_ms=NEVER), Message("now")])
    with context.consumer("orders", acknowledge="auto") as consumer:
        assert [m.text for m in consumer.messages(idle_timeout=0.5)] == ["now"]
    assert [(m.delivery_time, m.delivery_time_ms) for m in context.browser("orders")] == [(None, NEVER)]


@pytest.mark.parametrize("column", ["JMSExpiration", "JMSDeliveryTime"])
@pytest.mark.parametrize(
    "table",
    [
        lambda column: pa.table({"text": ["x"], column: [NAIVE]}),
        lambda column: pa.Table.from_pandas(pd.DataFrame({"text": ["x"], column: [pd.Timestamp(NAIVE)]})),
        lambda column: pl.DataFrame({"text": ["x"], column: [NAIVE]}),
    ],
    ids=["arrow", "pandas", "polars"],
)
@pytest.mark.parametrize("transacted", [False, True])
def test_table_with_a_time_without_a_zone_is_refused(
    context: Context, column: str, table: Callable[[str], Any], transacted: bool
) -> None:
    """C2: as `send` refuses it; nothing is sent."""
    sender = context.transacted_session() if transacted else context
    with pytest.raises(MessageFormatError, match=f"'{column}' is a time without a time zone.*assume_timezone"):
        sender.producer("orders").send_table(table(column))
    assert list(context.browser("orders")) == []


def test_tables_of_other_libraries_are_sent(context: Context) -> None:
    """C2: string views, categories and times with a zone of Polars and pandas."""
    moment = datetime(2999, 1, 1, tzinfo=timezone.utc)
    columns = {"text": ["a", "b"], "JMSType": ["t", None], "JMSExpiration": [moment, None]}
    polars = pl.DataFrame(columns).with_columns(pl.col("JMSType").cast(pl.Categorical))
    frame = pd.DataFrame(columns).astype({"JMSType": "category"})
    for table in (polars, pa.Table.from_pandas(frame, preserve_index=False)):
        assert context.producer("orders").send_table(table).messages == 2
    found = [(m.text, m.type, m.expiration) for m in context.browser("orders")]
    assert found == [("a", "t", moment), ("b", None, None)] * 2
