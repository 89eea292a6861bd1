"""The quotas of a domain: their limits, room for the messages of its senders, and what destinations hold.

core/limits/quota.py has the theory.

    ROOT/_jmsq/quotas/<quota>               its settings, which `apply` writes
    ROOT/_jmsq/quota-ledgers/<ledger>/      its ledger: quota_ledger.py

A shared quota has one ledger, called as the quota; of one that is not shared, each member of each destination has its own:
`<quota>@<destination>+<member>`, or `<quota>@<destination>` where it is the only one. A sender that waits looks at the ledger and at
what consumers have published every few milliseconds. Consumers publish a little after they have finished something. So a sender that
finds no room has it published by `recount` at once, where its process has the stores: first, from time to time while it waits, and
once more before it fails.

A QuotaObserver looks at the logs of the destinations for a ledger. A look costs one question for the log's next version and one
for the published usage. What follows from both is kept until one of them changes. A destination of the quota that cannot be read
(its log is damaged, its folder cannot be opened) keeps in the ledger what it had, and the others continue. Only its own senders
get the error.

Features: T1, T2 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.limits.quota import (
    RENEW_S,
    RESERVED_S,
    WAITING_S,
    Grant,
    Limit,
    MessageUsage,
    Observation,
    OpenRequest,
    PublishedUsage,
    QuotaState,
    Request,
    total,
    transaction_id,
)
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import (
    DomainError,
    InvalidDestinationError,
    JmsqError,
    LargerThanQuotaError,
    ModuleFileError,
    QuotaExceededError,
)
from spark_jms.log.limits.quota_ledger import LEDGERS, LedgerEntry, QuotaLedger
from spark_jms.log.limits.usage import UsageFiles
from spark_jms.log.sending.send import TransactionId, needs_of
from spark_jms.log.tables.commit import Decision, commit
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import NamedFiles, Storage, now_ms
from spark_jms.settings.quota import SERVER_QUOTA, QuotaSettings, from_stored, to_stored

log = logging.getLogger("spark_jms")
QUOTAS = "_jmsq/quotas"
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.002, 0.02
_RECOUNT_EVERY_S, _SHARE_OF_TIME = 0.1, 0.05
_ATTEMPTS = 200

# -- limits, and room for messages -------------------------------------------------------------------------------------


class Quotas:
    """The quotas of a domain. Thread-safe. `log_of` gives a destination's log by name, `names` are those of all destinations, the
    temporary ones too. `clock_ms` is for people: nothing is judged by it."""

    def __init__(
        self,
        storage: Storage,
        usages: UsageFiles,
        log_of: Callable[[str], DeltaLog],
        names: Callable[[], Iterable[str]] = tuple,
        clock_ms: Callable[[], int] = now_ms,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self._log_of, self._clock_ms, self.monotonic_s = storage, log_of, clock_ms, monotonic_s
        self._names = names
        # Publishes the usage of destinations; raises nothing. None: this process has no stores.
        self.recount: Callable[[Collection[str]], object] | None = None
        self._observer = QuotaObserver(usages, log_of)
        self._files = NamedFiles(storage, QUOTAS)
        self._lock = threading.Lock()
        self._ledgers: dict[str, QuotaLedger] = {}
        self._read: dict[
            str, tuple[bytes, QuotaSettings]
        ] = {}  # by name: the newest content, which every send asks for

    # -- the resources --------------------------------------------------------------------------------------------
    def names(self, *, servers: bool = False) -> list[str]:
        """Also of the quotas of servers, or without them."""
        return [name for name in self._files.names() if servers or not name.startswith(SERVER_QUOTA)]

    def server_quotas(self) -> dict[str, QuotaSettings]:
        """By server, those that have or had a maximum."""
        names = [name for name in self._files.names() if name.startswith(SERVER_QUOTA)]
        return {name.removeprefix(SERVER_QUOTA): self.get(name) for name in names}

    def put_server(self, server: str, quota: QuotaSettings) -> None:
        """The quota of a server. A server that never had a maximum gets no file."""
        if quota.has_maximum or SERVER_QUOTA + server in self._files.names():
            self.put(SERVER_QUOTA + server, quota)

    def get(self, name: str) -> QuotaSettings:
        """Raises DomainError, which lists the quotas."""
        data = self._files.get(name)
        if data is None:
            raise DomainError(
                f"{self._storage.uri} has no quota {name!r} (there are: {', '.join(self.names()) or 'none'}): add it under "
                "`quotas:` in the module file"
            )
        known = self._read.get(name)
        if known is not None and known[0] == data:
            return known[1]
        try:
            self._read[name] = data, from_stored(json.loads(data))
            return self._read[name][1]
        except (ValueError, KeyError, TypeError, AttributeError, ModuleFileError) as error:
            raise DomainError(
                f"{self._files.shown(name)} is damaged, or a later spark-jms wrote it ({error!r}): apply the module file again, "
                "or install that version"
            ) from error

    def put(self, name: str, quota: QuotaSettings) -> None:
        """Durable on return."""
        self._files.put(name, json.dumps(to_stored(quota), indent=1).encode())

    def limit(self, name: str) -> Limit:
        quota = self.get(name)
        return Limit(quota.messages_maximum, quota.bytes_maximum, quota.shared, quota.policy)

    def ledger(self, quota: str, limit: Limit, destination: str, member: int | None = None) -> QuotaLedger:
        """`member` None: the destination has one."""
        part = destination if member is None else f"{destination}+{member}"
        name = quota if limit.shared else f"{quota}@{part}"
        with self._lock:
            return self._ledgers.setdefault(name, QuotaLedger(self._storage, name))

    def members_apart(self, quota: str, declared: Destination) -> Sequence[int | None]:
        """The members of the destination that have the quota's maximum each for itself; (None,): they have none, or there is one."""
        members = [member for member in declared.member_ids if declared.quota_of(member) == quota]
        return [None] if len(declared.member_ids) == 1 or self.limit(quota).shared else members

    def _ledgers_of(self, destination: str) -> list[QuotaLedger]:
        """All that count the destination."""
        declared = self._log_of(destination).snapshot.destination
        return [
            self.ledger(quota, self.limit(quota), destination, member)
            for quota in declared.quotas
            for member in self.members_apart(quota, declared)
        ]

    def ledgers(self, quota: str) -> list[QuotaLedger]:
        """Those with entries."""
        found = (QuotaLedger(self._storage, name) for name in self._ledger_names())
        return [ledger for ledger in found if ledger.quota == quota]

    def _ledger_names(self) -> list[str]:
        return sorted({info.path.removeprefix(f"{LEDGERS}/").split("/", 1)[0] for info in self._storage.list(LEDGERS)})

    # -- senders --------------------------------------------------------------------------------------------------
    def reserve(
        self, request: Request, quota: str, epoch: int, wait_s: float, *, stays: bool, member: int | None = None
    ) -> Grant | None:
        """Room in the quota, or in what a `member` has of it, by the declaration of this epoch. None: the quota does not count the
        destination any more. Raises
        QuotaExceededError when there is none within `wait_s`, when the messages are more than the maximum, or when the
        destination gets another quota while this waits. A request that `stays` keeps its place for a few seconds then."""
        deadline = time.monotonic() + wait_s
        attempt, table = _Attempt(request, member), request.destination
        try:
            while True:
                with _named(quota, table):
                    grant = self._try(attempt, quota, epoch, waits=wait_s > 0 or stays)
                if grant is not None:
                    return grant
                left_s = deadline - time.monotonic()
                recounts = self._recounts(attempt, quota, left_s)
                if left_s > 0 and not recounts:
                    time.sleep(attempt.pause(left_s))
                declared = self._log_of(table).refresh().destination
                if quota not in declared.quotas:
                    if attempt.ledger is None:
                        return None
                    raise QuotaExceededError(
                        f"{table} got the quota {declared.quota or 'none'} while {request.need.messages:,} message(s) waited for "
                        f"room in {quota}"
                    )
                if left_s <= 0 and not recounts:
                    raise QuotaExceededError(self._refusal(attempt, quota))
                epoch = declared.epoch
        except BaseException as error:
            if attempt.ledger is not None and not (stays and isinstance(error, QuotaExceededError)):
                self._withdraw(attempt.ledger, attempt.request)
            raise

    def check_possible(self, destination: str, files: Iterable[StagedFile]) -> None:
        """Raises LargerThanQuotaError when no waiting would help."""
        declared = self._log_of(destination).snapshot.destination
        for quota, needs in needs_of(declared, files).items():
            limit = self.limit(quota)
            for need in [total(needs.values())] if limit.shared else needs.values():
                _check_possible(destination, need, quota, limit)

    def withdraw(self, grant: Grant) -> None:
        """The sender will not commit. Raises nothing: a reservation that stays is ended when others need the room."""
        self._withdraw(self._ledgers[grant.ledger], grant.request, grant.number)

    def observe(self, destination: str) -> None:
        """Enter what the destination holds now into the ledgers of its quotas."""
        self._log_of(destination).refresh()
        for ledger in self._ledgers_of(destination):
            self._change(ledger, destination, lambda state: state, "looked", own=destination)

    def forget(self, destination: str) -> None:
        """Its own ledgers, before it is dropped or gets another name. Shared ones find out with their next look."""
        for name in self._ledger_names():
            ledger = QuotaLedger(self._storage, name)
            if ledger.destination == destination:
                ledger.delete()

    def outdated_ledgers(self, quota: str) -> list[QuotaLedger]:
        """Those with entries from before its `shared` was changed."""
        shared = self.limit(quota).shared
        return [ledger for ledger in self.ledgers(quota) if (ledger.name == quota) != shared]

    def forget_quota(self, quota: str) -> None:
        """Its ledgers, after the quota has ended."""
        for ledger in self.ledgers(quota):
            ledger.delete()

    def knows(self, destination: str) -> bool:
        """The ledgers of all its quotas count the destination."""
        return all(destination in ledger.read().state.usages for ledger in self._ledgers_of(destination))

    def now(self, ledger: QuotaLedger, destinations: Iterable[str] = ()) -> QuotaLook:
        """The ledger's newest state, with what its destinations, and these, hold now. Changes nothing."""
        entry = ledger.read()
        state = entry.state.lapse(ledger.old(entry, self.monotonic_s(), self._clock_ms()))
        return self._observer.look(ledger, state, {*state.usages, *destinations})

    # -- inside ---------------------------------------------------------------------------------------------------
    def _recounts(self, attempt: _Attempt, quota: str, left_s: float) -> bool:
        """Whether there may be more room than was published, since the usage has been counted again. Not for a request that waits
        behind another one: more room would not help it."""
        recount = self.recount
        if recount is None or not attempt.state.has_turn(attempt.request, self.limit(quota)):
            return False
        if not attempt.may_recount(left_s):
            return False
        recount({attempt.request.destination, *attempt.state.usages})
        attempt.recounted()
        return True

    def _try(self, attempt: _Attempt, quota: str, epoch: int, *, waits: bool) -> Grant | None:
        """None: there is no room now, or the quota does not count the destination any more."""
        request, limit = attempt.request, self.limit(quota)
        own = request.destination
        ledger = self.ledger(quota, limit, own, attempt.member)
        changed, looked = {own}, False
        while True:
            entry = ledger.read() if attempt.is_sure else ledger.follow()
            changed |= self._not_counted_yet(ledger, entry)
            if not entry.state.has_reserved(request):
                _check_possible(own, request.need, quota, limit)
            now, now_s = self._clock_ms(), self.monotonic_s()
            old = ledger.old(entry, now_s, now)
            lapsed = entry.state.successor(now).lapse({one for one in old if one.request.id != request.id})
            # The destinations are looked at after the entry is read, or a commit between the two would count nowhere.
            draft = self._observer.look(
                ledger, lapsed, changed, own
            ).state  # raises when its own was dropped or renamed
            granted = draft.grant(request, limit, now + int(RESERVED_S * 1000))
            if granted is None and not attempt.is_sure:
                attempt.is_sure = True
                continue
            if granted is None and not looked and draft.has_turn(request, limit):
                # A look at many destinations takes so long that another process writes the entry first, each time. So it only tells
                # which of them to look at again, behind the newest entry.
                look, looked = self._observer.look_at_all(ledger, draft, old, now, own), True
                seen, attempt.unreadable = look.state, look.unreadable
                changed |= {name for name in draft.usages if not seen.is_same_of(name, draft)}
                if len(changed) > 1:
                    continue
                draft, granted = seen, seen.grant(request, limit, now + int(RESERVED_S * 1000))
            if own not in draft.usages:
                return None  # it has another quota, so this one seems to have room
            attempt.state = draft
            if granted is not None:
                if ledger.append(entry, granted, now, f"granted {_shown(request.need)} to {request.by}"):
                    made = granted.find(request.id)
                    assert made is not None
                    return Grant(quota, ledger.name, request, made.number, made.slot, epoch, attempt.member)
            elif not waits or now_s < attempt.renew_s:
                return None
            else:
                attempt.ledger = ledger  # also when the storage fails: the entry may be there, and is withdrawn
                if ledger.append(entry, draft.wait(request, now + int(WAITING_S * 1000)), now, f"{request.by} waits"):
                    attempt.renew_s = now_s + RENEW_S
                    return None
            time.sleep(random.uniform(0, 0.002))  # another process was first

    def _not_counted_yet(self, ledger: QuotaLedger, entry: LedgerEntry) -> set[str]:
        """Which destinations a ledger has to look at when it begins, perhaps again: any may have the quota. None in that of a single
        destination."""
        return set() if entry.number or ledger.destination else {*self._names()}

    def _withdraw(self, ledger: QuotaLedger, request: Request, number: int | None = None) -> None:
        try:
            self._change(
                ledger, request.destination, lambda state: state.withdraw(request, number), f"{request.by} gave up"
            )
        except (JmsqError, OSError) as error:
            log.warning("a request of %s stays in quota %s for some seconds: %s", request.by, ledger.name, error)

    def _change(
        self,
        ledger: QuotaLedger,
        destination: str,
        change: Callable[[QuotaState], QuotaState],
        what: str,
        own: str = "",
    ) -> LedgerEntry | None:
        """One entry with this change and what the destination holds then. Raises when `own` cannot be read."""
        for _ in range(_ATTEMPTS):
            entry = ledger.read()
            concerned = {destination, *self._not_counted_yet(ledger, entry)}
            look = self._observer.look(ledger, entry.state.successor(self._clock_ms()), concerned, own)
            made = ledger.append(entry, change(look.state), self._clock_ms(), what)
            if made is not None:
                return made
            time.sleep(random.uniform(0, 0.002))
        raise DomainError(f"the ledger of a quota of {destination} is changed too often by other processes: try again")

    def _refusal(self, attempt: _Attempt, quota: str) -> str:
        state, request, limit = attempt.state, attempt.request, self.limit(quota)
        waiting = len([one for one in state.waiting if one.request.id != request.id])
        parts = [f"{_shown(state.used)} used"]
        if state.reserved.messages:
            parts.append(f"{_shown(state.reserved)} reserved")
        if waiting:
            parts.append(f"{waiting} other send(s) wait")
        where = request.destination
        if attempt.member is not None and not limit.shared:
            where = self._log_of(where).snapshot.destination.part_name(attempt.member)
        return (
            f"{where}: quota {quota} has no room for {_shown(request.need)}: its maximum is {_maximum(limit)} "
            f"({', '.join(parts)}){_unreadable(attempt.unreadable)}"
        )


