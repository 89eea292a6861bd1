"""A client's way to the engine, which outlives any one engine: it finds the next when the current one is lost.

A new access first announces the sessions of this process, before anything else is asked through it. A plan keeps the engine
that it began with: while it runs, the route neither reconnects nor retries, so the plan fails and runs again elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import threading
from collections.abc import Callable
from typing import TypeVar

from spark_jms.store.engine.access import Access
from spark_jms.store.engine.finder import EngineFinder
from spark_jms.store.engine.ledger_replica import LedgerReplica
from spark_jms.store.engine.link import Address, LinkLostError
from spark_jms.store.engine.local_access import LocalAccess
from spark_jms.store.engine.persistence import Clock
from spark_jms.store.engine.remote_access import RemoteAccess
from spark_jms.store.engine.server import Server
from spark_jms.store.errors import StoreBusyError
from spark_jms.store.opening import StoreOpening
from spark_jms.store.sharing import UserCount

log = logging.getLogger("store.served")
T = TypeVar("T")
_chance = random.Random()  # our own, so that a program's seeded sequence does not depend on how often a client waited

RECONNECT_FIRST_MS, RECONNECT_LAST_MS = 10.0, 500.0


class EngineRoute:
    """`limit_ms` bounds every wait for an engine, then StoreBusyError; `patience_s` every answer to a question."""

    def __init__(
        self,
        finder: EngineFinder,
        announce: Callable[[Access], object],
        users: UserCount,
        *,
        limit_ms: float,
        patience_s: float,
        clock_ms: Clock,
        sleep_ms: Callable[[float], None],
    ) -> None:
        self.finder = finder
        self.clock_ms = clock_ms
        self.sleep_ms = sleep_ms
        self.limit_ms = limit_ms
        self.client_id = secrets.token_hex(8)
        self.reconnect_count = 0
        self.current: Access | None = None
        self._announce = announce
        self._patience_s = patience_s
        self._users = users
        self._connecting = threading.RLock()
        self._replica = LedgerReplica()
        self._plan = threading.local()

    @property
    def closed(self) -> bool:
        return self._users.closed

    def open(self, opening: StoreOpening) -> None:
        """The first access. Raises StoreBusyError when the opening was cancelled, or has reached its limit."""
        with self._connecting:
            self.current = self._search(opening)

    def access(self) -> Access:
        return self.current or self.replace(None)

    def replace(self, failed: Access | None) -> Access:
        """An access other than the one that failed."""
        with self._connecting:
            if self.current is not None and self.current is not failed:
                return self.current
            if self.current is not None:
                self.current.close()
                self.current = None
                self.reconnect_count += 1
            self.current = self._search(StoreOpening())
            return self.current

    def _search(self, opening: StoreOpening) -> Access:
        failed_at: Address | None = None
        limit_s = opening.within(self.limit_ms / 1000)
        deadline_ms, pause_ms, why = self.clock_ms() + limit_s * 1000, RECONNECT_FIRST_MS, "there is no engine"
        while True:
            self.check_open()
            opening.check()
            found = self.finder.find(failed_at)
            failed_at = None
            try:
                if found is not None:
                    return self._open(found)
            except LinkLostError as error:
                why = str(error)
                failed_at = found if isinstance(found, Address) else None
            if self.clock_ms() >= deadline_ms:
                raise StoreBusyError(f"no engine of the store answered for {limit_s:g} s ({why})")
            self.sleep_ms(pause_ms * _chance.uniform(0.5, 1.0))
            pause_ms = min(pause_ms * 2, RECONNECT_LAST_MS)

    def _open(self, found: Server | Address) -> Access:
        access: Access
        if isinstance(found, Server):
            access, self._replica = LocalAccess(found, self.client_id), LedgerReplica()
        else:
            access = RemoteAccess(found, self.client_id, self._patience_s, self._replica, self.sleep_ms)
        try:
            self._announce(access)
        except BaseException:
            access.close()
            raise
        return access

    def use(self, ask: Callable[[Access], T]) -> T:
        """Ask something that may be asked twice, and ask the next engine when one is lost."""
        if getattr(self._plan, "runs", False):
            if self.current is None:
                raise LinkLostError("the engine was lost while a plan ran")
            return ask(self.current)
        access, losses = self.current, self.losses()
        while True:
            self.check_open()
            access = access or self.access()
            try:
                return ask(access)
            except LinkLostError as error:
                access = losses.replace(access, error)

    def losses(self) -> EngineLosses:
        return EngineLosses(self)

    def in_plan(self, plan: Callable[[object], T]) -> Callable[[object], T]:
        """The plan; while it runs, `use` asks the current engine only."""

        def run(transaction: object) -> T:
            self._plan.runs = True
            try:
                return plan(transaction)
            finally:
                self._plan.runs = False

        return run

    def check_open(self) -> None:
        self._users.require_open()

    def close(self) -> None:
        with self._connecting:
            if self.current is not None:
                self.current.close()
                self.current = None
            self.finder.close()

    def abandon(self) -> None:
        """In a forked child, without any lock: drop the descriptors and send nothing."""
        self.finder.abandon()
        if self.current is not None:
            with contextlib.suppress(OSError):
                self.current.abandon()


class EngineLosses:
    """The engines that were lost while one thing was asked. The first is replaced at once, and each further one after a longer
    pause, until all together took `limit_ms`: then the question itself may be what ends them, or none is certain of its store."""

    def __init__(self, route: EngineRoute) -> None:
        self._route = route
        self._deadline_ms: float | None = None
        self._pause_ms = 0.0

    def replace(self, failed: Access, error: LinkLostError) -> Access:
        """Another access. StoreBusyError after the limit."""
        route = self._route
        log.info("client %s lost the engine: %s", route.client_id, error)
        if self._deadline_ms is None:
            self._deadline_ms = route.clock_ms() + route.limit_ms
        elif route.clock_ms() >= self._deadline_ms:
            raise StoreBusyError(
                f"every engine of the store was lost, for {route.limit_ms / 1000:g} s ({error})"
            ) from error
        else:
            self._pause_ms = min(max(self._pause_ms * 2, RECONNECT_FIRST_MS), RECONNECT_LAST_MS)
            route.sleep_ms(self._pause_ms * _chance.uniform(0.5, 1.0))
        return route.replace(failed)
