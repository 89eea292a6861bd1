"""When a journal is compacted. Pure."""

from __future__ import annotations

from spark_jms.store.ledger.ledger import Ledger

COMPACT_MIN_BYTES = 1024 * 1024
COMPACT_RATIO = 4.0
_OBJECT_OVERHEAD_BYTES, _RECORD_OVERHEAD_BYTES = 8, 96


class CompactionPolicy:
    """Once the journal is longer than `min_bytes` and longer than `ratio` times what its ledger needs; and, after an attempt,
    not before its length has doubled, so that a compaction that fails or gains little is not tried at every write."""

    def __init__(self, min_bytes: int, ratio: float) -> None:
        self._ratio = ratio
        self._not_below_bytes = min_bytes
        self._min_bytes = min_bytes

    def is_due(self, length: int, ledger: Ledger) -> bool:
        if length <= self._not_below_bytes:
            return False
        live = ledger.object_bytes + _OBJECT_OVERHEAD_BYTES * ledger.object_count
        return length > self._ratio * (live + _RECORD_OVERHEAD_BYTES * len(ledger.records))

    def attempted(self, length: int) -> None:
        self._not_below_bytes = max(self._min_bytes, 2 * length)