@contextmanager
def _named(quota: str, destination: str) -> Iterator[None]:
    """A failure of the storage says what it has prevented."""
    try:
        yield
    except OSError as error:
        raise DomainError(
            f"{destination}: no room can be reserved in quota {quota}, because its files cannot be read or written ({error}); "
            "nothing was sent: send again when the storage works"
        ) from error


class _Attempt:
    """One send on its way to a reservation."""

    def __init__(self, request: Request, member: int | None = None) -> None:
        self.request, self.member = request, member
        self.state = QuotaState()  # as last seen
        self.renew_s = float("-inf")  # when to renew the request, by the monotonic clock
        self.unreadable: dict[str, str] = {}
        self.is_sure = (
            False  # it has met an entry that refuses it: from then on that entry must be the newest for certain
        )
        self.ledger: QuotaLedger | None = None
        self._look_s = _SHORTEST_LOOK_S
        self._recount_s = self._recounting_s = float("-inf")  # when to recount again, and since when it does
        self._is_last = False  # the count at the end of the wait was made

    def may_recount(self, left_s: float) -> bool:
        """At once; then so that it takes a small share of the time; and once when no time is left."""
        self._recounting_s = time.monotonic()
        if left_s > 0:
            return self._recounting_s >= self._recount_s
        was_last, self._is_last = self._is_last, True
        return not was_last

    def recounted(self) -> None:
        now_s = time.monotonic()
        self._recount_s = now_s + max(_RECOUNT_EVERY_S, (now_s - self._recounting_s) / _SHARE_OF_TIME)

    def pause(self, left_s: float) -> float:
        self._look_s = min(2 * self._look_s, _LONGEST_LOOK_S)
        return max(min(self._look_s, left_s), 0)


