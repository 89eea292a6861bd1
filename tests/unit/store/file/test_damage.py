"""Damage is isolated (S9): whatever byte or row is damaged, the whole store refuses by name, or exactly the record sets that
are concerned do, and all others are right, and stay so through commits, compaction and reopening.

First the pure model: which bytes of a journal are whose. Then the stores.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.store import Put, RecordCorruptError, StoreCorruptError, StoreVersionError, TransactionInDoubtError
from spark_jms.store.file.frame import HEADER_BYTES, decode_header, judge, scan
from spark_jms.store.file.store import FileStore
from spark_jms.store.kinds.administration import check, dump, migrate
from spark_jms.store.ledger.codec import decode, decode_sections, encode
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import (
    Change,
    Connected,
    Damaged,
    Entry,
    LedgerError,
    Opened,
    Prepared,
    Restored,
    Written,
)
from tests.harness.stores.histories import HEADER, flip, history, journal
from tests.harness.stores.journal_files import without_reserve

ALL = "the whole store"


# ---- the model: which record set does each byte concern?


@dataclass(frozen=True)
class Owner:
    """Some bytes, and the record set they concern; None for the whole store."""

    start: int
    end: int
    whose: str


def owners(data: bytes, seed: int) -> list[Owner]:
    """Of an undamaged journal: each section concerns its record set, all other bytes the whole store."""
    found, at = [], 0
    for frame in scan(data[HEADER_BYTES:], HEADER_BYTES, seed).frames:
        names = section_names(decode_sections(frame.sections, ""))
        start = frame.end - sum(len(section) for section in frame.sections[1:] if isinstance(section, bytes))
        found.append(Owner(at, start, ALL))
        for name, section in zip(names, frame.sections[1:], strict=True):
            assert isinstance(section, bytes)
            found.append(Owner(start, start + len(section), name))
            start += len(section)
        at = start
    assert not any(data[at:])  # the reserve
    return found


def section_names(entries: list[Entry]) -> list[str]:
    names: list[str] = []
    for entry in entries:
        if isinstance(entry, Restored):
            names.append(entry.name)
        elif isinstance(entry, Written | Prepared):
            names += [change.name for change in entry.changes]
    return names


def whose(found: list[Owner], at: int) -> str:
    return next(owner.whose for owner in found if owner.start <= at < owner.end)


def read(data: bytes, acknowledged: int) -> Ledger:
    """As the journal does."""
    ledger, seed = Ledger(), decode_header(data[:HEADER_BYTES], "j").seed
    for frame in judge(data[HEADER_BYTES:], HEADER_BYTES, seed, acknowledged, "j").frames:
        for entry in decode_sections(frame.sections, "j"):
            ledger.apply(entry)
    return ledger


def view(ledger: Ledger, without: set[str]) -> tuple[object, ...]:
    records = {n: (r.epoch, r.holder, r.waiters, r.objects) for n, r in ledger.records.items() if n not in without}
    prepared = {
        xid: [change for change in changes if change.name not in without] for xid, changes in ledger.prepared.items()
    }
    return ledger.sessions, records, prepared


def written(seed: int) -> tuple[list[Entry], bytes, list[int]]:
    """A journal of random entries in frames of random size, sometimes after a compaction."""
    random = Random(seed)
    entries = history(random, 50)
    compacted, ledger = random.choice((0, 25)), Ledger()
    for entry in entries[:compacted]:
        ledger.apply(entry)
    pieces = [*ledger.snapshot(), *entries[compacted:]]
    frames, at = [], 0
    while at < len(pieces):
        step = random.randint(1, 4)
        frames.append(pieces[at : at + step])
        at += step
    data, starts = journal(frames)
    return entries, data, starts


def true_ledger(entries: list[Entry]) -> Ledger:
    ledger = Ledger()
    for entry in entries:
        ledger.apply(entry)
    return ledger


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 100_000), st.data())
def test_a_flipped_journal_byte_refuses_its_record_set_or_the_store(seed: int, draw: st.DataObject) -> None:
    """S9: refused as a whole, or exactly the record sets whose bytes they are; all else is as it was: objects, epochs,
    holders, waiters, sessions, promises."""
    entries, data, _ = written(seed)
    found, bad = owners(data, HEADER.seed), data
    touched = draw.draw(st.sets(st.integers(0, len(data) - 1), min_size=1, max_size=3))
    if draw.draw(st.booleans()):  # most bytes of a small journal concern the whole store
        touched = {at for at in touched if whose(found, at) != ALL} or touched
    for at in touched:
        bad = flip(bad, at, draw.draw(st.integers(1, 255)))
    expected = {whose(found, at) for at in touched}
    if ALL in expected:
        with pytest.raises((StoreCorruptError, StoreVersionError)):
            read(bad, len(data))
        return
    ledger, true = read(bad, len(data)), true_ledger(entries)
    assert ledger.damaged.keys() == expected
    assert view(ledger, expected) == view(true, expected)
    assert (ledger.object_count, ledger.object_bytes) == (
        sum(len(record.objects) for record in ledger.records.values()),
        sum(len(key) + len(value) for record in ledger.records.values() for key, value in record.objects.items()),
    )


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 100_000), st.data())
def test_an_unacknowledged_damaged_last_frame_is_torn(seed: int, draw: st.DataObject) -> None:
    """S9: it is cut off; damage in an earlier frame is damage."""
    _, data, starts = written(seed)
    at = draw.draw(st.integers(starts[-2], len(data) - 1))
    judged = judge(flip(data, at)[HEADER_BYTES:], HEADER_BYTES, HEADER.seed, starts[-2], "j")
    assert (judged.end, judged.torn) == (starts[-2], True)
    cut = draw.draw(st.integers(starts[-2], len(data) - 1))
    judged = judge(data[HEADER_BYTES:cut], HEADER_BYTES, HEADER.seed, starts[-2], "j")
    assert (judged.end, judged.torn) == (starts[-2], cut > starts[-2])
    with pytest.raises(StoreCorruptError, match="acknowledged"):
        judge(data[HEADER_BYTES:cut], HEADER_BYTES, HEADER.seed, len(data), "j")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000), st.data())
def test_damaged_record_sets_do_not_affect_the_others(seed: int, draw: st.DataObject) -> None:
    """S9: from the damage on, whatever is written, the others are as if nothing had happened; so they are in a snapshot, and
    on the wire."""
    entries = history(Random(seed), 60)
    damaged, true = Ledger(), true_ledger(entries)
    at, name = draw.draw(st.integers(0, 60)), draw.draw(st.sampled_from("rst"))
    for number, entry in enumerate(entries):
        if number == at:
            damaged.apply(Damaged(name, "f", 1, "why"))
        damaged.apply(entry)
    if at < 60:
        assert view(damaged, {name}) == view(true, {name})
        assert name not in damaged.records
        copy = Ledger()
        for entry in decode(encode(damaged.snapshot())):
            copy.apply(entry)
        assert view(copy, {name}) == view(true, {name})
        assert copy.damaged == damaged.damaged


def test_every_operation_on_a_damaged_record_set_is_refused() -> None:
    """S9: with its name and place; a commit over several record sets is refused as a whole."""
    ledger = Ledger()
    change = Change("r", 1, (Put("k", b"v"),))
    for entry in (Connected("a", ""), Opened("r", 1, "a"), Opened("s", 1, "a"), Prepared("tx", (change,))):
        ledger.apply(entry)
    ledger.apply(Damaged("r", "file", 17, "why"))
    for action in (
        lambda: ledger.next_open("a", "r"),
        lambda: ledger.owned("a", "r", 1),
        lambda: ledger.next_write("a", [Change("s", 1, ()), change]),
        lambda: ledger.next_prepare("a", "ty", [change]),
        lambda: ledger.next_resolve("tx", True),
        lambda: ledger.next_resolve("tx", False),
    ):
        with pytest.raises(RecordCorruptError, match="'r' is damaged: file, why") as caught:
            action()  # type: ignore[no-untyped-call]
        assert (caught.value.name, caught.value.file, caught.value.offset) == ("r", "file", 17)
    assert ledger.next_write("a", [Change("s", 1, (Put("k", b"v"),))])
    with pytest.raises(LedgerError):
        ledger.apply(Opened("s", 3, "a"))


# ---- the file store


RECORDS = [f"r{number}" for number in range(6)]


def fill(path: Path, random: Random) -> dict[str, dict[str, bytes]]:
    """Six record sets, written together and alone, and a transaction in doubt. Returns their content."""
    content: dict[str, dict[str, bytes]] = {name: {} for name in RECORDS}
    with FileStore(str(path)) as store, store.connect() as session:
        handles = [session.open(name) for name in RECORDS]
        for step in range(20):
            some = random.sample(handles, random.randint(1, 3))
            changes = {handle: [Put(random.choice("abc"), random.randbytes(random.randint(1, 40)))] for handle in some}
            session.commit(changes)
            for handle, operations in changes.items():
                content[handle.name][operations[0].key] = operations[0].value
            if step == 10 and random.random() < 0.5:
                store.compact()  # type: ignore[attr-defined]
        session.prepare("tx", {handle: [Put("promised", random.randbytes(20))] for handle in handles[:2]})
    return content


def open_again(path: Path, content: dict[str, dict[str, bytes]], expected: set[str]) -> None:
    """Exactly `refused` are refused; all others have their content and take one more commit."""
    with FileStore(str(path)) as store, store.connect() as session:
        assert store.damaged().keys() == expected
        assert store.statistics().damaged_count == len(expected)
        assert store.names() == RECORDS
        assert store.infos().keys() == content.keys() - expected
        assert store.in_doubt() == {"tx": ("r0", "r1")}
        for name in RECORDS:
            if name in expected:
                for refused in (store.peek, session.open, store.info):
                    with pytest.raises(RecordCorruptError, match=name) as caught:
                        refused(name)  # type: ignore[operator]
                    assert str(path) in str(caught.value)
                    assert "jmsq store migrate --salvage" in str(caught.value)
                continue
            assert store.peek(name) == content[name]
            handle = session.open(name)
            assert handle.objects() == content[name]
            handle.commit([Put("more", b"%d" % handle.epoch)])
            content[name]["more"] = b"%d" % handle.epoch
            if name in ("r0", "r1"):
                with pytest.raises(TransactionInDoubtError):
                    handle.commit([Put("promised", b"other")])


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_byte_of_a_file_store_stays_isolated(tmp_path: Path, seed: int) -> None:
    """S9: through commits, compaction and reopening; the damaged bytes stay, in the journal or in the kept file."""
    random = Random(seed)
    whole = fill(tmp_path / "s", random)
    file = next((tmp_path / "s").glob("journal-*.log"))
    data = without_reserve(file)
    found = owners(data, decode_header(data, "j").seed)
    isolated = [owner for owner in found if owner.whose != ALL]
    for turn in range(4):
        path, content = tmp_path / f"copy{turn}", {name: dict(objects) for name, objects in whole.items()}
        shutil.copytree(tmp_path / "s", path)
        owner = random.choice(isolated if turn else found)
        bad = flip(data, random.randrange(owner.start, owner.end), random.randrange(1, 256))
        (path / file.name).write_bytes(bad)
        if owner.whose == ALL:
            with pytest.raises((StoreCorruptError, StoreVersionError)) as caught:
                FileStore(str(path))
            assert file.name in str(caught.value)
            assert (path / file.name).read_bytes() == bad
            continue
        open_again(path, content, {owner.whose})
        assert (path / file.name).read_bytes().startswith(bad)
        for _ in range(2):
            with FileStore(str(path)) as store:
                store.compact()  # type: ignore[attr-defined]
            open_again(path, content, {owner.whose})
            kept = next(path.glob("damaged-*.log"))
            assert kept.read_bytes().startswith(bad)
            assert len(list(path.glob("*.log"))) == 2


def test_a_damaged_lock_file_refuses_nothing(tmp_path: Path) -> None:
    """S9: the journal has all that the lock file had."""
    path = tmp_path / "s"
    with FileStore(str(path)) as store, store.connect() as session:
        session.open("r").commit([Put("k", b"v")])
    whole = (path / "journal.lock").read_bytes()
    for at in range(len(whole)):
        (path / "journal.lock").write_bytes(flip(whole, at))
        with FileStore(str(path)) as store:
            assert (store.peek("r"), store.damaged()) == ({"k": b"v"}, {})
        if at == 128:  # SWITCH is set: the journal continued in a new generation
            whole = (path / "journal.lock").read_bytes()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store with r, s and t, of which s is damaged."""
    path = tmp_path / "s"
    with FileStore(str(path)) as store, store.connect() as session:
        for name in "rst":
            session.open(name).commit([Put("k", f"value of {name}".encode())])
    file = next(path.glob("journal-*.log"))
    file.write_bytes(flip(file.read_bytes(), file.read_bytes().index(b"value of s")))
    return path


