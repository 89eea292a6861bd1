"""The coordinators of a domain's transactions: taken by commits, completed after a crash.

core/transactions/transaction.py has the rules.

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from spark_jms.claims.servers.stores import (
    home_of,
    label_of,
    opened_state,
    operations,
    read_state,
    store_of,
    timed_stores,
)
from spark_jms.claims.transactions.last_resource import LastResources
from spark_jms.claims.transactions.transfer import log_of_target, outcome_at
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import delay_end_ms
from spark_jms.core.transactions.transaction import (
    COORDINATOR_KEY,
    COORDINATORS_PREFIX,
    MAX_COORDINATORS,
    CoordinatorState,
    OpenTransaction,
    TransactionOrigin,
    TransactionState,
    TransactionStep,
    coordinator_from_bytes,
    coordinator_record,
    coordinator_to_bytes,
    target_step,
    waits_for_targets,
    with_ticket,
)
from spark_jms.core.transactions.transfer import Ticket, TransferTarget
from spark_jms.errors import (
    CommitOutcomeUnknownError,
    FormatVersionError,
    IllegalStateException,
    JmsqError,
    LastResourceError,
    OptionError,
    RecordSetError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.sending.transfer import abort_transfer, append_transfer, has_overtaken
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import (
    FencedError,
    Handle,
    Put,
    RecordCorruptError,
    RecordHeldError,
    Session,
    Store,
    StoreClosedError,
    StoreError,
)

log = logging.getLogger("spark_jms")
_DAMAGE = (RecordSetError, FormatVersionError, RecordCorruptError)  # of one coordinator


class Coordinator:
    """A coordinator's record, open in this process. Not thread-safe."""

    def __init__(self, slot: int, handle: Handle) -> None:
        self.record, self._handle = coordinator_record(slot), handle
        stored = coordinator_from_bytes(handle.read(COORDINATOR_KEY), self.record)
        self.state = stored or CoordinatorState(slot, secrets.token_hex(8))

    def begin(self, targets: Iterable[TransferTarget], origins: Iterable[TransactionOrigin], now: int) -> None:
        self._write(self.state.begun(targets, origins, f"process {os.getpid()} of {socket.gethostname()}", now))

    def prepare(self, targets: Iterable[TransferTarget], resource: str) -> None:
        """PREPARED: the last resource decides."""
        self._write(self.state.prepared(targets, resource))

    def decide(self, targets: Iterable[TransferTarget] | None = None) -> None:
        """COMMITTED, from now on. `targets` None: as PREPARED."""
        self._write(self.state.committed(targets))

    def roll_back(self) -> None:
        self._write(self.state.rolling_back())

    def end(self) -> None:
        self._write(self.state.ended())

    def use_fresh_numbers(self, logs: Iterable[DeltaLog], resource_knows: Callable[[Ticket], bool]) -> None:
        """When a target or the last resource knows the next number, this record was lost or restored from an older copy."""
        ticket = self.state.next_ticket
        if any(has_overtaken(one, ticket) for one in logs) or resource_knows(ticket):
            self.state = self.state.renewed(secrets.token_hex(8))

    def reopened(self, handle: Handle) -> None:
        """What is stored counts."""
        self._handle = handle
        self.state = coordinator_from_bytes(handle.read(COORDINATOR_KEY), self.record) or self.state

    def _write(self, state: CoordinatorState) -> None:
        self._handle.commit([Put(COORDINATOR_KEY, coordinator_to_bytes(state))])
        self.state = state

    def close(self) -> None:
        self._handle.close()


