"""The background thread of a source or a client, and the housekeeping of a destination that it does.

A failed task of a BackgroundThread is a statistic, a log line and a growing pause (log/upkeep/health.py). Two tasks endanger a
promise when they fail, so their errors also reach the application, once for each series of failures:

    task                                       its error reaches
    ----                                       -----------------
    overdue acknowledgements                   the next call of its consumer
    writing the acknowledgement table          the same, or the next plan of its query, once it has failed for a minute
    the limit of a subscription                the log and the statistics; each plan applies the limit too
    housekeeping, the life-cycle log           the log, the statistics and `jmsq stat` alone

A Housekeeper keeps house for a destination while it holds the destination's lease in the store, so one process at a time does.

Features: C9, C13, C15, D5, T1, T4, T6, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from spark_jms.claims.batches.subscription_limit import FreeRecordLimits
from spark_jms.claims.batches.units_of_order import BarrierWatch
from spark_jms.claims.failures.expiration import ExpirationScan
from spark_jms.claims.records.life_cycle import FreeOutboxes, LifeCycleTable, opened_table
from spark_jms.claims.records.subscriptions import clear_leftovers
from spark_jms.claims.servers.stores import (
    home_of,
    keep_servers,
    label_of,
    not_durable,
    read_state,
    record_of,
    started,
    store_of,
    timed_stores,
)
from spark_jms.claims.transactions.transaction import Coordinators
from spark_jms.claims.transactions.transfer import Pledges, Transfers, recover_transfers
from spark_jms.claims.upkeep.move import MemberForwarder
from spark_jms.claims.upkeep.usage import ATTEMPTS, publish_usage
from spark_jms.core.destinations.destination import Subscription, is_temporary
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import record_server
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.stored_form import lease_record
from spark_jms.errors import TransferError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.limits import publishes_usage
from spark_jms.log.sending.units_of_order import forget_barriers
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.health import BackgroundFailure, Health, Monitor, failures_from_bytes
from spark_jms.log.upkeep.housekeeping import DUE_VERSIONS, HousekeepingRounds, published_sender_failures
from spark_jms.settings.destination import UNLIMITED
from spark_jms.store import (
    Delete,
    FencedError,
    Handle,
    Put,
    RecordCorruptError,
    RecordHeldError,
    Session,
    Store,
    StoreBusyError,
    StoreError,
)

T = TypeVar("T")
TABLE_EVERY_S = 1.0
ROOM_EVERY_S = 1.0
OVERDUE_EVERY_S = 0.1
OVERDUE_LONGEST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
_TOGETHER_S = 0.05
TABLE_RAISES_AFTER_S = 60.0
HEALTH_KEY = "health"
_LABEL = "housekeeping of "

# -- the thread --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Task:
    what: str
    run: Callable[[], object]
    every_s: float
    due_s: float
    longest_pause_s: float
    raises_after_s: float | None
    owner: str
    failing_since_s: float | None = None
    raised_for_s: float | None = None  # the beginning of the series whose error was kept for check()
    failures: int = 0


class BackgroundThread:
    """Runs tasks at intervals in one daemon thread, which the first task starts."""

    def __init__(self, name: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._tasks: list[_Task] = []
        self._unreported: dict[_Task, Exception] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._news = threading.Event()  # a task was added, or it is to end
        self._clock_s = clock_s
        self._monitor = Monitor(name)
        self._thread = threading.Thread(target=self._loop, name=f"jmsq-background {name}", daemon=True)

    def add(
        self,
        what: str,
        run: Callable[[], object],
        every_s: float,
        *,
        longest_pause_s: float = LONGEST_PAUSE_S,
        raises_after_s: float | None = None,
        owner: str = "",
    ) -> None:
        """`check(owner)` raises an error of this task when the task has failed for `raises_after_s` (None: never)."""
        task = _Task(
            what,
            run,
            every_s,
            self._clock_s() + every_s,
            max(longest_pause_s, every_s),
            raises_after_s,
            owner,
        )
        with self._lock:
            self._tasks.append(task)
            if not self._thread.is_alive() and not self._stop.is_set():
                self._thread.start()
        self._news.set()

    def add_consumer(
        self,
        name: str,
        flush_outbox: Callable[[], object],
        make_room: Callable[[], object],
        flush_life_cycle: Callable[[], object],
        *,
        write_overdue: Callable[[], object] | None = None,
        table_every_s: float = TABLE_EVERY_S,
    ) -> None:
        """The tasks of a consumer. `check(name)` raises their errors as the table above says. `write_overdue`: of a client, which
        acknowledges by itself; `table_every_s`: the pause between two writes of the acknowledgement table."""
        if write_overdue is not None:
            self.add(
                f"overdue acknowledgements of {name}",
                write_overdue,
                OVERDUE_EVERY_S,
                longest_pause_s=OVERDUE_LONGEST_PAUSE_S,
                raises_after_s=0.0,
                owner=name,
            )
        self.add(
            f"acknowledgement table of {name}",
            flush_outbox,
            table_every_s,
            raises_after_s=TABLE_RAISES_AFTER_S,
            owner=name,
        )
        self.add(f"limit of the subscription of {name}", make_room, ROOM_EVERY_S, owner=name)
        self.add(f"life-cycle log of {name}", flush_life_cycle, TABLE_EVERY_S)

    def remove(self, run: Callable[[], object]) -> None:
        with self._lock:
            for task in [task for task in self._tasks if task.run == run]:
                self._tasks.remove(task)
                self._unreported.pop(task, None)
                self._monitor.forget([task.what])

    def check(self, owner: str = "") -> None:
        """Raise the error of a task of `owner` that still fails, once for each series of failures."""
        if not self._unreported:  # as nearly always: clients ask twice for each message
            return
        with self._lock:
            task = next((task for task in self._unreported if task.owner == owner), None)
            error = self._unreported.pop(task) if task is not None else None
        if error is not None:
            raise error

    @property
    def health(self) -> Health:
        return self._monitor.health

    def close(self) -> None:
        self._stop.set()
        self._news.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def tick(self) -> None:
        """Run the tasks that are due."""
        now = self._clock_s()
        with self._lock:
            due = [task for task in self._tasks if task.due_s <= now]
        for task in due:
            try:
                task.run()
            except Exception as error:  # noqa: BLE001 - the monitor logs it, and check() may raise it
                self._failed(task, error, now)
            else:
                task.due_s = now + task.every_s
                if task.failures:
                    with self._lock:
                        task.failures, task.failing_since_s = 0, None
                        self._unreported.pop(task, None)
                    self._monitor.succeeded(task.what)

    def _failed(self, task: _Task, error: Exception, now: float) -> None:
        with self._lock:
            if task not in self._tasks:
                return  # removed meanwhile
            before = task.failing_since_s
            task.failures += 1
            since = now if before is None else before
            task.failing_since_s = since
            after = task.raises_after_s
            if after is not None and now - since >= after and task.raised_for_s != since:
                task.raised_for_s, self._unreported[task] = since, error
            task.due_s = now + min(task.longest_pause_s, task.every_s * 2 ** min(task.failures, 20))
        self._monitor.failed(task.what, error, int(task.every_s * 2000), int(task.longest_pause_s * 1000))

    def _loop(self) -> None:
        """It sleeps until a task is due; those that are due soon after run together."""
        while not self._stop.is_set():
            self._news.clear()
            self.tick()
            self._news.wait(self._idle_s())

    def _idle_s(self) -> float | None:
        """None: until a task is added."""
        with self._lock:
            due_s = min((task.due_s for task in self._tasks), default=None)
        return None if due_s is None else max(due_s - self._clock_s(), _TOGETHER_S)


# -- housekeeping ------------------------------------------------------------------------------------------------------


def published_failures(domain: Domain, store: Store, destination: str) -> tuple[BackgroundFailure, ...]:
    """What fails in the housekeeping of a destination: of the lease's last owner, and of senders without a consumer."""
    table_id = domain.log(destination).snapshot.table_id
    return _published_by_owner(store, table_id) + published_sender_failures(domain, destination)


