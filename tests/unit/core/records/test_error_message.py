"""What an error destination keeps of a message, and how `jmsq redrive` takes it away again (C8)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.columns import COLUMNS
from spark_jms.core.messages.properties import TYPES_PROPERTY
from spark_jms.core.records.redelivery import (
    DELIVERIES,
    EXPIRATION,
    FROM,
    POSITION,
    REASON,
    TIME,
    MessageFailure,
    described,
    redriven,
)

FAILURE = MessageFailure("orders", "orders/-/0", "it is bad", 5_000)
NAMES = st.sampled_from(["a", "b", "JMS_other", "JMSXAppID"])


def rows(properties: list[dict[str, str] | None], expirations: list[int]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "JMSExpiration": pa.array(expirations, pa.int64()),
            "text": pa.array([f"t{n}" for n in range(len(properties))]),
            "properties": pa.array([list(p.items()) if p else None for p in properties], COLUMNS["properties"]),
        }
    )


def shown(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{**row, "properties": dict(row["properties"] or ())} for row in batch.to_pylist()]


def test_failure_is_told_in_typed_properties() -> None:
    """C8: where, why, how often and when; a message does not expire in the error destination."""
    batch = rows([{"n": "7", TYPES_PROPERTY: "n:int"}, None], [9_000, 0])
    first, second = shown(described(batch, [11, 12], [3, 4], FAILURE))
    assert first == {
        "JMSExpiration": 0,
        "text": "t0",
        "properties": {
            "n": "7",
            FROM: "orders",
            POSITION: "orders/-/0#11",
            REASON: "it is bad",
            DELIVERIES: "3",
            TIME: "5000",
            EXPIRATION: "9000",
            TYPES_PROPERTY: f"n:int,{DELIVERIES}:int,{TIME}:long,{EXPIRATION}:long",
        },
    }
    assert second["properties"][DELIVERIES] == "4"
    assert EXPIRATION not in second["properties"]


@given(
    st.lists(st.tuples(st.dictionaries(NAMES, st.text(max_size=4)), st.booleans(), st.integers(0, 9_999)), min_size=1),
    st.integers(1, 3),
)
def test_redriven_messages_are_as_they_were_sent(messages: list[tuple[dict[str, str], bool, int]], times: int) -> None:
    """C8: however often a message fails and is brought back. An expiration that has passed is left out."""
    properties = [{**p, **({TYPES_PROPERTY: "a:string"} if typed else {})} for p, typed, _ in messages]
    expirations = [e for _, _, e in messages]
    batch = before = rows(list(properties), expirations)
    for _ in range(times):
        batch = described(batch, range(len(messages)), [1] * len(messages), FAILURE)
        batch = redriven(batch, 5_000)
    assert batch.schema == before.schema
    assert [row["properties"] for row in shown(batch)] == properties
    assert [row["JMSExpiration"] for row in shown(batch)] == [e if e > 5_000 else 0 for e in expirations]


def test_message_that_fails_again_tells_of_the_newer_failure() -> None:
    """C8"""
    later = MessageFailure("errors", "errors/-/0", "again", 6_000)
    once = described(rows([{"n": "7"}], [0]), [11], [3], FAILURE)
    (twice,) = shown(described(once, [1], [1], later))
    assert (twice["properties"][FROM], twice["properties"][TIME]) == ("errors", "6000")
    assert twice["properties"][TYPES_PROPERTY] == f"{DELIVERIES}:int,{TIME}:long"