class Coordinators:
    """The coordinators that this process takes and completes. Thread-safe. Opens its session when the first coordinator is taken.
    The lock is not held while a transaction is completed: a server that hangs keeps no other transaction from its coordinator."""

    def __init__(self, domain: Domain, store: Store) -> None:
        """`store`: the stores of all servers, each of which is asked for a limited time."""
        self._domain, self._store = domain, timed_stores(store)
        self.resources = LastResources()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._taken: dict[int, Coordinator] = {}
        self._kept: list[Coordinator] = []  # of those, the ones that no commit uses

    def take(self) -> Coordinator:
        """One that has no open transaction, until `keep` or `give_back`: one that this process keeps, or else another. What a dead
        owner left open there is completed first; a transaction that cannot end yet keeps its coordinator. Raises
        IllegalStateException when all of them are in use."""
        with self._lock:
            if self._kept:
                return self._kept.pop()
        held = {name for name, info in home_of(self._store).infos(COORDINATORS_PREFIX).items() if info.holder}
        for slot in range(MAX_COORDINATORS):
            coordinator = None if coordinator_record(slot) in held else self._taken_up(slot)
            if coordinator is None:
                continue
            is_free = False
            try:
                is_free = not self._completed(coordinator)
            finally:
                if not is_free:
                    self.give_back(coordinator)
            if is_free:
                return coordinator
        raise IllegalStateException(f"{MAX_COORDINATORS} transactions of the domain are open: see `jmsq transactions`")

    def keep(self, coordinator: Coordinator) -> None:
        """A commit has ended, and the next one of this process takes its coordinator again, without a write of the store. So a process
        has as many as it has made commits at once, however many sessions it has."""
        with self._lock:
            is_free = coordinator.state.open is None
            if is_free and self._taken.get(coordinator.state.slot) is coordinator:
                self._kept.append(coordinator)
        if not is_free:
            self.give_back(coordinator)

    def _taken_up(self, slot: int) -> Coordinator | None:
        """Opened, and this process's until `give_back`. None when this or another process has it, and when it cannot be read."""
        with self._lock:
            coordinator = None if slot in self._taken else self._opened(slot)
            if coordinator is not None:
                self._taken[slot] = coordinator
            return coordinator

    def give_back(self, coordinator: Coordinator) -> None:
        """From now on other processes may complete the transactions that are open there."""
        with self._lock:
            if self._taken.get(coordinator.state.slot) is coordinator:
                del self._taken[coordinator.state.slot]
                self._release(coordinator)

    def _release(self, coordinator: Coordinator) -> None:
        try:
            coordinator.close()
        except StoreError:
            self._end_session()
            raise

    def _end_session(self) -> None:
        """The store did not take the release of a coordinator. While the session lived, no process could open that record."""
        session, self._session = self._session, None
        self._taken.clear()
        self._kept.clear()
        if session is not None:
            with suppress(StoreError):
                session.close()

    def complete(self, coordinator: Coordinator) -> tuple[str, ...]:
        """Take its open transaction as far as it gets: one that nothing has decided is rolled back. Returns why it does not end; ()
        when it has ended. Raises FencedError when another process has the coordinator by now."""
        found = coordinator.state.open
        if found is not None and found.state is TransactionState.PREPARED:
            try:
                committed = self.resources.find(found.resource).is_committed(found.ticket)
            except (LastResourceError, OptionError) as error:
                return (f"in doubt: {error}",)
            if committed:
                coordinator.decide()
            else:
                coordinator.roll_back()
        return _complete(self._domain, self._store, coordinator)

    def force(self, ticket: str, *, commit: bool) -> tuple[str, ...]:
        """Decide in place of a last resource that is lost, whatever it has decided. Returns as `complete` does. Raises
        IllegalStateException unless the transaction is in doubt and its owner is dead."""
        for slot in _left_open(home_of(self._store)).slots:
            coordinator = self._taken_up(slot)
            if coordinator is None:
                continue
            try:
                found = coordinator.state.open
                if found is None or str(found.ticket) != ticket or found.state is not TransactionState.PREPARED:
                    continue
                if commit:
                    coordinator.decide()
                else:
                    coordinator.roll_back()
                log.warning("transaction %s was decided by hand: %s", ticket, "commit" if commit else "rollback")
                return _complete(self._domain, self._store, coordinator)
            finally:
                self.give_back(coordinator)
        raise IllegalStateException(
            f"no transaction {ticket} is in doubt with a dead owner, and only such a one can be decided by hand: see "
            "`jmsq transactions`"
        )

    def has_decided(self, coordinator: Coordinator) -> bool:
        """Whether a decision was written by a call that failed. The coordinator is opened again: an earlier write cannot follow.
        Raises CommitOutcomeUnknownError when the store cannot tell."""
        ticket = coordinator.state.next_ticket if coordinator.state.open is None else coordinator.state.open.ticket
        try:
            with self._lock:
                if self._session is None or self._taken.get(coordinator.state.slot) is not coordinator:
                    raise StoreClosedError(
                        "its session has ended, and another process may have completed the transaction"
                    )
                try:
                    with suppress(StoreError):
                        coordinator.close()
                    coordinator.reopened(self._session.open(coordinator.record))
                except StoreError:
                    self._end_session()
                    raise
        except (StoreError, OSError, RecordSetError) as error:
            raise CommitOutcomeUnknownError(
                f"the store failed while transaction {ticket} was decided ({error}): it is committed or rolled back as a whole; "
                "`jmsq transactions` shows it while it is open"
            ) from error
        found = coordinator.state.open
        return found is not None and found.ticket == ticket and found.state is TransactionState.COMMITTED

    def seem_used(self) -> bool:
        """The first slot has a record, which the first transaction made. False also where a salvage has left only others."""
        return home_of(self._store).info(coordinator_record(0)) is not None

    def recover(self) -> tuple[str, ...]:
        """Complete what dead owners left open. Returns why transactions do not end: what fails for one keeps no other."""
        left = _left_open(home_of(self._store))
        problems = list(left.damaged)
        for slot in left.slots:
            try:
                problems += self._recover(slot)
            except (JmsqError, StoreError, OSError) as error:
                problems.append(f"{coordinator_record(slot)}: {type(error).__name__}: {error}")
        return tuple(problems)

    def _recover(self, slot: int) -> tuple[str, ...]:
        coordinator = self._taken_up(slot)
        if coordinator is None:
            return ()
        try:
            return self._completed(coordinator)
        finally:
            self.give_back(coordinator)

    def _completed(self, coordinator: Coordinator) -> tuple[str, ...]:
        """As `complete`. What was not foreseen keeps this transaction open, and no other."""
        try:
            return self.complete(coordinator)
        except (JmsqError, StoreError, OSError):
            raise
        except Exception as error:
            log.exception("the transaction of %s cannot be completed", coordinator.record)
            return (f"{coordinator.record}: {type(error).__name__}: {error}",)

    def _opened(self, slot: int) -> Coordinator | None:
        """None when another process holds it, and when it is damaged or of a later spark-jms."""
        name = coordinator_record(slot)
        for _ in range(2):
            session = self._connected()
            try:
                handle = session.open(name)
            except RecordHeldError:
                session.cancel(name)
                return None
            except RecordCorruptError as error:
                _leave_alone(error)
                return None
            except FencedError:  # this process stood still, and the session ended: so did all it held
                self._end_session()
                continue
            try:
                return Coordinator(slot, handle)
            except _DAMAGE as error:
                handle.close()
                _leave_alone(error)
                return None
            except BaseException:
                handle.close()
                raise
        return None

    def _connected(self) -> Session:
        if self._session is None:
            self._session = home_of(self._store).connect("transactions")
        return self._session

    def close(self) -> None:
        with self._lock:
            self._taken.clear()
            self._kept.clear()
            if self._session is not None:
                self._session.close()


