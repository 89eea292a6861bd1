"""Several stores behind one contract: the address of a record says which store has it.

    members/…        a record of the default store
    @a/members/…     the record members/… of the store called a

The other stores are opened when they are first asked. One that cannot be opened or does not answer raises its own error;
the others are not concerned. A commit is one atomic write of each store that it changes, the default store's first; what
spans several stores and has to be atomic is a transfer (spark_jms/core/transactions/transfer.py).

Features: M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import fields

from spark_jms.store.contract import (
    Handle,
    Operation,
    RecordInfo,
    RecordView,
    RuleCall,
    Session,
    SessionInfo,
    SessionStatistics,
    Store,
    StoreStatistics,
    check_changes,
)
from spark_jms.store.errors import (
    FencedError,
    NameInvalidError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    TransactionUnknownError,
    ValueInvalidError,
)

DEFAULT = ""


def address(store: str, name: str) -> str:
    """`store`: DEFAULT, or the name of another one. Works for prefixes of names too."""
    return f"@{store}/{name}" if store else name


def split_address(name: str) -> tuple[str, str]:
    """The store and the name there. Raises NameInvalidError."""
    if not name.startswith("@"):
        return DEFAULT, name
    store, slash, plain = name[1:].partition("/")
    if not store or not slash:
        raise NameInvalidError(f"not the address of a record: {name[:80]!r}")
    return store, plain


class RoutedStore(Store):
    """Closing it closes all of them. `sessions` and `in_doubt` leave out stores that cannot be asked now; every other answer
    about such a store raises."""

    def __init__(
        self,
        default: Store,
        open_other: Callable[[str], Store],
        others: Callable[[], Sequence[str]] = tuple,
        *,
        owns_default: bool = True,
    ) -> None:
        """`open_other` opens the store of a name; `others` are all names that there are. Closing leaves the default store open
        unless it `owns_default`."""
        self._owns_default = owns_default
        self._default, self._open_other, self.others = default, open_other, others
        self._lock = threading.Lock()  # never held while a store is asked
        self._opening: dict[str, Future[Store]] = {}
        self._open: dict[str, Store] = {}
        self._closed = False

    def store(self, name: str) -> Store:
        """The store itself, whose records have plain names. Raises the error of opening it. All who ask for it while it is
        opened wait for the same attempt and share its outcome: none of them begins another one when this fails."""
        if name == DEFAULT:
            return self._default
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store is closed")
            if name in self._open:
                return self._open[name]
            others = self._opening.get(name)
            outcome = others or self._opening.setdefault(name, Future())
        if others is not None:
            return others.result()
        try:
            opened = self._open_other(name)
        except BaseException as error:
            self._end_opening(name, None)
            interrupted = StoreBusyError(f"the opening of store {name} was interrupted")
            outcome.set_exception(error if isinstance(error, Exception) else interrupted)
            raise
        if not self._end_opening(name, opened):
            opened.close()
            outcome.set_exception(StoreClosedError("the store is closed"))
        else:
            outcome.set_result(opened)
        return outcome.result()

    def _end_opening(self, name: str, opened: Store | None) -> bool:
        """False when this store was closed meanwhile."""
        with self._lock:
            del self._opening[name]
            if opened is not None and not self._closed:
                self._open[name] = opened
            return not self._closed

    def drop(self, name: str) -> None:
        """Close the store of a name, which was deleted. Whoever asks for it next gets the one that is there then."""
        with self._lock:
            dropped = self._open.pop(name, None)
        if dropped is not None:
            with suppress(StoreError):
                dropped.close()

    def connect(self, label: str = "") -> Session:
        return RoutedSession(self, label)

    def sessions(self) -> dict[str, SessionInfo]:
        found = dict(self._default.sessions())
        for name in self.others():
            with suppress(StoreError):
                found |= self.store(name).sessions()
        return found

    def names(self, prefix: str = "") -> list[str]:
        """Those of the store that the prefix addresses."""
        store, plain = split_address(prefix)
        return [address(store, name) for name in self.store(store).names(plain)]

    def info(self, name: str) -> RecordInfo | None:
        store, plain = split_address(name)
        return self.store(store).info(plain)

    def infos(self, prefix: str = "") -> dict[str, RecordInfo]:
        """Those of the store that the prefix addresses."""
        store, plain = split_address(prefix)
        return {address(store, name): info for name, info in self.store(store).infos(plain).items()}

    def peek(self, name: str) -> dict[str, bytes]:
        store, plain = split_address(name)
        return self.store(store).peek(plain)

    def damaged(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for store in (DEFAULT, *self.others()):
            found |= {address(store, name): what for name, what in self.store(store).damaged().items()}
        return found

    def in_doubt(self) -> dict[str, tuple[str, ...]]:
        found = dict(self._default.in_doubt())
        for store in self.others():
            with suppress(StoreError):
                prepared = self.store(store).in_doubt().items()
                found |= {xid: tuple(address(store, name) for name in names) for xid, names in prepared}
        return found

    def resolve(self, xid: str, commit: bool) -> None:
        for store in (DEFAULT, *self.others()):
            with suppress(TransactionUnknownError):
                return self.store(store).resolve(xid, commit)
        raise TransactionUnknownError(xid)

    def statistics(self) -> StoreStatistics:
        """Of the default store and of all that are open."""
        with self._lock:
            counted = [self._default, *self._open.values()]
        return _sum(StoreStatistics, [store.statistics() for store in counted])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            open_now, self._open = list(self._open.values()), {}
        for store in open_now:
            with suppress(StoreError):  # it cannot be reached; its sessions end by themselves
                store.close()
        if self._owns_default:
            self._default.close()


class RoutedSession(Session):
    """A session of each store that it has been used for. `session_id` is that of the default store."""

    def __init__(self, stores: RoutedStore, label: str) -> None:
        self._stores, self._label = stores, label
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {DEFAULT: stores.store(DEFAULT).connect(label)}
        self._of: dict[str, Store] = {}  # the other stores that have them
        self._store_of: dict[Handle, str] = {}
        self.session_id = self._sessions[DEFAULT].session_id

    def open(self, name: str, timeout_ms: int = 0) -> Handle:
        store, plain = split_address(name)
        try:
            handle = self._session(store).open(plain, timeout_ms)
        except FencedError:
            self._forget(store)
            raise
        with self._lock:
            self._store_of[handle] = store
        return handle

    def cancel(self, name: str) -> None:
        store, plain = split_address(name)
        self._session(store).cancel(plain)

    def commit(self, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        for store, part in self._by_store(changes).items():
            self._session(store).commit(part)

    def look(self, names: Sequence[str]) -> dict[str, RecordView]:
        """Of one moment for the records of one store."""
        found: dict[str, RecordView] = {}
        for store, plain in _plain_by_store(names).items():
            found |= {address(store, name): view for name, view in self._session(store).look(plain).items()}
        return found

    def change(
        self, names: Sequence[str], call: RuleCall, held: Mapping[Handle, Sequence[Operation]] | None = None
    ) -> bytes:
        """Of records of one store, whose session runs the rule: it knows them by their plain names. ValueInvalidError when they,
        or the handles, are in several."""
        plain, parts = _plain_by_store(names), self._by_store(held or {})
        stores = plain.keys() | parts.keys()
        if len(stores) > 1:
            shown = ", ".join(sorted(store or "the default store" for store in stores))
            raise ValueInvalidError(f"one change is of one store, not of {shown}")
        store = next(iter(stores), DEFAULT)
        return self._session(store).change(plain.get(store, []), call, parts.get(store))

    def prepare(self, xid: str, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        for store, part in self._by_store(changes).items():
            self._session(store).prepare(xid, part)

    def statistics(self) -> SessionStatistics:
        with self._lock:
            sessions = list(self._sessions.values())
        return _sum(SessionStatistics, [session.statistics() for session in sessions])

    def close(self) -> None:
        with self._lock:
            sessions = list(self._sessions.items())
        for store, session in sessions:
            if store != DEFAULT:
                with suppress(StoreError):  # it cannot be reached; the session ends by itself
                    session.close()
        self._sessions[DEFAULT].close()

    def _forget(self, store: str) -> None:
        """The session there has ended: the next call begins another. That of the default store is this one's own."""
        if store != DEFAULT:
            with self._lock:
                self._sessions.pop(store, None)

    def _session(self, store: str) -> Session:
        if store == DEFAULT:
            return self._sessions[DEFAULT]
        now = self._stores.store(store)
        with self._lock:
            if self._of.get(store) is now and store in self._sessions:
                return self._sessions[store]
        made = now.connect(self._label)
        with self._lock:
            if self._of.get(store) is not now or store not in self._sessions:
                self._sessions[store], self._of[store] = made, now
            known = self._sessions[store]
        if known is not made:
            made.close()
        return known

    def _by_store(self, changes: Mapping[Handle, Sequence[Operation]]) -> dict[str, dict[Handle, Sequence[Operation]]]:
        check_changes(changes)
        parts: dict[str, dict[Handle, Sequence[Operation]]] = {}
        with self._lock:
            for handle, operations in changes.items():
                parts.setdefault(self._store_of.get(handle, DEFAULT), {})[handle] = operations
        return dict(sorted(parts.items()))


def _plain_by_store(names: Sequence[str]) -> dict[str, list[str]]:
    """The names as each store has them."""
    plain: dict[str, list[str]] = {}
    for name in names:
        store, own = split_address(name)
        plain.setdefault(store, []).append(own)
    return plain


def _sum(kind: type, counted: Sequence[object]):  # type: ignore[no-untyped-def]
    return kind(**{field.name: sum(getattr(one, field.name) for one in counted) for field in fields(kind)})