def _check_possible(destination: str, need: MessageUsage, quota: str, limit: Limit) -> None:
    if not limit.allows(need):
        raise LargerThanQuotaError(
            f"{destination}: {_shown(need)} are more than the maximum of quota {quota} ({_maximum(limit)})"
        )


def _shown(usage: MessageUsage) -> str:
    return f"{usage.messages:,} message(s) with {usage.bytes:,} bytes"


def _unreadable(destinations: dict[str, str]) -> str:
    told = (f"{name} cannot be read and counts with what it had ({why})" for name, why in sorted(destinations.items()))
    return "".join(f"; {one}" for one in told)


def _maximum(limit: Limit) -> str:
    messages = "any number of messages" if limit.messages < 0 else f"{limit.messages:,} message(s)"
    return messages if limit.bytes < 0 else f"{messages} and {limit.bytes:,} bytes"


# -- what destinations hold --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuotaLook:
    """The state with what the destinations hold. `unreadable`: why a destination keeps what it had, by name."""

    state: QuotaState
    unreadable: dict[str, str]


@dataclass(frozen=True, eq=False)
class _Known:
    """The usage of a destination for one ledger, by what it follows from."""

    snapshot: Snapshot
    published: PublishedUsage | None
    usage: MessageUsage


class QuotaObserver:
    """Looks at what destinations hold. Thread-safe. `log_of` gives a destination's log by name."""

    def __init__(self, usages: UsageFiles, log_of: Callable[[str], DeltaLog]) -> None:
        self._usages, self._log_of = usages, log_of
        self._known: dict[tuple[str, str], _Known] = {}  # by ledger and destination
        self._told: dict[str, str] = {}  # unreadable destinations, as logged

    def look(self, ledger: QuotaLedger, state: QuotaState, destinations: Iterable[str], own: str = "") -> QuotaLook:
        """Raises JmsqError or OSError when the destination `own` cannot be read, InvalidDestinationError when there is none."""
        found: dict[str, Observation | None] = {}
        unreadable: dict[str, str] = {}
        for name in destinations:
            try:
                found[name] = self._observation(ledger, name, state)
                self._told.pop(name, None)
            except (JmsqError, OSError) as error:
                if name == own:
                    raise
                if isinstance(error, InvalidDestinationError):
                    found[name] = None
                    continue
                unreadable[name] = str(error)
                self._tell(ledger, name, str(error))
        return QuotaLook(state.observe(found), unreadable)

    def look_at_all(
        self, ledger: QuotaLedger, state: QuotaState, old: Container[OpenRequest], now_ms: int, own: str
    ) -> QuotaLook:
        """The same of all its destinations, after the old ones of its reservations have ended."""
        self._end(ledger, [one for one in state.reservations if one in old], now_ms)
        return self.look(ledger, state, state.usages, own)

    def _end(self, ledger: QuotaLedger, reservations: Iterable[OpenRequest], now_ms: int) -> None:
        """So that their senders cannot commit. One whose destination cannot be read stays."""
        for one in reservations:
            reservation = TransactionId(transaction_id(ledger.name, one.slot), one.number)
            try:
                commit(self._log_of(one.request.destination), partial(decide_end, reservation, now_ms))
            except InvalidDestinationError:
                continue  # it was dropped or renamed: a look removes its reservations
            except (JmsqError, OSError) as error:
                self._tell(ledger, one.request.destination, str(error))

    def _observation(self, ledger: QuotaLedger, destination: str, state: QuotaState) -> Observation | None:
        """None: it has another quota, or lost the member."""
        snapshot, published = self._read(self._log_of(destination))
        declared = snapshot.destination
        if ledger.quota not in declared.quotas or ledger.member not in (None, *declared.member_ids):
            return None
        numbers = {slot: _number(snapshot, ledger, slot) for slot in state.slots(destination)}
        highest = 0 if destination in state.usages else _highest(snapshot, ledger)
        return Observation(self._usage(ledger, destination, snapshot, published), numbers, highest)

    def _read(self, table: DeltaLog) -> tuple[Snapshot, PublishedUsage | None]:
        """The publication before the log: a later one might count messages that the snapshot does not have, nor the end of their
        reservations, and they would count twice."""
        while True:
            table_id = table.snapshot.table_id
            published = self._usages.read(table_id)
            snapshot = table.refresh()
            if snapshot.table_id == table_id:
                return snapshot, published

    def _usage(
        self, ledger: QuotaLedger, destination: str, snapshot: Snapshot, published: PublishedUsage | None
    ) -> MessageUsage:
        key = ledger.name, destination
        known = self._known.get(key)
        if known is None or known.snapshot is not snapshot or known.published is not published:
            declared = snapshot.destination
            members = {member for member in declared.member_ids if declared.quota_of(member) == ledger.quota}
            members = members if ledger.member is None else members & {ledger.member}
            known = _Known(snapshot, published, self._usages.by(published, snapshot, members))
            self._known[key] = known
        return known.usage

    def _tell(self, ledger: QuotaLedger, destination: str, why: str) -> None:
        """Once for each reason."""
        if self._told.get(destination) != why:
            self._told[destination] = why
            log.warning(
                "quota %s: %s cannot be read, so it counts with what it had, and its reservations stay: %s",
                ledger.name,
                destination,
                why,
            )


def decide_end(reservation: TransactionId, now: int, snapshot: Snapshot) -> Decision | None:
    """Pure. End an old reservation, whose sender then cannot commit. None: the log has ended it."""
    return None if reservation.is_in(snapshot) else Decision("QUOTA", [reservation.action(now)])


def _number(snapshot: Snapshot, ledger: QuotaLedger, slot: int) -> int:
    return snapshot.transactions.get(transaction_id(ledger.name, slot), 0)


def _highest(snapshot: Snapshot, ledger: QuotaLedger) -> int:
    """Slots are given in order, from 0 on."""
    highest = slot = 0
    while (number := _number(snapshot, ledger, slot)) > 0:
        highest, slot = max(highest, number), slot + 1
    return highest
