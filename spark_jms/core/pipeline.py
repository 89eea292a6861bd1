"""The pipeline of a consumer: how many of the messages that it claimed it keeps, and how many it should claim.

A consumer claims `messagesMaximum` messages at a time. Together they have at most `maxMessageSize` bytes. The planner chooses by
the averages of files, which are compressed; the consumer counts what it reads, and returns what is too much.

Features: T9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable


def fitting(sizes: Iterable[int], limit_bytes: int) -> int:
    """How many of the first messages have at most so many bytes together; at least one, however large."""
    used = count = 0
    for size in sizes:
        used += size
        if count and used > limit_bytes:
            break
        count += 1
    return count


def advised_maximum(acknowledged: int, times: int) -> int | None:
    """The advice of the texts, 2 * interval + 1, for an application that acknowledged so many messages in so many calls. None
    before the first."""
    interval = -(-acknowledged // times) if times else 0
    return 2 * interval + 1 if interval else None