def _leave_alone(error: Exception) -> None:
    log.warning("a coordinator of transactions is left alone: %s", error)


@dataclass(frozen=True)
class TransactionLook:
    """An open transaction, and why it does not end: () while its owner lives."""

    transaction: OpenTransaction
    owner_lives: bool
    waits: tuple[str, ...]


@dataclass(frozen=True)
class TransactionLooks:
    """`open`: oldest first. `damaged`: by the coordinator's record, why it cannot be read."""

    open: tuple[TransactionLook, ...]
    damaged: Mapping[str, str]


def open_transactions(domain: Domain, store: Store) -> TransactionLooks:
    """Changes nothing."""
    home, found, damaged = home_of(store), list[TransactionLook](), dict[str, str]()
    for name, info in home.infos(COORDINATORS_PREFIX).items():
        try:
            state = coordinator_from_bytes(home.peek(name).get(COORDINATOR_KEY), name)
        except _DAMAGE as error:
            damaged[name] = f"{type(error).__name__}: {error}"
            continue
        if state is not None and state.open is not None:
            waits = tuple(_waits(domain, store, state.open))
            found.append(TransactionLook(state.open, info.holder is not None, waits))
    return TransactionLooks(tuple(sorted(found, key=lambda look: look.transaction.made_ms)), damaged)


def _waits(domain: Domain, store: Store, found: OpenTransaction) -> Iterator[str]:
    if found.state is TransactionState.PREPARED:
        yield f"database {found.resource}: decision"
    if not found.is_decided:
        return
    for target in found.targets:
        try:
            step = target_step(found.state, outcome_at(domain, target, found.ticket))
            if step is not None:
                yield f"{target.destination}: {step.name.lower()}"
        except (JmsqError, OSError) as error:
            yield f"{target.destination}: {type(error).__name__}: {error}"
    for origin in found.origins:
        try:
            if _has_pledge(store, origin, found):
                yield f"{_label(origin)}: acknowledge"
        except (JmsqError, StoreError, OSError) as error:
            yield f"{_label(origin)}: {type(error).__name__}: {error}"


