"""T9: what a consumer keeps of its claim, and the advice on how many messages to claim."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.columns import check_message_sizes, message_sizes
from spark_jms.core.records.batch import advised_maximum, fitting
from spark_jms.errors import MessageSizeError
from spark_jms.settings.connection_factory import FACTORY_KEYS, ConnectionFactory
from spark_jms.settings.types import NO_LIMIT


@given(st.lists(st.integers(0, 100)), st.integers(1, 200))
def test_fitting_messages_are_as_many_as_have_room(sizes: list[int], limit: int) -> None:
    """T9: at most the limit together, unless it is one message; one more would be too much."""
    count = fitting(sizes, limit)
    assert sum(sizes[:count]) <= limit or count == 1
    assert count == len(sizes) or sum(sizes[: count + 1]) > limit
    assert count >= min(1, len(sizes))


@pytest.mark.parametrize(
    ("acknowledged", "times", "advised"),
    [(0, 0, None), (50, 1, 101), (500, 10, 101), (1, 1, 3), (3, 2, 5)],
)
def test_advice_is_twice_the_interval_and_one(acknowledged: int, times: int, advised: int | None) -> None:
    """T9: the texts' example: 50 messages at a time, 101."""
    assert advised_maximum(acknowledged, times) == advised


@given(st.lists(st.tuples(st.text(max_size=9), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))))
def test_size_of_a_message_is_what_its_limit_counts(made: list[tuple[str, dict[str, str]]]) -> None:
    """T9, T17: one definition of size, for senders and for consumers."""
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([text for text, _ in made], pa.string()),
            pa.array([list(properties.items()) for _, properties in made], pa.map_(pa.string(), pa.string())),
            pa.array([7] * len(made), pa.int64()),
        ],
        names=["text", "properties", "JMSTimestamp"],
    )
    sizes = message_sizes(rows).to_pylist()
    assert sizes == [
        len(text.encode()) + sum(len((name + value).encode()) for name, value in properties.items())
        for text, properties in made
    ]
    for row, size in enumerate(sizes):
        check_message_sizes(rows.slice(row, 1), max(size, 1))
        if size > 1:
            one = pa.RecordBatch.from_pylist(rows.slice(row, 1).to_pylist(), rows.schema)
            with pytest.raises(MessageSizeError, match=f"carries {size} bytes"):
                check_message_sizes(one, size - 1)


@pytest.mark.parametrize(
    ("mode", "listener", "topic", "claims"),
    [
        ("enabled", False, False, 10),
        ("disabled", False, False, 1),
        ("disabled", False, True, 1),
        ("disabled", True, False, 10),
        ("topicSubscriberOnly", False, False, 1),
        ("topicSubscriberOnly", False, True, 10),
        ("topicSubscriberOnly", True, False, 10),
    ],
)
def test_prefetch_of_synchronous_consumers_is_switched(mode: str, listener: bool, topic: bool, claims: int) -> None:
    """T9"""
    factory = ConnectionFactory(synchronous_prefetch_mode=mode)
    assert factory.pipeline(listener=listener, topic=topic) == claims


def test_maximum_is_a_number_or_no_limit() -> None:
    """T9: 0 is neither."""
    maximum = FACTORY_KEYS["messagesMaximum"].type
    assert (maximum.read("-1"), maximum.read("1"), maximum.read("10000")) == (NO_LIMIT, 1, 10_000)
    assert [maximum.read(maximum.show(value)) for value in (-1, 1, 101)] == [-1, 1, 101]
    for wrong in ("0", "-2", "10001", "", "many"):
        with pytest.raises(ValueError, match="-1 for no limit, or a whole number of 1 to 10,000"):
            maximum.read(wrong)
    for value in (True, 0, -2, 1.0, None):
        assert not maximum.fits(value)
