"""The file of a domain's high marks. core/high_marks.py has the rule.

ROOT/_jmsq/high-marks

It is replaced as a whole, by the services and by an administrator's reset; of two processes that write at once the later one counts,
and what the other saw is seen again by the next look. A damaged file is like none: the marks begin again.

Features: T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from spark_jms.core.high_marks import DomainMarks
from spark_jms.log.storage import Storage

log = logging.getLogger("spark_jms")
HIGH_MARKS = "_jmsq/high-marks"


class HighMarksFile:
    """Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def read(self) -> DomainMarks:
        return self._read() or DomainMarks()

    def change(self, change: Callable[[DomainMarks], DomainMarks]) -> DomainMarks:
        """Returns the marks afterwards. Writes only what differs, and leaves the file of a later version alone."""
        before = self._read()
        if before is None:
            return DomainMarks()
        after = change(before)
        if after != before:
            self._storage.put(HIGH_MARKS, json.dumps(after.to_json()).encode())
        return after

    def _read(self) -> DomainMarks | None:
        """None: a later version wrote them."""
        data = self._storage.get(HIGH_MARKS)
        if data is None:
            return DomainMarks()
        try:
            return DomainMarks.from_json(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s/%s is damaged, and the high marks begin again: %r", self._storage.uri, HIGH_MARKS, error)
            return DomainMarks()
