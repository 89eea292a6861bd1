"""The terms of the servers' leases, in the domain: core/lease_term.py has the theory.

ROOT/_jmsq/lease-terms/<server>/<number>         since when the lease has lapsed, or that it is held
ROOT/_jmsq/lease-terms/<server>/<number>.done    all destinations have this term

A term begins when one process has created its file. The files before the newest one are deleted.

Features: D4 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from spark_jms.core.lease_term import HELD, LeaseTerm
from spark_jms.errors import DomainError
from spark_jms.log.storage import Storage

TERMS = "_jmsq/lease-terms"
_DONE = ".done"


@dataclass(frozen=True)
class KnownTerm:
    """The newest term of a server's lease. `done`: all destinations have it."""

    term: LeaseTerm = HELD
    done: bool = True


class ServerTerms:
    """Thread-safe: every call reads or writes the storage, but the content of a term, which never changes, is read once."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._read: dict[str, LeaseTerm] = {}  # by path: the newest of each server

    def newest(self) -> dict[str, KnownTerm]:
        """server -> its newest term; without servers whose lease never lapsed. Raises DomainError when a file is damaged."""
        numbers: dict[str, int] = {}
        done: set[tuple[str, int]] = set()
        for info in self._storage.list(TERMS):
            server, name = info.path.removeprefix(f"{TERMS}/").split("/", 1)
            plain = name.removesuffix(_DONE)
            if not plain.isdecimal():  # a dot marks a temporary file
                continue
            if name.endswith(_DONE):
                done.add((server, int(plain)))
            else:
                numbers[server] = max(numbers.get(server, 0), int(plain))
        found = {}
        for server, number in numbers.items():
            term = self._term(server, number)
            if term is not None:
                found[server] = KnownTerm(term, (server, number) in done)
        return found

    def lapsed(self) -> dict[str, LeaseTerm]:
        """The newest terms of the servers whose lease has lapsed."""
        return {server: known.term for server, known in self.newest().items() if known.term.lapsed_ms is not None}

    def begin(self, server: str, term: LeaseTerm) -> bool:
        """False when another process has begun a term with this number, or a later one. Two that begin the same term may both get
        True: what follows from a term can be done twice."""
        if not self._storage.create(_path(server, term.number), json.dumps(term.to_json()).encode(), durable=True):
            return False
        newest = self.newest().get(server)
        if newest is None or newest.term != term:
            return False  # later terms began while this process stood still
        self._delete_before(server, term.number)
        return True

    def note_done(self, server: str, term: LeaseTerm) -> None:
        self._storage.create(_path(server, term.number) + _DONE, b"")

    def _term(self, server: str, number: int) -> LeaseTerm | None:
        """None when a later one has replaced it meanwhile."""
        path = _path(server, number)
        known = self._read.get(server)
        if known is not None and known.number == number:
            return known
        data = self._storage.get(path)
        if data is None:
            return None
        try:
            found = LeaseTerm.from_json(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DomainError(
                f"{self._storage.uri}/{path} is damaged ({error!r}): delete it while no job and no client runs; they find out "
                "again whether the server is away"
            ) from error
        self._read[server] = found
        return found

    def _delete_before(self, server: str, number: int) -> None:
        for info in list(self._storage.list(f"{TERMS}/{server}")):
            old = info.path.rsplit("/", 1)[1].removesuffix(_DONE)
            if old.isdecimal() and int(old) < number:
                self._storage.delete(info.path)


def _path(server: str, number: int) -> str:
    return f"{TERMS}/{server}/{number:010d}"
