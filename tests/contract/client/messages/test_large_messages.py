"""Sending a very large message takes at most three times its size in memory (C2, C11)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jms import connect
from spark_jms.client.context.context import Context
from spark_jms.client.messages.encoding import LARGE_BYTES, array_of_one
from spark_jms.core.messages.compression import VERY_LARGE_BYTES
from spark_jms.errors import MessageFormatError
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of

SIZE = VERY_LARGE_BYTES


@pytest.fixture
def context() -> Iterator[Context]:
    large = {"kind": "queue", "max_message_bytes": 2**30}
    zipped = {**large, "store_message_compression_enabled": True}
    with memory_domain("file", orders=large, zipped=zipped) as root, connect(root, housekeeping=False) as made:
        yield made


def send(context: Context, way: str, value: Any, queue: str = "orders") -> None:
    producer = context.producer(queue)
    if way == "table":
        producer.send_table(value)
    elif way == "many":
        producer.send_many([{"body": value}])
    elif way == "text":
        producer.send(text=value)
    else:
        producer.send(body=value)


def made(way: str) -> Any:
    data = b"x" * SIZE
    return data.decode() if way == "text" else pa.table({"body": [data]}) if way == "table" else data


@pytest.mark.parametrize("way", ["text", "body", "many", "table"])
def test_sender_needs_at_most_three_times_the_size(context: Context, way: str) -> None:
    """C2, C11: the message itself, and twice its size in Parquet; nothing of it in Python."""
    value = made(way)
    pool, before = pa.system_memory_pool(), pa.default_memory_pool()  # nothing else uses the first
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        send(context, way, value)
        python_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert pool.max_memory() + python_bytes <= 2.1 * SIZE
    (message,) = context.browser("orders")
    assert len(message.text or message.body or "") == SIZE


def codec(context: Context, queue: str) -> str:
    log = domain_of(context).log(queue)
    (file,) = log.refresh().member_files(0).files
    with log.storage.open_input(file.path) as source:
        group = pq.ParquetFile(source).metadata.row_group(0)
        columns = {group.column(n).path_in_schema: group.column(n).compression for n in range(group.num_columns)}
    assert columns["JMSType"] == "SNAPPY"
    return str(columns["body"])


def test_very_large_body_is_stored_uncompressed(context: Context) -> None:
    """T8: unless the destination asks for compression."""
    send(context, "body", b"x" * SIZE)
    send(context, "body", b"x" * SIZE, "zipped")
    assert (codec(context, "orders"), codec(context, "zipped")) == ("UNCOMPRESSED", "GZIP")


@pytest.mark.parametrize("value", [b"x" * LARGE_BYTES, "x" * LARGE_BYTES, "ä" * LARGE_BYTES, "a\0" * LARGE_BYTES])
def test_large_value_is_shared(value: bytes | str) -> None:
    """C11: the array equals a copy, and keeps the value alive."""
    kind = pa.binary() if isinstance(value, bytes) else pa.string()
    array = array_of_one(value, kind)
    assert array is not None
    array.validate(full=True)
    expected = pa.array([value])
    del value
    assert array.equals(expected)


@pytest.mark.parametrize("value", ["x", b"x", None, bytearray(LARGE_BYTES)])
def test_other_value_is_copied(value: Any) -> None:
    """C11"""
    assert array_of_one(value, pa.binary()) is None
    assert array_of_one(value, pa.string()) is None


def test_large_text_that_is_not_unicode_is_refused(context: Context) -> None:
    """C2: as a short one."""
    with pytest.raises(MessageFormatError, match="not Unicode"):
        send(context, "text", "x" * LARGE_BYTES + "\udc80")
