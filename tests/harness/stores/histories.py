"""Random histories of a store, and journals made of them, for the tests of damage (S9)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from spark_jms.store.contract import Delete, Operation, Put
from spark_jms.store.file.frame import Header, encode_frame, encode_header
from spark_jms.store.ledger.codec import encode_sections
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import (
    Cancelled,
    Change,
    Closed,
    Connected,
    Ended,
    Entry,
    Prepared,
    Record,
    Resolved,
    Written,
)

HEADER = Header(1, b"0123456789abcdef")


def journal(frames: Sequence[Sequence[Entry]]) -> tuple[bytes, list[int]]:
    """A journal with these frames, the start of each frame, and the end. The entries must fit each other."""
    ledger, data, starts = Ledger(), encode_header(HEADER), []
    for entries in frames:
        for entry in entries:
            ledger.apply(entry)
        starts.append(len(data))
        data += encode_frame(encode_sections(entries), len(data), HEADER.seed)
    return data, [*starts, len(data)]


def flip(data: bytes, at: int, bits: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


def history(random: Random, length: int = 40) -> list[Entry]:
    """Entries that a store could have written: random steps, each possible at its place."""
    ledger, entries, made = Ledger(), list[Entry](), 0
    while len(entries) < length:
        made += 1
        name, sessions = random.choice("rst"), sorted(ledger.sessions)
        record = ledger.records.get(name) or Record()
        session_id = random.choice(sessions) if sessions else ""
        entry: Entry | None = None
        change = Change(name, record.epoch, _operations(random, made))
        changes = (change, *_second(random, ledger, change, made))
        match random.choice(
            ("connect", "open", "open", "open", "close", "end", "cancel", "write", "write", "prepare", "resolve")
        ):
            case "connect":
                entry = Connected(f"s{made}", "")
            case "open" if session_id:
                entry = ledger.next_open(session_id, name)
            case "close" if record.holder:
                entry = Closed(name, record.epoch)
            case "end" if session_id:
                entry = Ended((session_id,))
            case "cancel" if record.waiters:
                entry = Cancelled(name, random.choice(record.waiters))
            case "write" if record.holder and ledger.prepared.locked_by(changes) is None:
                entry = Written(changes)
            case "prepare" if record.holder and ledger.prepared.locked_by(changes) is None:
                entry = Prepared(f"t{made}", changes)
            case "resolve" if ledger.prepared:
                entry = Resolved(random.choice(sorted(ledger.prepared)), random.random() < 0.5)
        if entry is not None:
            ledger.apply(entry)
            entries.append(entry)
    return entries


def _operations(random: Random, made: int) -> tuple[Operation, ...]:
    key = random.choice("xyz")
    return (Delete(key) if random.random() < 0.1 else Put(key, b"%d" % made),)


def _second(random: Random, ledger: Ledger, first: Change, made: int) -> list[Change]:
    """Sometimes, a change of another record in the same commit."""
    others = [name for name, record in ledger.records.items() if name != first.name and record.holder]
    if not others or random.random() < 0.6:
        return []
    name = random.choice(others)
    return [Change(name, ledger.records[name].epoch, _operations(random, made))]
