"""The ledger of a quota: numbered files, each created only if there is none (T1). core/quota.py has the theory.

ROOT/_jmsq/quota-ledgers/<ledger>/<number>     the state after entry <number>, its own mark, and the mark of the entry before it

Only the newest entries are kept. So a process that slept may find its next number free although it was used and deleted: its
entry is then a *stray*. After it has created an entry, a process lists the ledger, and its entry counts only if it is linked to
the newest one without a gap:

    the newest number is ours            it counts
    later numbers exist                  it counts if all numbers from ours to the newest are there, each with the mark of the one
                                         before it: deletion goes in ascending order and keeps the newest, so strays cannot fill
                                         that gap with true marks
    otherwise                            it is a stray: we delete it and read again
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass

from spark_jms.core.quota import QuotaState
from spark_jms.errors import DomainError, FormatVersionError
from spark_jms.log.storage import Storage

LEDGERS = "_jmsq/quota-ledgers"
FORMAT_VERSION = 1
KEPT = 6  # entries behind the newest: each append lists them


@dataclass(frozen=True)
class LedgerEntry:
    """`mark` is random, `previous` the mark of the entry before. `at_ms` and `what` are for people."""

    state: QuotaState
    mark: str = ""
    previous: str = ""
    at_ms: int = 0
    what: str = ""

    @property
    def number(self) -> int:
        return self.state.number


_NOTHING = LedgerEntry(QuotaState())


class QuotaLedger:
    """Thread-safe: every call reads or writes the storage. `name` is that of the quota, or `<quota>@<destination>`."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.name, self.quota = name, name.partition("@")[0]
        self._storage, self._folder = storage, f"{LEDGERS}/{name}"
        self._newest = _NOTHING

    def read(self) -> LedgerEntry:
        """The newest entry. Raises DomainError when it is damaged, FormatVersionError when a later version wrote it."""
        entry = self._newest
        while (following := self._get(entry.number + 1)) is not None:
            if following.previous != entry.mark:
                break  # a stray, or ours was deleted
            entry = following
        else:
            if entry.number and self._storage.exists(self._path(entry.number)):
                self._newest = entry
                return entry
        self._newest = entry = self._load()
        return entry

    def append(self, before: LedgerEntry, state: QuotaState, at_ms: int, what: str) -> LedgerEntry | None:
        """None when another process has written this entry."""
        entry = LedgerEntry(state, secrets.token_hex(8), before.mark, at_ms, what)
        if not self._storage.create(self._path(entry.number), _encode(entry)):
            return None
        numbers = self._numbers()
        if not self._counts(entry, max(numbers, default=0)):
            self._storage.delete(self._path(entry.number))
            self._newest = _NOTHING  # what we knew may be a stray too
            return None
        self._newest = entry
        for number in [number for number in numbers if number < entry.number - KEPT]:
            self._storage.delete(self._path(number))
        return entry

    def history(self) -> list[LedgerEntry]:
        """The entries that are kept, the oldest first."""
        found = (self._get(number) for number in self._numbers())
        return [entry for entry in found if entry is not None]

    def _counts(self, entry: LedgerEntry, newest: int) -> bool:
        before = entry
        for number in range(entry.number + 1, newest + 1):
            following = self._get(number)
            if following is None or following.previous != before.mark:
                return False
            before = following
        return True

    def _load(self) -> LedgerEntry:
        while True:
            newest = max(self._numbers(), default=0)
            if not newest:
                return _NOTHING
            entry = self._get(newest)
            if entry is not None:  # else a stray, or the ledger has grown far meanwhile
                return entry

    def _numbers(self) -> list[int]:
        names = (info.path.rsplit("/", 1)[1] for info in self._storage.list(self._folder))
        return sorted(int(name) for name in names if name.isdecimal())  # a dot marks a temporary file

    def _get(self, number: int) -> LedgerEntry | None:
        data = self._storage.get(self._path(number))
        if data is None:
            return None
        where = f"{self._storage.uri}/{self._path(number)}"
        try:
            value = json.loads(data)
            if int(value["formatVersion"]) > FORMAT_VERSION:
                raise FormatVersionError(
                    f"{where} was written by a later spark-jms: install that version or a later one"
                )
            state = QuotaState.from_json(value["state"])
            return LedgerEntry(state, value["mark"], value["previous"], int(value["atMs"]), value["what"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DomainError(
                f"{where} is damaged ({error!r}): stop the senders of this quota's destinations, delete the folder, and run "
                "`jmsq apply` again"
            ) from error

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:012d}"


def _encode(entry: LedgerEntry) -> bytes:
    return json.dumps(
        {
            "formatVersion": FORMAT_VERSION,
            "mark": entry.mark,
            "previous": entry.previous,
            "atMs": entry.at_ms,
            "what": entry.what,
            "state": entry.state.to_json(),
        }
    ).encode()
