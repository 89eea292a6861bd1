"""Which waiting rows of a process stay in memory, and where in its paging files the others are. Pure.

Rows wait in *pieces*: for the commit of their transaction, or for their place in the order of delivery. Pieces are used in about
the order in which they came, so the newest one is needed last. Therefore the new piece pages when the buffer has no room, and no
other piece is looked for:

    a piece       because                                     counted in
    is resident   it fitted when it came                      `memory_bytes`
    is paged      it did not, or is larger than the buffer    `paged_bytes`, `paged_pieces`

The buffer is not a quota: nothing waits for room in it. Messages in the hands of the application are not in it.

Pages are places in *segments*, files of about SEGMENT_BYTES. A place is never used twice. A segment whose pages are all free is
deleted, so the files have at most the bytes of the pages that are left, and one segment's worth for each of these.

Features: T7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

THIRD, MOST_BYTES = 3, 512_000_000
SEGMENT_BYTES = 64 * 2**20
MESSAGE_BYTES, TOPIC_MESSAGE_BYTES, SUBSCRIBER_BYTES = 512, 256, 256


def default_limit_bytes(memory_bytes: int) -> int:
    """Of a process that may use so much memory."""
    return min(memory_bytes // THIRD, MOST_BYTES)


def header_estimate_bytes(backlogs: Sequence[int], messages: int, *, is_topic: bool) -> int:
    """The text's rule of thumb for a store that keeps headers in memory: 512 bytes for each message of a queue; for each of a
    topic 256, and 256 more for each subscription that has not finished it. `backlogs` of the subscriptions, and the `messages` in
    them, each counted once. Nothing here keeps headers of a whole backlog: see docs/LIMITS.md."""
    if not is_topic:
        return MESSAGE_BYTES * sum(backlogs)
    return TOPIC_MESSAGE_BYTES * messages + SUBSCRIBER_BYTES * sum(backlogs)


@dataclass(frozen=True)
class BufferStatistics:
    """`paged_…`: what is in files now; `…_total`: since the buffer was made. `failures`: pieces that stayed in memory because the
    paging directory did not take them."""

    limit_bytes: int = 0
    memory_bytes: int = 0
    memory_bytes_high: int = 0
    paged_bytes: int = 0
    paged_messages: int = 0
    paged_bytes_total: int = 0
    paged_messages_total: int = 0
    failures: int = 0


NOTHING_BUFFERED = BufferStatistics()


class BufferAccount:
    """What is resident and what is paged. Not thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.memory_bytes = self.memory_bytes_high = 0
        self.paged_bytes = self.paged_messages = 0
        self.paged_bytes_total = self.paged_messages_total = self.failures = 0

    @property
    def free_bytes(self) -> int:
        return max(self.limit_bytes - self.memory_bytes, 0)

    def has_room(self, size: int) -> bool:
        return size <= self.free_bytes

    def keep(self, size: int) -> None:
        """A piece is resident."""
        self.memory_bytes += size
        self.memory_bytes_high = max(self.memory_bytes_high, self.memory_bytes)

    def drop(self, size: int) -> None:
        self.memory_bytes -= size
        assert self.memory_bytes >= 0

    def page(self, size: int, messages: int) -> bool:
        """A piece is paged. True: it is the only one."""
        first = not self.paged_messages
        self.paged_bytes += size
        self.paged_messages += messages
        self.paged_bytes_total += size
        self.paged_messages_total += messages
        return first

    def unpage(self, size: int, messages: int) -> bool:
        """True: no piece is paged any more."""
        self.paged_bytes -= size
        self.paged_messages -= messages
        assert self.paged_bytes >= 0
        return not self.paged_messages

    def statistics(self) -> BufferStatistics:
        return BufferStatistics(
            self.limit_bytes,
            self.memory_bytes,
            self.memory_bytes_high,
            self.paged_bytes,
            self.paged_messages,
            self.paged_bytes_total,
            self.paged_messages_total,
            self.failures,
        )


@dataclass(frozen=True)
class PagePlace:
    """Bytes of a segment."""

    segment: int
    offset: int
    bytes: int


class PageSpace:
    """The places of pages. Not thread-safe."""

    def __init__(self, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._segment_bytes = segment_bytes
        self._segment, self._end = 0, 0  # the one that grows
        self._pages: dict[int, int] = {}  # segment -> pages in use

    @property
    def segments(self) -> int:
        return len(self._pages)

    def take(self, size: int) -> PagePlace:
        """A place of its own. Larger ones than a segment have one alone."""
        grows = self._segment in self._pages
        if not grows or (self._end and self._end + size > self._segment_bytes):
            self._segment, self._end = self._segment + 1, 0
        place = PagePlace(self._segment, self._end, size)
        self._pages[self._segment] = self._pages.get(self._segment, 0) + 1
        self._end += size
        return place

    def free(self, place: PagePlace) -> bool:
        """True: no page is left in its segment, which can be deleted and is not used again."""
        self._pages[place.segment] -= 1
        if self._pages[place.segment]:
            return False
        del self._pages[place.segment]
        return True
