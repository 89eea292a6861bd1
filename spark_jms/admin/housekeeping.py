"""Rounds of housekeeping over several destinations.

Features: C13, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_jms.claims.housekeeper import Housekeeper
from spark_jms.core.health import BackgroundFailure
from spark_jms.log.domain import Domain
from spark_jms.store import Store


@dataclass(frozen=True)
class Round:
    """The result of one round on a destination; `busy`: another process has its housekeeping lease, which `holder` names.
    `failures`: steps that fail, and data files that cannot be read."""

    destination: str
    busy: bool
    purged_messages: int = 0
    purged_files: int = 0
    compacted_files: int = 0
    checkpoints: int = 0
    deleted_files: int = 0
    expired_messages: int = 0
    failures: tuple[BackgroundFailure, ...] = ()
    holder: str = ""

    @property
    def did_something(self) -> bool:
        done = (
            self.purged_files or self.compacted_files or self.checkpoints or self.deleted_files or self.expired_messages
        )
        return bool(done or self.failures)


class Rounds:
    """Housekeeping of several destinations in turn; with `clean_up`, every round cleans up, not only once a minute."""

    def __init__(self, domain: Domain, store: Store, *, clean_up: bool) -> None:
        self._domain, self._store, self._clean_up = domain, store, clean_up
        self._housekeepers: dict[str, Housekeeper] = {}

    def run(self, destinations: Sequence[str]) -> list[Round]:
        return [self._run(name) for name in destinations]

    def _run(self, name: str) -> Round:
        if name not in self._housekeepers:
            made = self._housekeepers[name] = Housekeeper(self._domain, self._store, name)
            if self._clean_up:
                made.rounds.CLEAN_UP_EVERY_S = made.ABANDONED_EVERY_S = 0.0
                made.scans_at_once = True
        housekeeper = self._housekeepers[name]
        before = replace(housekeeper.rounds.total)
        if not housekeeper.run():
            return Round(name, busy=True, holder=housekeeper.holder())
        after = housekeeper.rounds.total
        return Round(
            name,
            False,
            after.purged_messages - before.purged_messages,
            after.purged_files - before.purged_files,
            after.compacted_files - before.compacted_files,
            after.checkpoints - before.checkpoints,
            after.deleted_files - before.deleted_files,
            after.expired_messages - before.expired_messages,
            tuple(housekeeper.health.failures.values()),
        )

    def close(self) -> None:
        for housekeeper in self._housekeepers.values():
            housekeeper.close()
