"""What an administrator does to a store of any kind: look, check, dump, compact, migrate, salvage. `jmsq store` prints it.

Each kind of store implements `Administration`; what works on the ledger of any store (dump, migrate) is here.

Features: R14, S9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from spark_jms.store.contract import COMMAND_LIMIT_S, Store, StoreInfo, StoreOpening
from spark_jms.store.errors import StoreError, StoreInUseError, shown_uri
from spark_jms.store.kinds.opening import administration_of, open_store
from spark_jms.store.ledger.administration import Checked, DumpedRecord, LockStatus, Migrated, ledger_store
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Prepared, Restored, chunks
from spark_jms.store.ledger.store import LedgerStore

__all__ = ["check", "compact", "counts", "dump", "load", "lock_status", "migrate", "salvage"]

Copied = Restored | Prepared
"""What a migration copies: record sets and prepared transactions. Sessions do not move."""


def lock_status(uri: str) -> LockStatus:
    return administration_of(uri).lock_status()


def check(uri: str) -> Checked:
    return administration_of(uri).check()


def compact(uri: str) -> str:
    return administration_of(uri).compact()


def dump(store: Store) -> Iterator[DumpedRecord]:
    """All record sets as of one moment, sorted by name."""

    def question(ledger: Ledger) -> list[DumpedRecord]:
        found = [
            DumpedRecord(name, record.epoch, record.holder, tuple(record.objects.items()))
            for name, record in ledger.records.items()
        ]
        found += [DumpedRecord(name, 0, None, (), damage.error().detail()) for name, damage in ledger.damaged.items()]
        return sorted(found, key=lambda record: record.name)

    yield from ledger_store(store).read(question)


def migrate(source_uri: str, target_uri: str) -> Migrated:
    """Copies every record set with its epoch and objects, and every prepared transaction, into a store of any kind.

    The source keeps everything. StoreInUseError when a session is connected to the source or the target, or when the
    target holds different content under the same name; then nothing was changed. Content that the target already has is
    not written again, so repeating an interrupted migration completes it.
    """
    with _opened(source_uri, create=False) as source:
        _require_unused(source, source_uri)
        return _copy(ledger_store(source).read(_all_entries), target_uri)


def counts(uri: str) -> StoreInfo | None:
    """What the connections of the store have done, of all processes, where its kind counts that."""
    return administration_of(uri).counts()


def salvage(source_uri: str, target_uri: str) -> Migrated:
    """As `migrate`, from a store that is damaged: copies all that is readable up to the damage and around it. It reads
    the source without its engine and leaves it unchanged."""
    found = administration_of(source_uri).salvage()
    entries: list[Copied] = [entry for entry in found.entries if isinstance(entry, Copied)]
    return replace(_copy(entries, target_uri), left_out=found.left_out, uncertain=found.uncertain)


def load(records: Iterable[DumpedRecord], target_uri: str) -> Migrated:
    """Writes what `dump` gave, every record set free and with its epoch. The same errors as `migrate`; also StoreInUseError
    when the target holds a record set of another name. Repeating an interrupted load completes it."""
    entries: list[Copied] = [Restored(record.name, record.epoch, None, (), record.objects) for record in records]
    with _opened(target_uri) as target:
        strangers = sorted(set(target.names()) - {_name(entry) for entry in entries})
    if strangers:
        raise StoreInUseError(
            f"the target holds {', '.join(strangers[:5])} ({len(strangers)} in all): name an empty store"
        )
    return _copy(entries, target_uri)


def _opened(uri: str, *, create: bool = True) -> Store:
    return open_store(uri, create=create, opening=StoreOpening(COMMAND_LIMIT_S))


def _require_unused(store: Store, uri: str) -> None:
    if sessions := store.sessions():
        labels = ", ".join(info.label or info.session_id for info in sessions.values())
        raise StoreInUseError(f"{shown_uri(uri)} is used by {labels}")


def _all_entries(ledger: Ledger) -> list[Copied]:
    """Every record set free, with its epoch. RecordCorruptError when one is damaged."""
    for name in ledger.damaged:
        ledger.check_whole(name)
    records = [
        Restored(name, record.epoch, None, (), tuple(record.objects.items())) for name, record in ledger.records.items()
    ]
    return [*records, *(Prepared(xid, changes, restored=True) for xid, changes in ledger.prepared.items())]


def _copy(entries: list[Copied], target_uri: str) -> Migrated:
    with _opened(target_uri) as store:
        _require_unused(store, target_uri)
        target = ledger_store(store)
        if clash := _names(entries, target, _differs):
            raise StoreInUseError(f"the target has other content for {', '.join(clash[:5])} ({len(clash)} in all)")
        missing = set(_names(entries, target, _is_missing))
        _write([entry for entry in entries if _name(entry) in missing], target)
        if lost := _names(entries, target, _is_missing):
            raise StoreError(f"{target_uri} lacks content that was written to it: {lost[:5]}")
    records = [entry for entry in entries if isinstance(entry, Restored)]
    return Migrated(
        record_count=len(records),
        object_count=sum(len(entry.objects) for entry in records),
        object_bytes=sum(len(key) + len(value) for entry in records for key, value in entry.objects),
        prepared_count=len(entries) - len(records),
        there_already=len(entries) - len(missing),
    )


def _write(entries: list[Copied], target: LedgerStore) -> None:
    for chunk in chunks(entries):
        target.append(chunk)


def _names(entries: list[Copied], target: LedgerStore, condition: Callable[[Copied, Ledger], bool]) -> list[str]:
    return target.read(lambda ledger: [_name(entry) for entry in entries if condition(entry, ledger)])


def _name(entry: Copied) -> str:
    return entry.name if isinstance(entry, Restored) else f"transaction {entry.xid}"


def _differs(entry: Copied, ledger: Ledger) -> bool:
    """The target has something else under this name. RecordCorruptError when that is damaged."""
    if isinstance(entry, Restored):
        ledger.check_whole(entry.name)
        return entry.name in ledger.records and _is_missing(entry, ledger)
    return entry.xid in ledger.prepared and _is_missing(entry, ledger)


def _is_missing(entry: Copied, ledger: Ledger) -> bool:
    if isinstance(entry, Restored):
        record = ledger.records.get(entry.name)
        return record is None or record.epoch != entry.epoch or record.objects != dict(entry.objects)
    return ledger.prepared.get(entry.xid) != entry.changes
