"""The quotas of a domain: their limits, and room for the messages of its senders (T1, T2). core/quota.py has the theory.

ROOT/_jmsq/quotas/<quota>               its settings, which `apply` writes
ROOT/_jmsq/quota-ledgers/<ledger>/      its ledger: log/quota_ledger.py

A shared quota has one ledger, called as the quota; of one that is not shared, each destination has its own: `<quota>@<destination>`.
A sender that waits looks at the ledger and at what consumers have published every few milliseconds.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from spark_jms.core.quota import Limit, Observation, QuotaState, Request
from spark_jms.core.staged_file import StagedFile
from spark_jms.core.usage import MessageUsage
from spark_jms.errors import DomainError, InvalidDestinationError, JmsqError, ModuleFileError
from spark_jms.log.admission import Grant, LargerThanQuotaError, QuotaExceededError, needs_of, transaction_id
from spark_jms.log.commit import Decision, commit
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.named_files import NamedFiles
from spark_jms.log.quota_ledger import LEDGERS, LedgerEntry, QuotaLedger
from spark_jms.log.send import TransactionId
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import Storage, now_ms
from spark_jms.log.usage import UsageFiles
from spark_jms.settings.quota import SERVER_QUOTA, QuotaSettings, from_stored, to_stored

log = logging.getLogger("spark_jms")
QUOTAS = "_jmsq/quotas"
WAITING_MS = 6_000  # a waiting sender that has not renewed its request for so long is dead
RENEW_MS = WAITING_MS // 3
RESERVED_MS = (
    5_000  # a sender that has not committed for so long may have its reservation ended, if others need the room
)
_SHORTEST_LOOK_S, _LONGEST_LOOK_S = 0.002, 0.02
_ATTEMPTS = 200


class Quotas:
    """Thread-safe. `log_of` gives a destination's log by name."""

    def __init__(
        self,
        storage: Storage,
        usages: UsageFiles,
        log_of: Callable[[str], DeltaLog],
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._storage, self._usages, self._log_of, self._clock_ms = storage, usages, log_of, clock_ms
        self._files = NamedFiles(storage, QUOTAS)
        self._lock = threading.Lock()
        self._ledgers: dict[str, QuotaLedger] = {}
        self._read: dict[
            str, tuple[bytes, QuotaSettings]
        ] = {}  # by name: the newest content, which every send asks for

    # -- the resources ------------------------------------------------------------------------------------------------
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

    def ledger(self, quota: str, limit: Limit, destination: str) -> QuotaLedger:
        name = quota if limit.shared else f"{quota}@{destination}"
        with self._lock:
            return self._ledgers.setdefault(name, QuotaLedger(self._storage, name))

    def ledgers(self, quota: str) -> list[QuotaLedger]:
        """Those with entries."""
        folders = {info.path.removeprefix(f"{LEDGERS}/").split("/", 1)[0] for info in self._storage.list(LEDGERS)}
        found = (QuotaLedger(self._storage, name) for name in sorted(folders))
        return [ledger for ledger in found if ledger.quota == quota]

    # -- senders ------------------------------------------------------------------------------------------------------
    def reserve(self, request: Request, quota: str, epoch: int, wait_s: float, *, stays: bool) -> Grant | None:
        """Room in the quota, by the declaration of this epoch. None: the quota does not count the destination any more. Raises
        QuotaExceededError when there is none within `wait_s`, when the messages are more than the maximum, or when the
        destination gets another quota while this waits. A request that `stays` keeps its place for a few seconds then."""
        deadline = time.monotonic() + wait_s
        attempt, table = _Attempt(request), request.destination
        try:
            while True:
                grant = self._try(attempt, quota, epoch, waits=wait_s > 0 or stays)
                if grant is not None:
                    return grant
                if time.monotonic() >= deadline:
                    raise QuotaExceededError(self._refusal(attempt, quota))
                time.sleep(attempt.pause(deadline - time.monotonic()))
                declared = self._log_of(table).refresh().destination
                if quota not in declared.quotas:
                    if attempt.ledger is None:
                        return None
                    raise QuotaExceededError(
                        f"{table} got the quota {declared.quota or 'none'} while {request.need.messages:,} message(s) waited for "
                        f"room in {quota}; nothing was sent"
                    )
                epoch = declared.epoch
        except BaseException as error:
            if attempt.ledger is not None and not (stays and isinstance(error, QuotaExceededError)):
                self._withdraw(attempt.ledger, attempt.request)
            raise

    def check_possible(self, destination: str, files: Iterable[StagedFile]) -> None:
        """Raises LargerThanQuotaError when no waiting would help."""
        for quota, need in needs_of(self._log_of(destination).snapshot.destination, files).items():
            _check_possible(destination, need, quota, self.limit(quota))

    def withdraw(self, grant: Grant) -> None:
        """The sender will not commit. Raises nothing: a reservation that stays is ended when others need the room."""
        self._withdraw(self._ledgers[grant.ledger], grant.request, grant.number)

    def observe(self, destination: str) -> None:
        """Enter what the destination holds now into the ledgers of its quotas."""
        for quota in self._log_of(destination).refresh().destination.quotas:
            ledger = self.ledger(quota, self.limit(quota), destination)
            self._change(ledger, destination, lambda state: state, "looked")

    def knows(self, destination: str) -> bool:
        """The ledgers of all its quotas count the destination."""
        counted = self._log_of(destination).snapshot.destination.quotas
        ledgers = (self.ledger(quota, self.limit(quota), destination) for quota in counted)
        return all(destination in ledger.read().state.usages for ledger in ledgers)

    def now(self, ledger: QuotaLedger, destinations: Iterable[str] = ()) -> QuotaState:
        """The ledger's newest state, with what its destinations, and these, hold now. Changes nothing."""
        state = ledger.read().state.lapse(self._clock_ms())
        return self._observed(ledger, state, {*state.usages, *destinations})

    # -- inside -------------------------------------------------------------------------------------------------------
    def _try(self, attempt: _Attempt, quota: str, epoch: int, *, waits: bool) -> Grant | None:
        """None: there is no room now."""
        request, limit = attempt.request, self.limit(quota)
        _check_possible(request.destination, request.need, quota, limit)
        self._log_of(request.destination)  # raises when it was dropped or renamed: no ledger would count what is sent
        ledger = self.ledger(quota, limit, request.destination)
        changed, looked = {request.destination}, False
        while True:
            entry, now = ledger.read(), self._clock_ms()
            # The destinations are looked at after the entry is read, or a commit between the two would count nowhere.
            draft = self._observed(ledger, entry.state.successor(now).lapse(now), changed)
            granted = draft.grant(request, limit, now + RESERVED_MS)
            if granted is None and not looked and (draft.is_next(request.id) or limit.policy != "FIFO"):
                # A look at many destinations takes so long that another process writes the entry first, each time. So it only tells
                # which of them to look at again, behind the newest entry.
                seen, looked = self._looked(ledger, draft, now), True
                changed |= {name for name in draft.usages if not seen.is_same_of(name, draft)}
                if len(changed) > 1:
                    continue
                draft, granted = seen, seen.grant(request, limit, now + RESERVED_MS)
            attempt.state = draft
            if granted is not None:
                if ledger.append(entry, granted, now, f"granted {_shown(request.need)} to {request.by}"):
                    made = granted.find(request.id)
                    assert made is not None
                    return Grant(quota, ledger.name, request, made.number, made.slot, epoch)
            elif not waits or attempt.renewed_ms + RENEW_MS > now:
                return None
            elif ledger.append(entry, draft.wait(request, now + WAITING_MS), now, f"{request.by} waits"):
                attempt.renewed_ms, attempt.ledger = now, ledger
                return None
            time.sleep(random.uniform(0, 0.002))  # another process was first

    def _looked(self, ledger: QuotaLedger, draft: QuotaState, now: int) -> QuotaState:
        """With what all its destinations hold now, and without overdue reservations."""
        for one in draft.overdue(now):
            with suppress(InvalidDestinationError):
                end = TransactionId(transaction_id(ledger.name, one.slot), one.number)
                commit(self._log_of(one.request.destination), partial(decide_end, end, now))
        return self._observed(ledger, draft, draft.usages)

    def _observed(self, ledger: QuotaLedger, state: QuotaState, destinations: Iterable[str]) -> QuotaState:
        return state.observe({name: self._observation(ledger, name, state.slots(name)) for name in destinations})

    def _observation(self, ledger: QuotaLedger, destination: str, slots: Iterable[int]) -> Observation | None:
        """None: there is no such destination, or it has another quota."""
        try:
            snapshot = self._log_of(destination).refresh()
        except InvalidDestinationError:
            return None
        declared = snapshot.destination
        if ledger.quota not in declared.quotas:
            return None
        numbers = {slot: snapshot.transactions.get(transaction_id(ledger.name, slot), 0) for slot in slots}
        members = {member for member in declared.member_ids if declared.quota_of(member) == ledger.quota}
        return Observation(self._usages.at(snapshot, members), numbers)

    def _withdraw(self, ledger: QuotaLedger, request: Request, number: int | None = None) -> None:
        try:
            self._change(
                ledger, request.destination, lambda state: state.withdraw(request, number), f"{request.by} gave up"
            )
        except (JmsqError, OSError) as error:
            log.warning("a request of %s stays in quota %s for some seconds: %s", request.by, ledger.name, error)

    def _change(
        self, ledger: QuotaLedger, destination: str, change: Callable[[QuotaState], QuotaState], what: str
    ) -> LedgerEntry | None:
        """One entry with this change and what the destination holds then."""
        for _ in range(_ATTEMPTS):
            entry = ledger.read()
            looked = self._observed(ledger, entry.state.successor(self._clock_ms()), [destination])
            made = ledger.append(entry, change(looked), self._clock_ms(), what)
            if made is not None:
                return made
            time.sleep(random.uniform(0, 0.002))
        raise DomainError(f"the ledger of a quota of {destination} is changed too often by other processes: try again")

    def _refusal(self, attempt: _Attempt, quota: str) -> str:
        state, request, limit = attempt.state, attempt.request, self.limit(quota)
        waiting = len([one for one in state.waiting if one.request.id != request.id])
        return (
            f"{request.destination}: quota {quota} has no room for {_shown(request.need)}: of {_maximum(limit)}, "
            f"{_shown(state.used)} are used and {_shown(state.reserved)} reserved, and {waiting} other send(s) wait; nothing was sent"
        )


class _Attempt:
    """One send on its way to a reservation."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.state = QuotaState()  # as last seen
        self.renewed_ms = -WAITING_MS
        self.ledger: QuotaLedger | None = None
        self._look_s = _SHORTEST_LOOK_S

    def pause(self, left_s: float) -> float:
        self._look_s = min(2 * self._look_s, _LONGEST_LOOK_S)
        return max(min(self._look_s, left_s), 0)


def decide_end(reservation: TransactionId, now: int, snapshot: Snapshot) -> Decision | None:
    """Pure. End an overdue reservation, whose sender then cannot commit. None: the log has ended it."""
    return None if reservation.is_in(snapshot) else Decision("QUOTA", [reservation.action(now)])


def _check_possible(destination: str, need: MessageUsage, quota: str, limit: Limit) -> None:
    if not limit.allows(need):
        raise LargerThanQuotaError(
            f"{destination}: {_shown(need)} are more than the maximum of quota {quota} ({_maximum(limit)}); nothing was sent"
        )


def _shown(usage: MessageUsage) -> str:
    return f"{usage.messages:,} message(s) with {usage.bytes:,} bytes"


def _maximum(limit: Limit) -> str:
    messages = "any number of messages" if limit.messages < 0 else f"{limit.messages:,} message(s)"
    return messages if limit.bytes < 0 else f"{messages} and {limit.bytes:,} bytes"