@dataclass(frozen=True)
class _LeftOpen:
    """`slots` have transactions whose owner is dead; `damaged`: why a coordinator cannot be read, which keeps back no other."""

    slots: tuple[int, ...]
    damaged: tuple[str, ...]


def _left_open(home: Store) -> _LeftOpen:
    slots, damaged = list[int](), list[str]()
    for name, info in home.infos(COORDINATORS_PREFIX).items():
        if info.holder is None:
            try:
                state = coordinator_from_bytes(home.peek(name).get(COORDINATOR_KEY), name)
            except _DAMAGE as error:
                damaged.append(f"{type(error).__name__}: {error}")
                continue
            if state is not None and state.open is not None:
                slots.append(state.slot)
    return _LeftOpen(tuple(slots), tuple(damaged))


def _complete(domain: Domain, store: Store, coordinator: Coordinator) -> tuple[str, ...]:
    """See `Coordinators.complete`; no last resource decides."""
    if coordinator.state.open is None:
        return ()
    if coordinator.state.open.state is TransactionState.PREPARING:
        coordinator.roll_back()
    found = coordinator.state.open
    committed = found.state is TransactionState.COMMITTED
    problems = [text for target in found.targets if (text := _complete_target(domain, found, target))]
    if not (committed and problems and _waits_for_targets(domain, found)):
        for origin in found.origins:
            text = _complete_origin(domain, store, found, origin)
            if text and committed:  # the others are returned by their next holder
                problems.append(text)
    if problems:
        for text in problems:
            log.warning("transaction %s is %s and does not end yet: %s", found.ticket, found.state.value, text)
        return tuple(problems)
    coordinator.end()
    return ()


def _waits_for_targets(domain: Domain, found: OpenTransaction) -> bool:
    try:
        return waits_for_targets(outcome_at(domain, target, found.ticket) for target in found.targets)
    except (JmsqError, OSError):
        return True  # one cannot be asked


def _complete_target(domain: Domain, found: OpenTransaction, target: TransferTarget) -> str:
    try:
        while (step := target_step(found.state, outcome_at(domain, target, found.ticket))) is not None:
            target_log = log_of_target(domain, target)
            if target_log is None:
                continue  # it was dropped since we looked
            if step is TransactionStep.APPEND:
                append_transfer(target_log, target, found.ticket)
            elif step is TransactionStep.ABORT:
                abort_transfer(target_log, target, found.ticket)
            else:
                return f"{target.destination}: blocked: a staged file is missing, or the table was restored"
    except (JmsqError, OSError) as error:
        return f"{target.destination}: {type(error).__name__}: {error}"
    return ""


def _complete_origin(domain: Domain, store: Store, found: OpenTransaction, origin: TransactionOrigin) -> str:
    """A consumer that holds the record ends the pledge itself, before it plans."""
    try:
        if not _has_pledge(store, origin, found):
            return ""
        with store_of(store, origin.server).connect("transactions") as session:
            try:
                handle = session.open(origin.record)
            except RecordHeldError:
                session.cancel(origin.record)
                return f"{_label(origin)}: its consumer has not acknowledged its messages yet"
            with handle:
                _end_pledges(domain, handle, found, origin)
    except (JmsqError, StoreError, OSError) as error:
        return f"{_label(origin)}: {type(error).__name__}: {error}"
    return ""


def _end_pledges(domain: Domain, handle: Handle, found: OpenTransaction, origin: TransactionOrigin) -> None:
    before, delay_ms, now = opened_state(handle, _label(origin)), 0, now_ms()
    if origin.destination in domain.destinations():
        declared = domain.log(origin.destination).refresh().destination
        before = before.logging(is_on=declared.message_logging_enabled, now_ms=now)
        delay_ms = declared.redelivery_delay_ms
    handle.commit(operations(before, _ended(before, found, handle.epoch, now, delay_ms)))


def _ended(state: RecordSet, found: OpenTransaction, epoch: int, now: int, delay_ms: int) -> RecordSet:
    if found.state is TransactionState.COMMITTED:
        return state.fulfilled(found.ticket, epoch, now)
    return state.withdrawn(found.ticket, now, delay_end_ms(now, delay_ms))


def _has_pledge(store: Store, origin: TransactionOrigin, found: OpenTransaction) -> bool:
    state = read_state(store_of(store, origin.server), origin.record, _label(origin))
    return bool(with_ticket(state.pledges, found.ticket))


def _label(origin: TransactionOrigin) -> str:
    return label_of(origin.destination, origin.subscription, origin.member)
