"""What administrators and housekeeping do to the model's destinations. Most of it may die at any write."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from attrs import evolve

from spark_jms.admin.destinations import drop_destination, pause, plan_drop, rename_destination, resume
from spark_jms.admin.transfer import MoveOrder, RedriveOrder, move, redrive
from spark_jms.claims.servers.stores import operations
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.move import MemberForwarder
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.pause import OPERATIONS, Pause
from spark_jms.core.records.stored_form import member_record
from spark_jms.core.selector import Selector
from spark_jms.errors import (
    DestinationDroppedError,
    InsertionPausedError,
    InvalidDestinationError,
    MemberUnavailableError,
    MessageSizeError,
    TransferError,
)
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.upkeep.clean_up import checkpoint, clean_up
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.purge import purge
from spark_jms.store import MemoryStore
from tests.models.queue.clock import Clock
from tests.models.queue.crowd import Killable
from tests.models.queue.rules import Rules
from tests.models.queue.tables import ROOT, ModelDestination, Tables


@dataclass
class Administration:
    tables: Tables
    store: MemoryStore
    clock: Clock
    random: random.Random
    killable: Killable
    rules: Rules
    seen: Counter[str]
    drops: int = 0
    renames: int = 0
    narrow: bool = False  # the error destination takes small messages alone, at present
    moved: bool = False
    _housekeepers: dict[str, Housekeeper] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.domain = Domain(ROOT)  # of one administrator; every consumer and sender has its own
        self.narrow = self.rules.narrow

    # -- moving ---------------------------------------------------------------------------------------------------
    def move(self) -> None:
        self._move(self.tables.orders, self.tables.aside, self.random.choice([1, 5, 50]))

    def move_between(self) -> None:
        """From one member of the queue to another."""
        orders = self.tables.orders
        if orders.table_id:
            source, target = self.random.sample(range(self.tables.snapshot(orders).destination.members), 2)
            order = MoveOrder(orders.name, orders.name, members=(source,), target_member=target, limit=5)
            self._transfer(lambda: move(self.domain, self.store, order, wait_s=0), orders)

    def redrive(self) -> None:
        """What came to the error destination goes back, without what was added there."""
        if not self.rules.keeps_failed:
            return
        orders, aside = self.tables.orders, self.tables.aside
        order = RedriveOrder(aside.name, orders.name, limit=self.random.choice([None, 1, 5]))
        self._transfer(lambda: redrive(self.domain, self.store, order, wait_s=0), aside, orders)

    def forward(self) -> None:
        """Two rounds: the first sees which members have no consumers."""
        orders = self.tables.orders
        if not (self.rules.forwards and orders.table_id):
            return
        forwarder = MemberForwarder(Domain(ROOT), self.store, orders.name, self.clock.monotonic)

        def forward() -> None:
            for _ in range(2):
                found = [
                    text
                    for text in forwarder.run().problems
                    if "MemberUnavailable" not in text and "paused" not in text
                ]
                assert not found, f"forwarding fails: {found}"
                self.clock.now_ms += 10

        self._transfer(forward, orders)

    def move_back(self) -> None:
        source = self.random.choice([d for d in self.tables.living() if d is not self.tables.orders] or [None])
        if source is not None:
            self._move(source, self.tables.orders, self.random.choice([1, 5, 50]))

    def move_all_back(self) -> None:
        """Without faults."""
        for source in self.tables.living():
            if source is not self.tables.orders and (unfinished := self.tables.unfinished(source)):
                everything = MoveOrder(source.name, self.tables.orders.name, limit=len(unfinished))
                move(self.domain, self.store, everything, wait_s=0)
        self.tables.note_arrivals()

    def _move(self, source: ModelDestination, target: ModelDestination, limit: int) -> None:
        selector = Selector.parse(self.random.choice([None, None, "JMSPriority > 4"]))
        order = MoveOrder(source.name, target.name, limit=limit, selector=selector)
        self._transfer(lambda: move(self.domain, self.store, order, wait_s=0), source, target)

    def _transfer(self, act: Callable[[], object], *used: ModelDestination) -> None:
        def transfer() -> None:
            with suppress(MemberUnavailableError):
                try:
                    self._unless_dropped(act, *used)
                except (InsertionPausedError, TransferError):
                    if not self.pauses():
                        raise
                except MessageSizeError:
                    if not self.rules.narrow:
                        raise

        self.tables.note_arrivals()
        self.killable(transfer)
        self.tables.note_arrivals()
        self.moved = True

    def _unless_dropped(self, act: Callable[[], object], *used: ModelDestination) -> None:
        """An error is right only while one of the destinations is being dropped."""
        try:
            act()
        except (DestinationDroppedError, InvalidDestinationError):
            if all(destination.table_id for destination in used):
                raise

    # -- pauses ---------------------------------------------------------------------------------------------------
    def pause(self) -> None:
        """An operation of the queue, or of one of its members."""
        orders, operation = self.tables.orders, self.random.choice(list(OPERATIONS))
        if orders.table_id:
            members = self.random.choice([None, range(self.tables.snapshot(orders).destination.members)])
            some = None if members is None else [self.random.choice(members)]
            self.seen[f"{operation} paused"] += self.killable(
                lambda: pause(self.domain, orders.name, [operation], some)
            )

    def resume(self) -> None:
        if self.pauses():
            self.killable(lambda: resume(self.domain, self.tables.orders.name))

    def pauses(self) -> tuple[Pause, ...]:
        orders = self.tables.orders
        return self.tables.snapshot(orders).destination.pauses.all if orders.table_id else ()

    # -- claims and members ---------------------------------------------------------------------------------------
    def release(self) -> None:
        """`jmsq claims --release`."""
        orders = self.tables.orders
        if not orders.table_id:
            return
        for member, state in self.tables.states(orders).items():
            name = member_record(orders.table_id, "-", member)
            info = self.store.info(name)
            if info and info.holder is None and state.claims:
                with self.store.connect("admin") as session:
                    handle = session.open(name)
                    claim = self.random.choice(list(state.claims))  # in the order of creation: ids are random
                    handle.commit(operations(state, state.release(claim, delivered=True)))

    def add_member(self) -> None:
        orders = self.tables.orders
        if orders.table_id:
            now = self.tables.snapshot(orders).destination
            if now.members < 4:
                self._declare_again(evolve(now, members=now.members + 1))

    # -- housekeeping ---------------------------------------------------------------------------------------------
    def purge(self) -> None:
        def purging() -> None:
            housekeeper._states.clear()
            purge(self.domain.log(orders.name), housekeeper.is_done)

        orders = self.tables.orders
        if orders.table_id:
            housekeeper = self._housekeeper(orders)
            self.tables.note_arrivals()
            self.killable(purging)

    def compact(self) -> None:
        self._on_orders(lambda name: compact(self.domain.log(name)))

    def checkpoint(self) -> None:
        self._on_orders(lambda name: checkpoint(self.domain.log(name), every=1))

    def clean_up(self) -> None:
        for destination in self.tables.living():
            self.killable(lambda name=destination.name: clean_up(self.domain.log(name)))  # type: ignore[misc]

    def housekeeping(self) -> None:
        """A whole round, which also finishes transfers of records that no process holds."""
        self.tables.note_arrivals()
        for destination in self.tables.living():
            housekeeper = self._housekeeper(destination)
            self.killable(housekeeper.run)
            self.tables.note_arrivals()
            failures = housekeeper.health.failures
            assert not failures, f"housekeeping fails: {failures}"

    def _on_orders(self, act: Callable[[str], object]) -> None:
        orders = self.tables.orders
        if orders.table_id:
            self.tables.note_arrivals()
            self.killable(lambda: act(orders.name))

    def _housekeeper(self, destination: ModelDestination) -> Housekeeper:
        """Of a process that lives as long as the destination has this name."""
        key = f"{destination.name} {destination.table_id}"
        if key not in self._housekeepers:
            made = self._housekeepers[key] = Housekeeper(Domain(ROOT), self.store, destination.name)
            made.scans_at_once = True
            made.rounds._clock_s, made.rounds._cleaned_s = self.clock.monotonic, self.clock.monotonic()
        return self._housekeepers[key]

    # -- lives ----------------------------------------------------------------------------------------------------
    def rename(self) -> None:
        """Or finish a rename that was interrupted."""
        destination = self.random.choice([self.tables.orders, self.tables.aside])
        if destination.table_id:
            self.renames += 1
            destination.renaming_to = destination.renaming_to or f"{destination.name.partition('.')[0]}.{self.renames}"
            if self.killable(lambda: self._rename(destination)):
                self._renamed(destination)

    def _rename(self, destination: ModelDestination) -> None:
        rename_destination(self.domain, self.store, destination.name, destination.renaming_to, force=True)

    def _renamed(self, destination: ModelDestination) -> None:
        destination.name, destination.renaming_to = destination.renaming_to, ""

    def drop(self) -> None:
        """A forced drop, which waits for no holder. `apply` finishes it, and creates the destination again. One of the two is
        always there: a register without any is an error of its own."""
        both = [self.tables.orders, self.tables.aside]
        destination = both[0] if self.random.random() < 0.7 else both[1]
        if all(d.table_id for d in both) and not destination.renaming_to and self.drops < 3:
            self.tables.note_arrivals()
            discarded, returned = self.tables.unfinished(destination), self.tables.moving_to(destination.table_id)
            self.killable(lambda: self._drop(destination))
            if not self._is_listed(destination) or self._is_dropping(destination):
                self.drops += 1
                self.tables.discarded |= discarded
                self.tables.returned |= returned
                destination.table_id = ""

    def _drop(self, destination: ModelDestination) -> None:
        with suppress(MemberUnavailableError):
            drop_destination(self.domain, self.store, destination.name, force=True, wait_s=0)

    def _is_dropping(self, destination: ModelDestination) -> bool:
        return plan_drop(Domain(ROOT), self.store, destination.name).begun

    def apply(self) -> None:
        for destination in (self.tables.aside, self.tables.orders):
            if not destination.table_id:
                self.killable(lambda d=destination: self._apply(d))  # type: ignore[misc]
        if self.rules.narrow and self.tables.aside.table_id and not self.tables.aside.renaming_to:
            self.narrow = not self.narrow
            self.killable(lambda: self._declare_aside(narrow=self.narrow))
        if self.tables.orders.table_id:
            self._declare_again(self.tables.snapshot(self.tables.orders).destination)

    def _declare_aside(self, *, narrow: bool) -> None:
        """It takes small messages alone, or all again."""
        aside = self.rules.aside(self.tables.aside.name, narrow=narrow)
        if self._is_listed(self.tables.aside):
            apply_destinations(self.domain, [aside], lambda d, m: False)

    def _declare_again(self, orders: Destination) -> None:
        self.killable(lambda: self._follow_aside(orders))

    def _follow_aside(self, orders: Destination) -> None:
        """The error destination gets its present name."""
        aside = self.tables.aside
        if self.rules.keeps_failed and not aside.table_id:
            return  # a declaration without it is refused
        if self.rules.keeps_failed:
            orders = evolve(orders, error_destination=self.tables.snapshot(aside).destination.name)
        if not orders.same_declaration(self.tables.snapshot(self.tables.orders).destination):
            apply_destinations(self.domain, [orders], lambda d, m: False)

    def _apply(self, destination: ModelDestination) -> None:
        if self._is_listed(destination) and self._is_dropping(destination):
            self._drop(destination)
        if destination is self.tables.orders and self.rules.keeps_failed and not self.tables.aside.table_id:
            return  # its error destination comes first
        if not self._is_listed(destination):
            apply_destinations(self.domain, [self._declared(destination)], lambda d, m: False)
        if not self._is_dropping(destination):
            self.tables.begin_life(destination)

    def _declared(self, destination: ModelDestination) -> Destination:
        if destination is self.tables.aside:
            return self.rules.aside(destination.name, narrow=self.narrow)
        living = self.tables.aside.table_id and self.tables.snapshot(self.tables.aside).destination.name
        return self.rules.orders(destination.name, self.random.randint(2, 3), living or self.tables.aside.name)

    def _is_listed(self, destination: ModelDestination) -> bool:
        return destination.name in self.domain.register.names()

    def finish(self) -> None:
        for destination in (self.tables.aside, self.tables.orders):
            if destination.renaming_to:
                self._rename(destination)
                self._renamed(destination)
            if not destination.table_id:
                self._apply(destination)
        self._follow_aside(self.tables.snapshot(self.tables.orders).destination)
        self.narrow = False
        if self.rules.narrow:
            self._declare_aside(narrow=False)
        resume(self.domain, self.tables.orders.name)
