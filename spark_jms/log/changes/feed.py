"""The change feed for a plain reader: what has happened since a position, and where it stands then.

Features: M12 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spark_jms.core.changes.change import ALL_DESTINATIONS, NOTHING_READ, FeedPosition, MessageChange
from spark_jms.log.changes.plan import plan
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.changes.rows import changes_of
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms

EARLIEST, LATEST = "earliest", "latest"


class ChangeFeed:
    """Tells what happened to the messages of one destination, or of all. It consumes nothing, and needs no store. Iterate over it
    for what is there now; each iteration continues where the one before ended, and `position` is where the next one begins.

    An iteration that does not reach its end moves nothing: the next one repeats it. Not thread-safe."""

    def __init__(
        self,
        domain: Domain,
        destination: str | None = None,
        since: str = EARLIEST,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`destination` None: all. `since`: "earliest", "latest", or a `position` of an earlier reader. Raises
        InvalidDestinationError, OffsetError, OptionError."""
        self._root = domain.root
        self._tables = FeedTables(domain, destination or ALL_DESTINATIONS, clock_ms)
        self._position = initial_position(self._tables, since)

    @property
    def position(self) -> str:
        """Where the next iteration begins, for `since`."""
        return self._position.to_text()

    def __iter__(self) -> Iterator[MessageChange]:
        """Raises StaleDomainError when the domain was restored from a backup since, and DomainError when it cannot be reached."""
        end = self._tables.newest(self._position)
        for part in plan(self._root, self._tables, self._position, end):
            yield from changes_of(part)
        self._position = end


def initial_position(tables: FeedTables, since: str) -> FeedPosition:
    """Raises InvalidDestinationError for a destination that does not exist, unless `since` is a position that may know it by
    another name; OffsetError."""
    if since not in (EARLIEST, LATEST):
        return FeedPosition.from_text(since)
    tables.check()
    return NOTHING_READ if since == EARLIEST else tables.newest(NOTHING_READ)
