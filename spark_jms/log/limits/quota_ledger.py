"""The ledger of a quota: numbered files, each created only if there is none. core/limits/quota.py has the theory.

ROOT/_jmsq/quota-ledgers/<ledger>/<number>     the state after entry <number>, its own mark, and the mark of the entry before it

Only the newest entries are kept. So a process that slept may find its next number free although it was used and deleted: its
entry is then a *stray*. After it has created an entry, a process looks for the one before it. Deletion goes in ascending order and
keeps the newest, so if that is there, with the mark that our entry names, no later one was deleted, and ours counts. Otherwise it
lists the ledger, and its entry counts only if it is linked to the newest one without a gap:

    the newest number is ours            it counts if the one before it is there: the newest entries are never deleted, so else
                                         the ledger was deleted
    later numbers exist                  it counts if all numbers from ours to the newest are there, each with the mark of the one
                                         before it: strays cannot fill that gap with true marks
    otherwise                            it is a stray

A process deletes its own stray and reads again. That of a killed process can be above the newest entry, where the ledger was
deleted and began again: `read` deletes the newest one if it is not linked to the one before it. So a ledger may be deleted at any
time.

Features: T1 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from spark_jms.core.limits.quota import OpenRequest, QuotaState, QuotaWatch
from spark_jms.errors import DomainError, FormatVersionError
from spark_jms.log.tables.storage import FileInfo, Storage

LEDGERS = "_jmsq/quota-ledgers"
FORMAT_VERSION = 1
KEPT = 6  # entries behind the newest, at least
_DELETE_EVERY = 8  # entries: one lists the ledger and deletes the old ones
_UNFINISHED_MS = 60_000  # a temporary file that is so much older than the newest entry is of a killed process


@dataclass(frozen=True)
class LedgerEntry:
    """One file of a ledger. `mark` is random, `previous` the mark of the entry before. `at_ms` and `what` are for people."""

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
    """The ledger of one quota. Thread-safe: every call reads or writes the storage. `name` is that of the quota, of a destination in
    it, `<quota>@<destination>`, or of its member, `<quota>@<destination>+<member>`."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.quota, _, part = name.partition("@")
        self.destination, _, member = part.partition("+")
        self.name, self.member = name, int(member) if member else None
        self._storage, self._folder = storage, f"{LEDGERS}/{name}"
        self._newest = _NOTHING
        self._watch, self._lock = QuotaWatch(), threading.Lock()

    def read(self) -> LedgerEntry:
        """The newest entry. Raises DomainError when it is damaged, FormatVersionError when a later version wrote it, and
        OSError."""
        entry = self._newest
        while (following := self._get(entry.number + 1)) is not None:
            if following.previous != entry.mark:
                break  # a stray, or ours was deleted
            entry = following
        else:
            if entry.number and self._storage.exists(self._path(entry.number)):
                self._newest = entry
                return entry
        self._newest = entry = self.load()
        return entry

    def follow(self) -> LedgerEntry:
        """As `read`, with a question less: perhaps an entry that was deleted long ago, when this process has slept. Only for an
        append, which finds out."""
        entry = self._newest
        if not entry.number:
            return self.read()
        while (following := self._get(entry.number + 1)) is not None:
            if following.previous != entry.mark:
                return self.read()
            entry = following
        self._newest = entry
        return entry

    def old(self, entry: LedgerEntry, now_s: float, now_ms: int) -> frozenset[OpenRequest]:
        """The requests of the newest entry whose senders are dead or slow, as far as this process has seen."""
        with self._lock:
            self._watch = self._watch.after(entry.state.requests, now_s)
            return self._watch.old(now_s, now_ms)

    def append(self, before: LedgerEntry, state: QuotaState, at_ms: int, what: str) -> LedgerEntry | None:
        """None when another process has written this entry, or has deleted the ledger. Raises OSError, and
        WriteOutcomeUnknownError when the entry may be there: then its request is withdrawn, lapses or is ended as a dead sender's."""
        entry = LedgerEntry(state, secrets.token_hex(8), before.mark, at_ms, what)
        try:
            created = self._storage.create(self._path(entry.number), _encode(entry))
        except FileNotFoundError:  # the folder was deleted
            self._storage = self._storage.child("")  # which makes folders again
            created = False
        if not created:
            return None
        if not self._follows(entry, before) and not self._counts(entry, _numbers(self._files())):
            self._storage.delete(self._path(entry.number))
            self._newest = self.load()  # what we knew may be a stray too, or one is above the newest entry
            return None
        self._newest = entry
        if entry.number % _DELETE_EVERY == 0:
            self._delete_old(entry.number)
        return entry

    def _follows(self, entry: LedgerEntry, before: LedgerEntry) -> bool:
        known = self._get(entry.number - 1) if entry.number > 1 else None
        return known is not None and known.mark == before.mark

    def _delete_old(self, newest: int) -> None:
        files = self._files()
        for file in sorted(files, key=lambda file: file.path):
            if _is_garbage(file, newest, files):
                self._storage.delete(file.path)

    def delete(self) -> None:
        """With all entries. Another one of this name begins again."""
        self._storage.delete_all(self._folder)
        self._newest = _NOTHING

    def history(self) -> list[LedgerEntry]:
        """The entries that are kept, the oldest first."""
        found = (self._get(number) for number in _numbers(self._files()))
        return [entry for entry in found if entry is not None]

    def _counts(self, entry: LedgerEntry, numbers: Sequence[int]) -> bool:
        newest = max(numbers, default=0)
        if newest <= entry.number:
            return newest == 1 or (newest == entry.number and newest - 1 in numbers)
        before = entry
        for number in range(entry.number + 1, newest + 1):
            following = self._get(number)
            if following is None or following.previous != before.mark:
                return False
            before = following
        return True

    def load(self) -> LedgerEntry:
        while True:
            newest = max(_numbers(self._files()), default=0)
            if not newest:
                return _NOTHING
            entry = self._get(newest)
            if entry is None:
                continue  # a stray, or the ledger has grown far meanwhile
            if self._is_stray(entry):
                self._storage.delete(self._path(newest))
                continue
            return entry

    def _is_stray(self, newest: LedgerEntry) -> bool:
        """The one before it is missing or another one. Another process may have gone far beyond it: then it is not the newest now."""
        if newest.number == 1:
            return False
        before = self._get(newest.number - 1)
        if before is not None:
            return before.mark != newest.previous
        return _numbers(self._files())[-1:] == [newest.number]

    def _files(self) -> list[FileInfo]:
        return list(self._storage.list(self._folder))

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


def _numbers(files: Sequence[FileInfo]) -> list[int]:
    names = (_name(file) for file in files)
    return sorted(int(name) for name in names if name.isdecimal())  # a dot marks a temporary file


def _is_garbage(file: FileInfo, newest: int, files: Sequence[FileInfo]) -> bool:
    """Of a ledger whose newest entry has this number. The times of all files are those of one clock, the storage's."""
    name = _name(file)
    if name.isdecimal():
        return int(name) < newest - KEPT
    return file.modified_ms < max(one.modified_ms for one in files) - _UNFINISHED_MS


def _name(file: FileInfo) -> str:
    return file.path.rsplit("/", 1)[1]


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
