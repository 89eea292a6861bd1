"""What is readable of a damaged journal, up to and around the damage. Changes nothing and takes no lock.

Theory. Values in the journal are absolute, so a key that was written after the damage is right again; whether a lost entry
changed another key is unknown. For a damaged section the record set is known: it *may* have lost changes, and its epoch is
right. For a gap, where nothing can be understood, nothing is known: every record set may have lost changes, except one whose
first opening follows the last gap. A lost entry hides at most one change of owner of a record set and takes at least one
byte. An entry that does not fit what is left, and a waiter that was dropped, hide at most one each. Epochs grow by the number
of all these, so every old owner stays fenced.

A record set that was already refused when the journal was compacted is taken from the journal of that time, which was kept.

Features: S9 (docs/FEATURES.md)
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_jms.store.contract import Put
from spark_jms.store.disk import Disk
from spark_jms.store.errors import StoreCorruptError, StoreInUseError, StoreNotFoundError
from spark_jms.store.file.frame import HEADER_BYTES, Frame, Header, decode_header, find_frame, scan
from spark_jms.store.file.journal_files import Generations
from spark_jms.store.file.locks import SessionLocks, read_hint
from spark_jms.store.ledger.administration import Salvaged
from spark_jms.store.ledger.codec import DecodeError, decode_sections
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import (
    Cancelled,
    Change,
    Closed,
    Damaged,
    Ended,
    Entry,
    LedgerError,
    Opened,
    Prepared,
    Record,
    Resolved,
    Restored,
    Waited,
    Written,
)

SESSION_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class _Gap:
    start: int
    end: int
    reason: str


def salvage_directory(directory: str) -> Salvaged:
    """StoreCorruptError when the header of the journal is unreadable, because without its id no frame can be trusted, and when
    the newest journal is missing. StoreInUseError while a session is alive."""
    generations = Generations(directory, Disk())
    listed = generations.listed() if os.path.isdir(directory) else []
    if not listed:
        raise StoreNotFoundError(directory)
    path = generations.path(listed[-1])
    data, header = _read(path)
    hint = read_hint(directory)
    if hint is not None and hint.generation > header.generation:
        raise StoreCorruptError(path, 0, f"it is not the newest journal: generation {hint.generation} is missing")
    known = hint is not None and hint.synced and hint.generation == header.generation
    found = salvage(data, header.seed, path, hint.length if known and hint else 0, functools.cache(_kept))
    heartbeat = SessionLocks(directory, Disk(), SESSION_TIMEOUT_MS)
    # The entry of a session may be lost; its lock file is not.
    if alive := heartbeat.alive({*found.sessions, *_listed(heartbeat.directory)}):
        raise StoreInUseError(f"{directory} is used by session {', '.join(sorted(alive))}")
    return found


def _read(path: str) -> tuple[bytes, Header]:
    with open(path, "rb") as file:
        data = file.read()
    return data, decode_header(data[:HEADER_BYTES], path)


def _kept(path: str) -> Salvaged | None:
    try:
        data, header = _read(path)
    except (OSError, StoreCorruptError):
        return None
    return salvage(data, header.seed, path)


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def salvage(
    data: bytes,
    seed: int,
    path: str,
    acknowledged: int = 0,
    kept: Callable[[str], Salvaged | None] = lambda path: None,
) -> Salvaged:
    """Pure. `data` is a whole journal with its header. `acknowledged` is its least length; `kept` returns what is readable of a
    journal that was kept when it was compacted."""
    fold = _Fold(path, kept)
    for piece in _pieces(data, seed, acknowledged):
        if isinstance(piece, _Gap):
            fold.gap(piece)
        else:
            fold.frame(piece)
    return fold.result()


def _pieces(data: bytes, seed: int, acknowledged: int) -> Iterator[_Gap | Frame]:
    """Good frames, and the gaps between and behind them. The reserve at the end of a journal is no gap."""
    at: int | None = HEADER_BYTES
    while at is not None:
        found = scan(data[at:], at, seed)
        yield from found.frames
        end, at = found.end, None
        if found.wrong:
            at = find_frame(data[end:], end, seed)
            wrong = found.wrong if at else f"{found.wrong} to the end of the file; a torn last write looks the same"
            yield _Gap(end, at or len(data), wrong)
            end = len(data)
    if end < acknowledged:
        yield _Gap(end, acknowledged, "the file ends before what was acknowledged")


class _Fold:
    def __init__(self, path: str, kept: Callable[[str], Salvaged | None]) -> None:
        self.ledger = Ledger()
        self._path = path
        self._kept = kept
        self._left_out: list[str] = []
        self._gaps = False
        self._hidden = 0  # upper bound of lost changes of owner
        self._whole: set[str] = set()  # record sets whose first opening follows the last gap
        self._strange: set[str] = set()  # record sets with an entry that did not fit
        self._damaged: set[str] = set()

    def gap(self, gap: _Gap) -> None:
        self._left_out.append(f"{self._path}: bytes {gap.start} to {gap.end}: {gap.reason}")
        self._gaps = True
        self._hidden += gap.end - gap.start
        self._whole.clear()

    def frame(self, frame: Frame) -> None:
        try:
            entries = decode_sections(frame.sections, os.path.basename(self._path))
        except DecodeError as error:
            self.gap(_Gap(frame.offset, frame.end, str(error)))
            return
        for entry in entries:
            if isinstance(entry, Damaged):
                self._damage(entry)
                continue
            if isinstance(entry, Opened) and entry.epoch == 1 and entry.name not in self.ledger.records:
                self._whole.add(entry.name)
            try:
                self.ledger.apply(entry)
            except LedgerError as error:
                self._force(entry, f"{self._path}: frame at byte {frame.offset}: {error}")

    def _damage(self, entry: Damaged) -> None:
        """Keeps what is left of the record set. If it was damaged before this journal began, that is what the kept journal has;
        its epoch was raised there, and no session has owned it since."""
        place = os.path.join(os.path.dirname(self._path), entry.file)
        self._left_out.append(f"{place}: {entry.reason} (record set {entry.name!r})")
        self._damaged.add(entry.name)
        if entry.file == os.path.basename(self._path):
            return
        kept = self._kept(place)
        found = (
            [part for part in kept.entries if isinstance(part, Restored) and part.name == entry.name] if kept else []
        )
        if kept and found:
            self.ledger.apply(found[0])
            self._left_out += [line for line in kept.left_out if line not in self._left_out]
        else:
            self.ledger.apply(entry)
            self._left_out.append(f"record set {entry.name!r}: {place} has nothing readable of it")

    def _force(self, entry: Entry, why: str) -> None:
        """Applies an entry that was made on lost entries: its objects and epochs count all the same."""
        ledger = self.ledger
        self._hidden += 1
        self._gaps = True
        match entry:
            case Opened(name, epoch, session_id):
                ledger.sessions.setdefault(session_id, "")
                self._record(name, epoch).holder = session_id
            case Closed(name, epoch):
                record = self._record(name, epoch)
                self._hidden += len(record.waiters)
                record.holder, record.waiters = None, []
            case Waited(name) | Cancelled(name):
                self._strange.add(name)
            case Ended(session_ids):
                known = tuple(session_id for session_id in session_ids if session_id in ledger.sessions)
                ledger.apply(Ended(known))
            case Written(changes):
                self._resolve_stale(changes)
                for change in changes:
                    ledger.change_objects(self._record(change.name, change.epoch), change.operations)
            case Restored(name, epoch, holder, waiters, objects):
                record = self._record(name, epoch)
                for session_id in (*([holder] if holder else []), *waiters):
                    ledger.sessions.setdefault(session_id, "")
                record.holder, record.waiters = holder, list(waiters)
                ledger.change_objects(record, [Put(key, value) for key, value in objects])
            case Prepared(xid, changes):
                self._resolve_stale(changes)
                for change in changes:
                    self._record(change.name, change.epoch)
                ledger.prepared[xid] = changes
            case Resolved(xid, commit):
                outcome = "committed" if commit else "rolled back"
                self._left_out.append(f"transaction {xid} was {outcome}; the changes that it promised are lost")
            case _:
                pass  # sessions are not salvaged
        if not self._left_out:
            self._left_out.append(why)  # without damage before it, the writer was faulty

    def _resolve_stale(self, changes: tuple[Change, ...]) -> None:
        """Drops prepared transactions whose keys a later entry writes. They lock their keys, so each was resolved in a lost
        entry; keeping one would undo newer values when it is committed again."""
        while (xid := self.ledger.prepared.locked_by(changes)) is not None:
            del self.ledger.prepared[xid]
            self._left_out.append(
                f"transaction {xid}: it was resolved; whether it was committed or rolled back is lost"
            )

    def _record(self, name: str, epoch: int) -> Record:
        self._strange.add(name)
        record = self.ledger.records.setdefault(name, Record())
        record.epoch = max(record.epoch, epoch)
        return record

    def result(self) -> Salvaged:
        ledger = self.ledger
        lost = {name for name in ledger.records if self._gaps and name not in self._whole - self._strange}
        entries: list[Entry] = [
            Restored(
                name, record.epoch + (self._hidden if name in lost else 0), None, (), tuple(record.objects.items())
            )
            for name, record in ledger.records.items()
        ]
        for xid, changes in ledger.prepared.items():
            if missing := {change.name for change in changes} - ledger.records.keys():
                self._left_out.append(f"transaction {xid}: it changes {', '.join(sorted(missing))}, which is left out")
            else:
                entries.append(Prepared(xid, changes, restored=True))
        uncertain = sorted(lost | self._damaged)
        return Salvaged(tuple(entries), tuple(self._left_out), tuple(uncertain), tuple(ledger.sessions))