def test_damage_is_reported_by_log_check_dump_and_migrate(damaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S9: the log names it once per opening, check and dump name it, and a migration is refused."""
    with caplog.at_level(logging.WARNING, "store.file"), FileStore(str(damaged)) as store:
        store.peek("r")
        store.compact()  # type: ignore[attr-defined]
        store._backend._journal.close()  # type: ignore[attr-defined]
        assert store.peek("t") == {"k": b"value of t"}
        assert [(record.name, bool(record.damage)) for record in dump(store)] == [
            ("r", False),
            ("s", True),
            ("t", False),
        ]
    assert len([record for record in caplog.records if "'s' is damaged" in record.message]) == 1
    found = check(str(damaged))
    assert (found.record_count, len(found.problems)) == (2, 1)
    assert "'s' is damaged" in found.problems[0]
    assert str(damaged / "damaged-0000000001.log") in found.problems[0]
    with pytest.raises(RecordCorruptError, match="'s'"):
        migrate(str(damaged), str(damaged.with_name("t")))


def test_damage_under_an_open_handle_refuses_only_new_readers(tmp_path: Path) -> None:
    """S9: a process that read it before the damage continues, because its memory is right; a process that reads it now is
    refused. When that one compacts the journal, no process can read it any more. Closing works."""
    path = tmp_path / "s"
    with FileStore(str(path)) as first, first.connect() as session:
        handle, other = session.open("r"), session.open("s")
        handle.commit([Put("k", b"value")])
        file = next(path.glob("journal-*.log"))
        file.write_bytes(flip(file.read_bytes(), file.read_bytes().index(b"value")))
        with FileStore(str(path)) as second:
            handle.commit([Put("j", b"1")])
            other.commit([Put("j", b"1")])
            assert handle.objects() == {"k": b"value", "j": b"1"}
            assert (second.damaged().keys(), second.peek("s")) == ({"r"}, {"j": b"1"})
            second.compact()  # type: ignore[attr-defined]
            for action in (handle.objects, handle.waiters, lambda: handle.commit([Put("k", b"v")])):
                with pytest.raises(RecordCorruptError, match="'r'"):
                    action()  # type: ignore[operator]
            other.commit([Put("j", b"2")])
            assert second.peek("s") == {"j": b"2"}
        handle.close()


def test_a_process_that_read_before_the_damage_heals_by_compacting(tmp_path: Path) -> None:
    """S9: its memory is right, so the new journal is right for all processes."""
    path = tmp_path / "s"
    with FileStore(str(path)) as first, first.connect() as session:
        handle = session.open("r")
        handle.commit([Put("k", b"value")])
        file = next(path.glob("journal-*.log"))
        file.write_bytes(flip(file.read_bytes(), file.read_bytes().index(b"value")))
        with FileStore(str(path)) as second:
            assert second.damaged().keys() == {"r"}
            first.compact()  # type: ignore[attr-defined]
            assert (second.damaged(), second.peek("r")) == ({}, {"k": b"value"})
            assert check(str(path)).problems == ()


def test_migration_never_overwrites_a_damaged_record_set(damaged: Path) -> None:
    """S9: a damaged record set in the target refuses the migration."""
    with FileStore(str(damaged.with_name("source"))) as store, store.connect() as session:
        session.open("s").commit([Put("k", b"new")])
    with pytest.raises(RecordCorruptError, match="'s'"):
        migrate(str(damaged.with_name("source")), str(damaged))


def test_a_waiter_for_a_damaged_record_set_gets_the_error(tmp_path: Path) -> None:
    """S9: a waiting session gets RecordCorruptError."""
    path = tmp_path / "s"
    with FileStore(str(path)) as first, first.connect() as holder:
        holder.open("r").commit([Put("k", b"value")])
        with FileStore(str(path)) as second, second.connect() as session:
            backend = second._backend
            sleep = backend.sleep_ms

            def damage(duration_ms: float) -> None:
                backend.write(lambda transaction: transaction.do(Damaged("r", "file", 1, "why")))
                sleep(duration_ms)

            backend.sleep_ms = damage  # type: ignore[method-assign]
            with pytest.raises(RecordCorruptError, match="'r'"):
                session.open("r", timeout_ms=5_000)
