"""What an administrator does to a store of any kind: look, check, dump, compact, move. `jmsq store` prints it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from spark_jms.store.contract import SessionInfo, Store
from spark_jms.store.errors import StoreError, StoreInUseError, StoreUriError
from spark_jms.store.ledger.ledger import Change, Entry, Ledger, Prepared, Restored
from spark_jms.store.ledger.session import LedgerStore, Transaction
from spark_jms.store.uri import file_path, open_store, scheme_of

CHUNK_BYTES = 8 * 1024 * 1024
CHUNK_ENTRIES = 500


@dataclass(frozen=True)
class LockStatus:
    """Who has the store: `held` by somebody, since when, as which incarnation; `answers`: a client could use it."""

    store: str
    held: bool
    owner: str = ""
    hostname: str = ""
    pid: int = 0
    since_ms: int = 0
    engine: str = ""
    incarnation: str = ""
    version: int = 0
    answers: bool = False
    sessions: tuple[SessionInfo, ...] = ()


@dataclass(frozen=True)
class Checked:
    """`problems` are what is damaged, each named; empty when all is well."""

    store: str
    record_count: int
    object_count: int
    object_bytes: int
    in_doubt: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class DumpedRecord:
    name: str
    epoch: int
    holder: str | None
    objects: tuple[tuple[str, bytes], ...]
    damage: str = ""
    """What, and where, when it is damaged; then nothing else is known of it."""


@dataclass(frozen=True)
class Salvaged:
    """What could be read of a damaged store. `entries` make one in which everything is free; `left_out` names each
    damaged place, `uncertain` the record sets that may have lost changes."""

    entries: tuple[Entry, ...]
    left_out: tuple[str, ...]
    uncertain: tuple[str, ...]
    sessions: tuple[str, ...] = ()
    """Those that were connected; who still lives uses the store."""


@dataclass(frozen=True)
class Migrated:
    """`left_out` and `uncertain` only when a damaged store was salvaged; see Salvaged."""

    record_count: int
    object_count: int
    object_bytes: int
    prepared_count: int
    there_already: int
    left_out: tuple[str, ...] = ()
    uncertain: tuple[str, ...] = ()


def is_jdbc(uri: str) -> bool:
    return scheme_of(uri) in ("jdbc", "sqlite", "postgresql")


def ledger_store(store: Store) -> LedgerStore:
    if not isinstance(store, LedgerStore):
        raise StoreUriError(f"this works on record sets; {type(store).__name__} keeps none")
    return store


def lock_status(uri: str) -> LockStatus:
    """Changes nothing and takes no lock. Of a file store: its journal is locked only while somebody writes."""
    if is_jdbc(uri):
        from spark_jms.store.jdbc.admin import jdbc_lock_status

        return jdbc_lock_status(uri)
    with open_store(uri, create=False) as store:
        sessions = tuple(store.sessions().values())
    return LockStatus(uri, bool(sessions), sessions=sessions, answers=True)


def check(uri: str) -> Checked:
    """Reads everything, every checksum; changes nothing. A damaged record set is a problem, and not counted."""
    if is_jdbc(uri):
        from spark_jms.store.jdbc.admin import check_jdbc

        return check_jdbc(uri)
    try:
        with open_store(uri, create=False) as store:
            counts = store.statistics()
            in_doubt = tuple(store.in_doubt())
            problems = tuple(store.damaged().values())
    except StoreError as error:
        return Checked(uri, 0, 0, 0, (), (str(error),))
    return Checked(uri, counts.record_count, counts.object_count, counts.object_bytes, in_doubt, problems)


def dump(store: Store) -> Iterator[DumpedRecord]:
    """All record sets as they are at one moment."""

    def question(ledger: Ledger) -> list[DumpedRecord]:
        found = [
            DumpedRecord(name, record.epoch, record.holder, tuple(record.objects.items()))
            for name, record in ledger.records.items()
        ]
        found += [DumpedRecord(name, 0, None, (), damage.error().detail()) for name, damage in ledger.damaged.items()]
        return sorted(found, key=lambda record: record.name)

    yield from ledger_store(store)._backend.read(question)


def compact(uri: str) -> str:
    """In place, while others use it; what was done, in words."""
    if is_jdbc(uri):
        from spark_jms.store.jdbc.admin import compact_jdbc

        return compact_jdbc(uri)
    with open_store(uri, create=False) as store:
        return ledger_store(store)._backend.compact()


def migrate(source_uri: str, target_uri: str) -> Migrated:
    """Every record set with its epoch and objects, and every prepared transaction, into a store of any kind.

    Nothing is removed from the source. It must not be in use (StoreInUseError), nor the target. What the target has
    already, byte by byte, is left; so a migration that was interrupted is finished by doing it again. A record set that
    is there and differs is an error, and changes nothing.
    """
    with open_store(source_uri, create=False) as source, open_store(target_uri) as target:
        for store, uri in ((source, source_uri), (target, target_uri)):
            if sessions := store.sessions():
                labels = ", ".join(info.label or info.session_id for info in sessions.values())
                raise StoreInUseError(f"{uri} is used by {labels}")
        entries: list[Entry] = ledger_store(source)._backend.read(_all_entries)
        done = _copy(entries, ledger_store(target))
        if (lost := _missing(entries, ledger_store(target))) != []:
            raise StoreError(f"{target_uri} lacks what was written: {lost[:5]}")
    return done


def salvage(source_uri: str, target_uri: str) -> Migrated:
    """As `migrate`, of a store that is too damaged to be opened, or partly: all that is readable, up to the damage and
    around it. The source is read only, past its engine, and stays as it is."""
    found = _salvaged(source_uri)
    entries = list(found.entries)
    with open_store(target_uri) as target:
        if sessions := target.sessions():
            raise StoreInUseError(f"{target_uri} is used by {', '.join(sessions)}")
        done = _copy(entries, ledger_store(target))
        if (lost := _missing(entries, ledger_store(target))) != []:
            raise StoreError(f"{target_uri} lacks what was written: {lost[:5]}")
    return replace(done, left_out=found.left_out, uncertain=found.uncertain)


def _salvaged(uri: str) -> Salvaged:
    if is_jdbc(uri):
        from spark_jms.store.jdbc.salvage import salvage_jdbc

        return salvage_jdbc(uri)
    if (path := file_path(uri)) is None:
        raise StoreUriError(f"only a file store or one in a database can be salvaged, not {uri}")
    from spark_jms.store.file.salvage import salvage_file

    return salvage_file(path)


def _all_entries(ledger: Ledger) -> list[Entry]:
    """Nobody holds or waits: sessions do not move. RecordCorruptError when one is damaged."""
    for name in ledger.damaged:
        ledger.check_whole(name)
    entries: list[Entry] = [
        Restored(name, record.epoch, None, (), tuple(record.objects.items())) for name, record in ledger.records.items()
    ]
    return entries + [Prepared(xid, changes, restored=True) for xid, changes in ledger.prepared.items()]


def _missing(entries: list[Entry], target: LedgerStore) -> list[str]:
    def question(ledger: Ledger) -> list[str]:
        return [_name(entry) for entry in entries if not _is_there(entry, ledger)]

    return target._backend.read(question)


def _name(entry: Entry) -> str:
    return (
        entry.name if isinstance(entry, Restored) else f"transaction {entry.xid}" if isinstance(entry, Prepared) else ""
    )


def _is_there(entry: Entry, ledger: Ledger) -> bool:
    if isinstance(entry, Restored):
        record = ledger.records.get(entry.name)
        return record is not None and record.epoch == entry.epoch and record.objects == dict(entry.objects)
    if isinstance(entry, Prepared):
        there: tuple[Change, ...] | None = ledger.prepared.get(entry.xid)
        return there == entry.changes
    return False


def _copy(entries: list[Entry], target: LedgerStore) -> Migrated:
    def different(ledger: Ledger) -> list[str]:
        for entry in entries:
            if isinstance(entry, Restored):
                ledger.check_whole(entry.name)
        return [
            _name(entry)
            for entry in entries
            if (isinstance(entry, Restored) and entry.name in ledger.records)
            or (isinstance(entry, Prepared) and entry.xid in ledger.prepared)
            if not _is_there(entry, ledger)
        ]

    if clash := target._backend.read(different):
        raise StoreInUseError(f"the target has another content of {', '.join(clash[:5])} ({len(clash)} in all)")
    missing = set(_missing(entries, target))
    wanted = [entry for entry in entries if _name(entry) in missing]
    for chunk in _chunks(wanted):

        def plan(transaction: Transaction, chunk: list[Entry] = chunk) -> None:
            for entry in chunk:
                transaction.do(entry)

        target._backend.write(plan)
    records = [entry for entry in entries if isinstance(entry, Restored)]
    return Migrated(
        len(records),
        sum(len(entry.objects) for entry in records),
        sum(len(key) + len(value) for entry in records for key, value in entry.objects),
        len(entries) - len(records),
        len(entries) - len(wanted),
    )


def _chunks(entries: list[Entry]) -> Iterator[list[Entry]]:
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        chunk.append(entry)
        size += sum(len(value) for _, value in entry.objects) if isinstance(entry, Restored) else 0
        if size >= CHUNK_BYTES or len(chunk) >= CHUNK_ENTRIES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
