"""Data files that are written and not in the log yet: a sender owns them until it commits or deletes them.

Features: C5, C13 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_jms.core.destination import Destination
from spark_jms.core.staged_file import StagedFile
from spark_jms.log.storage import Storage

_STAGED_GRACE_MS = 600_000


def staged_grace_ms(destination: Destination) -> int:
    """The age at which clean-up takes a file that is not in the log for a dead sender's. A living sender commits within
    half of it or not at all (`too_old`), so clean-up never deletes a file that a sender has made messages."""
    return max(destination.file_grace_ms, _STAGED_GRACE_MS)


def commit_within_ms(destination: Destination) -> int:
    """How long after it was written a staged file may be committed."""
    return staged_grace_ms(destination) // 2


def patience_ms(files: Sequence[StagedFile], destination: Destination, now: int) -> int:
    """How long a sender may wait before it commits these files, with a tenth to spare."""
    oldest = min((file.modified_ms for file in files), default=now)
    return max(oldest + commit_within_ms(destination) * 9 // 10 - now, 0)


def too_old(storage: Storage, files: Sequence[StagedFile], destination: Destination, now: int) -> list[StagedFile]:
    """The files that clean-up has deleted or is about to: their writer slept (a stopped process, a suspended machine)."""
    oldest_ms = now - commit_within_ms(destination)
    return [file for file in files if file.modified_ms < oldest_ms or not storage.exists(file.path)]


def discard(storage: Storage, files: Iterable[StagedFile]) -> None:
    for file in files:
        storage.delete(file.path)
