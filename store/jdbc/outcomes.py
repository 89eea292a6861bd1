"""SIBXACTS: the outcomes of the last commits, and the prepared transactions. Pure.

    state        xid                     data                                     kept
    COMMITTED    g: base : first token   the tokens of the appends of one batch   the last OUTCOMES_KEPT (writing.py)
    PREPARED     x: its id               the promised changes, in sections        until it is resolved

A damaged row is left as it is, and

    COMMITTED, identity matches        nothing is refused. The tokens are unknown, so the outcome of every append of that time
                                       that no other row names is unknown, never "not committed"
    PREPARED, identity matches         it stays in doubt and cannot be resolved. The record sets whose part of the promise is
                                       damaged are refused; if all parts are good, every record set that it names
    PREPARED, names unreadable         the whole store is refused: the record sets that it locks are unknown
    identity does not match            the whole store is refused: what the row was about is unknown

`identity` covers xid, state, base and position; `checksum` covers these and the data. Each batch begins at the position where
the one before it ended. At a gap a row is missing, and every outcome before the gap is unknown too.

Features: S2, S9 (docs/FEATURES.md)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.jdbc.rows import MISMATCH, bytes_of, number_of, text_of
from spark_jms.store.ledger.codec import DecodeError, decode_sections, encode_sections
from spark_jms.store.ledger.entries import Change, Damaged, Entry, Prepared
from spark_jms.store.ledger.sections import Lost, pack, unpack

COMMITTED, PREPARED = "COMMITTED", "PREPARED"


@dataclass(frozen=True)
class OutcomeRow:
    """A row of SIBXACTS."""

    xid: str
    state: str
    base: int
    position: int
    data: bytes

    @property
    def identity(self) -> int:
        return zlib.crc32(f"{self.xid} {self.state} {self.base} {self.position}".encode())

    @property
    def checksum(self) -> int:
        return zlib.crc32(self.data, self.identity)

    def values(self) -> dict[str, object]:
        return {**vars(self), "identity": self.identity, "checksum": self.checksum}


def outcome_of(found: Any) -> OutcomeRow:
    """From a result row of SIBXACTS."""
    return OutcomeRow(
        xid=text_of(found.xid),
        state=text_of(found.state),
        base=number_of(found.base),
        position=number_of(found.position),
        data=bytes_of(found.data),
    )


def committed(tokens: tuple[str, ...], base: int, position: int) -> OutcomeRow:
    return OutcomeRow(committed_xid(tokens, base), COMMITTED, base, position, msgspec.msgpack.encode(tokens))


def committed_xid(tokens: tuple[str, ...], base: int) -> str:
    return f"g:{base}:{tokens[0]}"


def prepared(xid: str, changes: tuple[Change, ...], base: int, position: int) -> OutcomeRow:
    promised = pack(encode_sections([Prepared(xid, changes, restored=True)]))
    return OutcomeRow(prepared_xid(xid), PREPARED, base, position, promised)


def prepared_xid(xid: str) -> str:
    return f"x:{xid}"


@dataclass(frozen=True)
class StoredOutcome:
    """A row as the table has it, with the two checksums of the table."""

    outcome: OutcomeRow
    identity: int
    checksum: int

    @property
    def good(self) -> bool:
        return self.outcome.checksum == self.checksum and self.outcome.identity == self.identity

    @property
    def known(self) -> bool:
        return self.outcome.checksum == self.checksum or self.outcome.identity == self.identity


@dataclass
class Transactions:
    """The content of SIBXACTS. `outcomes` are (token, position), oldest first, complete since `known_since`. `kept` are the xids
    of damaged rows, which no trim may remove. Each damaged row is in one of the last three: `damaged` (a record set is
    refused), `passed_over` (nothing is refused), `refusals` (the whole store is refused)."""

    prepared: list[Entry] = field(default_factory=list)
    outcomes: list[tuple[str, int]] = field(default_factory=list)
    position: int = 0
    known_since: int = 0
    kept: list[str] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    refusals: list[StoreCorruptError] = field(default_factory=list)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*self.damaged, *self.prepared)


def read_outcomes(found: Iterable[StoredOutcome], place: str) -> Transactions:
    """`found` in any order; `place` names the table in problems."""
    read = Transactions()
    first = True
    for one in sorted(found, key=lambda one: one.outcome.position):
        row, where = one.outcome, f"{place}, xid {one.outcome.xid!r}"
        if not one.known:
            read.refusals.append(StoreCorruptError(where, row.position, "the identity of the row does not match"))
            continue
        if not one.good:
            read.kept.append(row.xid)
        if row.state == PREPARED:
            _read_prepared(one, where, read)
            continue
        if first or row.base != read.position:
            read.known_since, first = row.base, False
        read.position = row.position
        if one.good:
            tokens = msgspec.msgpack.decode(row.data, type=tuple[str, ...])
            read.outcomes += [(token, row.position) for token in tokens]
        else:
            read.known_since = row.position
            read.passed_over.append(f"{where}: {MISMATCH}: which commits it recorded is unknown")
    return read


def _read_prepared(one: StoredOutcome, where: str, read: Transactions) -> None:
    sections = unpack(one.outcome.data)
    try:
        if sections is None or isinstance(sections[0], Lost):
            raise DecodeError("the names of the record sets that the transaction changes are unreadable")
        entries = decode_sections(sections, where)
    except DecodeError as error:
        read.refusals.append(StoreCorruptError(where, one.outcome.position, str(error)))
        return
    for entry in entries:
        if isinstance(entry, Damaged):
            read.damaged.append(entry)
        else:
            read.prepared.append(entry)
    if not one.good and not any(isinstance(section, Lost) for section in sections):
        names = {change.name: None for entry in entries if isinstance(entry, Prepared) for change in entry.changes}
        read.damaged += [Damaged(name, where, one.outcome.position, MISMATCH) for name in names]