def _published_by_owner(store: Store, table_id: str) -> tuple[BackgroundFailure, ...]:
    try:
        return failures_from_bytes(store.peek(lease_record(table_id)).get(HEALTH_KEY))
    except RecordCorruptError as error:
        now = now_ms()
        return (BackgroundFailure("housekeeping", f"{type(error).__name__}: {error}", 1, now, now, now),)


class Housekeeper:
    """Call `run` every few seconds: it does one round, unless another process has the lease. A failed step raises
    nothing: `health` has it, the log, and the lease's record, for `jmsq stat`."""

    ABANDONED_EVERY_S = 60.0  # looks for temporary destinations of dead contexts
    TRANSACTIONS_EVERY_S = 5.0  # looks for transactions of dead owners
    UNUSED_TRANSACTIONS_EVERY_S = 60.0  # the same, while it seems that the domain never had any

    def __init__(self, domain: Domain, store: Store, destination: str) -> None:
        self._domain, self._store, self._destination = domain, timed_stores(store), destination
        self._session = self._connected()
        self._lease: Handle | None = None
        self._table_id = ""  # of the lease
        self._states: dict[tuple[str, str, int], RecordSet] = {}  # of this round
        self._sessions: dict[str, Set[str]] = {}  # that lived in this round, by server
        self._away: dict[str, StoreError] = {}  # servers that did not answer in this round
        logs = {"messages": domain.log(destination), "acknowledgements": domain.acknowledgements(destination)}
        logs["messages"].refresh()
        keep_servers(store, logs["messages"])
        self._messages = logs["messages"]  # asked once for each file: the domain would read its register each time
        self.rounds = HousekeepingRounds(
            logs,
            self.is_done,
            clean_store=self._clear_leftovers,
            live_names=self.live_names,
            publish=self.publish_usage,
        )
        self._life_cycle: LifeCycleTable | None = None
        if self._messages.snapshot.destination.has_life_cycle:
            self._follow_life_cycle(domain.life_cycle(destination))
        self._live: dict[str, Subscription] = {}  # subscriptions that are not in the table
        self._transfers = Transfers(domain, self._messages)
        self._forwarder = self._new_forwarder()
        self._barriers = BarrierWatch(self._messages, all_rows=True)
        self._limits = FreeRecordLimits(self._messages, now_ms)
        self._outboxes = FreeOutboxes(logs["acknowledgements"])
        self._expiration = ExpirationScan(domain, self._store, self._messages, self._not_durable)
        # False: the service expiration of this process ends messages, except those of units of work
        self.searches = True
        self.scans_at_once = False  # every round searches for expired messages, whatever the domain's interval
        self._looked_for_abandoned_s = time.monotonic()
        self.pledges = Pledges(domain, home_of(self._store), self._messages)
        self._coordinators = Coordinators(domain, self._store)
        self._looked_for_transactions_s = -self.UNUSED_TRANSACTIONS_EVERY_S

    def _connected(self) -> Session:
        """Its label tells other processes which one keeps house."""
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return self._store.connect(
            f"{_LABEL}{self._destination}: process {os.getpid()} of {socket.gethostname()}, since {since}"
        )

    def holder(self) -> str:
        """The process with the lease, for people; "" when no other process has it now, or a release before this one."""
        session = store_of(self._store, HOME).sessions().get(self._keeper())
        label = session.label if session is not None else ""
        return label.rpartition(": ")[2] if label.startswith(_LABEL) else ""

    def _keeper(self) -> str:
        """The other live session that has the lease, or "". A look writes nothing, so it costs the consumers nothing, however many
        processes look."""
        info = store_of(self._store, HOME).info(lease_record(self._table_id))
        holder = "" if info is None else info.holder or ""
        return "" if holder == self._session.session_id else holder

    def live_names(self) -> list[str]:
        """A purge asks for them when its snapshot is fixed."""
        snapshot = self._messages.snapshot
        self._live = self._not_durable() if snapshot.destination.is_topic else {}
        return sorted(self._live)

    def is_done(self, subscription: str, member: int, sequences: Ranges) -> bool:
        """An old state is good enough: a message that is done stays done. So is one of an earlier subscription that was not
        durable and had the same name: its messages were sent before the present one began. While a server is away, nothing of
        its record sets counts as done; `jmsq stat` shows the failure."""
        return self._asked(subscription, member, lambda: self._is_done(subscription, member, sequences), False)

    def _asked(self, subscription: str, member: int, ask: Callable[[], T], away: T) -> T:
        """The answer about a record set, or `away` while its server is away: that is not asked again in this round."""
        server = record_server(self._messages.snapshot.destination, subscription, member)
        if server in self._away:
            return away
        try:
            return ask()
        except RecordCorruptError:
            raise
        except StoreError as error:
            if server == HOME:
                raise
            self._away[server] = error
            return away

    def _is_done(self, subscription: str, member: int, sequences: Ranges) -> bool:
        floor = self._floor(subscription, member)
        return sequences.last <= floor or self._state(subscription, member).is_done(sequences)

    def _floor(self, subscription: str, member: int) -> int:
        live = self._live.get(subscription)
        if live is not None:
            return live.floor(member, self._messages.snapshot.last_sequence(member))
        return self._messages.snapshot.destination.start_floor(subscription, member)

    def _state(self, subscription: str, member: int) -> RecordSet:
        """Read once a round. The uses of subscriptions were read by `live_names`, once for all."""
        key = (self._messages.snapshot.table_id, subscription, member)
        if key not in self._states:
            self._states[key] = self.state_now(subscription, member)
        return self._states[key]

    def _unattended(self, subscription: str, member: int) -> RecordSet | None:
        """The same; None where a consumer lives."""
        state, server = (
            self._state(subscription, member),
            record_server(self._messages.snapshot.destination, subscription, member),
        )
        if server not in self._sessions:
            self._sessions[server] = store_of(self._store, server).sessions().keys()
        return None if state.is_attended(self._sessions[server]) else state

    def state_now(self, subscription: str, member: int) -> RecordSet:
        label = label_of(self._destination, subscription, member)
        found = read_state(self._store, record_of(self._messages.snapshot, subscription, member), label)
        return started(found, self._messages.snapshot, member, self._floor(subscription, member))

    def _clear_leftovers(self) -> None:
        messages = self._domain.log(self._destination)
        clear_leftovers(self._store, self._session, messages)
        for server in messages.snapshot.destination.servers_in_use():
            if server not in self._away:
                self._outboxes.flush_named(self._store, self._session, messages.snapshot.table_id, server)

    def _not_durable(self) -> dict[str, Subscription]:
        return not_durable(self._store, self._messages.snapshot.table_id)

    def _expire(self) -> None:
        if not (self.searches or self._messages.snapshot.destination.handles_units_of_work):
            return
        self.rounds.total.expired_messages += self._expiration.run(at_once=self.scans_at_once)

    def _recover_transfers(self) -> None:
        snapshot = self._domain.log(self._destination).snapshot
        names = [*snapshot.destination.subscription_names(), *self._live]
        recover_transfers(self._transfers, self._session, snapshot, self._unattended, names, pledges=self.pledges)

    def _recover_transactions(self) -> None:
        """Whose owners died. The look goes through the names of all records, so a domain without transactions has it rarely."""
        now_s = time.monotonic()
        since_s = now_s - self._looked_for_transactions_s
        if since_s < self.TRANSACTIONS_EVERY_S or is_temporary(self._destination):
            return
        if since_s < self.UNUSED_TRANSACTIONS_EVERY_S and not self._coordinators.seem_used():
            return
        self._looked_for_transactions_s = now_s
        problems = self._coordinators.recover()
        if problems:
            raise TransferError(f"{len(problems)} step(s) of transactions wait: {problems[0]}; see `jmsq transactions`")

    def _pass_barriers(self) -> None:
        """Of record sets without consumers; and those of a topic are forgotten that all subscriptions have passed."""
        snapshot = self._messages.refresh()
        declared = snapshot.destination
        if declared.slots is None or not declared.slots.barriers:
            return
        for subscription in [*declared.subscription_names(), *self.live_names()]:
            members = {b.old for b in declared.slots.barriers}
            states = {
                member: partial(self._state, subscription, member)
                for member in members
                if record_server(declared, subscription, member) not in self._away
            }
            live = self._live.get(subscription)
            self._barriers.look(snapshot, subscription, states, live.floors if live else None)
        forget_barriers(self._messages, declared.slots.barriers, self._live)

    def _new_forwarder(self) -> MemberForwarder:
        return MemberForwarder(self._domain, self._store, self._destination)

    def _forward(self) -> None:
        """Messages of members without consumers."""
        problems = self._forwarder.run().problems
        if problems:
            raise TransferError(f"{len(problems)} step(s) of forwarding wait: {problems[0]}")

    def _enforce_limits(self) -> None:
        """Of subscriptions."""
        snapshot = self._messages.refresh()
        known = [*snapshot.destination.subscriptions.values(), *self._live.values()]
        self._limits.enforce(self._session, snapshot, known, self._unattended, self._away)

    def _flush_outboxes(self) -> None:
        """Of record sets without a live consumer."""
        snapshot = self._messages.snapshot
        declared = snapshot.destination
        for subscription in [*declared.subscription_names(), *self._live]:
            free = {
                member: record_of(snapshot, subscription, member)
                for member in declared.member_ids
                if self._asked(subscription, member, partial(self._waits, subscription, member), False)
            }
            if free:
                self._outboxes.flush(self._session, snapshot.table_id, subscription, free)

    def _waits(self, subscription: str, member: int) -> bool:
        """Rows of the acknowledgement table wait in the record set, and no consumer writes them."""
        state = self._unattended(subscription, member)
        return state is not None and bool(state.outbox)

    def _follow_life_cycle(self, table: DeltaLog | None) -> None:
        if table is not None:
            self._life_cycle = LifeCycleTable(table, self._messages.snapshot.table_id)
            self.rounds.add("life cycle", table)

    def _log_sent(self) -> None:
        """Before the purge, which takes the files that tell when messages were sent."""
        if not self._messages.snapshot.destination.message_logging_enabled:
            return
        if self._life_cycle is None:
            self._follow_life_cycle(opened_table(self._domain, self._destination))
        assert self._life_cycle is not None
        self._life_cycle.write_sent(self._messages.refresh())

    def publish_usage(self) -> bool:
        """For senders. On a server that is away, everything counts. False: other processes were faster each time."""
        if not publishes_usage(self._domain, self._messages.refresh().destination):
            return True
        state, live = self._state_now_unless_away, lambda _: self.live_names()
        return any(publish_usage(self._domain, self._messages, state, live) for _ in range(ATTEMPTS))

    def _state_now_unless_away(self, snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
        error = self._away.get(record_server(snapshot.destination, subscription, member))
        if error is not None:
            raise error
        return self.state_now(subscription, member)  # what the round began with may be older than what is published

    def _delete_abandoned(self) -> None:
        """Temporary destinations of dead contexts. The housekeeping of a temporary one has a store of its own."""
        now_s = time.monotonic()
        if now_s - self._looked_for_abandoned_s >= self.ABANDONED_EVERY_S and not is_temporary(self._destination):
            self._looked_for_abandoned_s = now_s
            temporary, sessions = self._domain.temporary, store_of(self._store, HOME).sessions
            self.rounds.monitor.run("temporary destinations", lambda: temporary.delete_abandoned(sessions))

    def run(self) -> bool:
        """False when another process has the lease."""
        self.rounds.monitor.run("clock", self._domain.clock.check)
        table_id = self._domain.log(self._destination).refresh().table_id
        if self._lease is not None and self._table_id != table_id:  # dropped and created again
            self._lease.close()
            self._lease = None
        if self._lease is None:
            name, self._table_id = lease_record(table_id), table_id
            if self._keeper():
                return False
            self._forwarder = self._new_forwarder()  # another process may have seen consumers meanwhile
            try:
                self._lease = self._session.open(name)
            except RecordHeldError:
                self._session.cancel(name)
                return False
            except FencedError:
                return self._reconnect()
        try:
            self._lease.objects()  # raises when the lease was taken from us
            self.begin_round()
            self._leave_stopped()
            self.rounds.monitor.run("life-cycle log", self._log_sent)
            self.rounds.monitor.run("expiration", self._expire)
            self.rounds.round()
            self.rounds.monitor.run("recovery of transfers", self._recover_transfers)
            self.rounds.monitor.run("recovery of transactions", self._recover_transactions)
            self.rounds.monitor.run("barriers of units of order", self._pass_barriers)
            if self._messages.snapshot.destination.forward_delay_ms is not None:
                self.rounds.monitor.run("forwarding", self._forward)
            if self._messages.snapshot.destination.messages_limit_override != UNLIMITED:
                self.rounds.monitor.run("limit of subscriptions", self._enforce_limits)
            self.rounds.monitor.run("acknowledgements without a consumer", self._flush_outboxes)
            self.rounds.monitor.run("usage", self.publish_usage)
            self._report_away()
            self._delete_abandoned()
            self._publish(self._lease)
        except FencedError:
            return self._reconnect()
        return True

    def begin_round(self) -> None:
        """States are read once in a round, and servers asked."""
        for known in (self._states, self._sessions, self._away):
            known.clear()

    def _leave_stopped(self) -> None:
        """Their administrator may do with their stores what he likes: nothing asks them, and nothing there counts as done."""
        for server in self._messages.refresh().destination.stopped:
            self._away[server] = StoreBusyError(f"an administrator has stopped server {server}")

    def _report_away(self) -> None:
        declared = self._messages.snapshot.destination
        for server in declared.servers_in_use():
            what, error = f"housekeeping on server {server}", self._away.get(server)
            if error is not None and server not in declared.stopped:
                self.rounds.monitor.failed(what, error)
            else:
                self.rounds.monitor.succeeded(what)

    def finish(self) -> None:
        """A last round, if it is overdue: a process that ends before its first round must not leave all of them to others.
        Raises nothing."""

        def last_round() -> None:
            if self._domain.log(self._destination).versions_since_checkpoint() >= DUE_VERSIONS:
                self.run()

        self.rounds.monitor.run("last round", last_round)

    @property
    def health(self) -> Health:
        return self.rounds.monitor.health

    def _publish(self, lease: Handle) -> None:
        """Write the health into the lease's record when it has changed: no write while everything works."""
        value = self.health.to_bytes() if self.health.failures else None
        if value == lease.read(HEALTH_KEY):
            return
        lease.commit([Put(HEALTH_KEY, value) if value else Delete(HEALTH_KEY)])

    def _reconnect(self) -> bool:
        """Our session ended while we slept: the next `run` tries with a new one."""
        self._lease = None
        self._session.close()
        self._session = self._connected()
        return False

    def close(self) -> None:
        self._coordinators.close()
        self._session.close()
