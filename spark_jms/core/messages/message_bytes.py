"""The bytes of messages, as quotas and thresholds count them.

A message counts what `maxMessageSize` counts of it: the body as it is sent, names and values of properties, headers of text. For the
rest HEADER_BYTES are added, by the texts' rule of thumb. What the files take on the disk is something else: Parquet makes most of them
smaller, and a file of one message larger.

A data file notes the bytes of its messages in MOST_PARTS parts of as many messages each, one more or less; one with fewer messages, in
a part for each. A part counts until its last message is finished. So usage is never understated, and of messages that are finished in
order at most one part of a file counts too long. In a file of an earlier release all messages are one part, as large as the file.

Features: T1, T5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from spark_jms.core.messages.ranges import Ranges

MESSAGE_BYTES = "jmsqMessageBytes"  # among the statistics of a file; Delta readers ignore it
HEADER_BYTES = 512
MOST_PARTS = 64


def bounds_of(rows: int) -> list[int]:
    """Pure. How many rows stand before each part, and in the end all of them."""
    parts = min(rows, MOST_PARTS)
    return [rows * number // parts for number in range(parts + 1)] if parts else [0]


def parts_in(statistics: Mapping[str, Any], file_bytes: int) -> Sequence[int]:
    """Pure. Those that the statistics of a file note."""
    parts: Sequence[int] = statistics.get(MESSAGE_BYTES, (file_bytes,))
    return parts


def bytes_of(parts: Sequence[int], first: int, rows: int, some: Ranges) -> int:
    """Pure. Of a file whose messages have the sequences from `first` on: what the parts with `some` of them have."""
    left = some.between(first, first + rows - 1)
    if not left or left.count == rows or len(parts) == 1:
        return sum(parts) if left else 0
    bounds = [first + number for number in bounds_of(rows)]
    return sum(size for size, (begin, end) in zip(parts, pairwise(bounds), strict=True) if left.between(begin, end - 1))
