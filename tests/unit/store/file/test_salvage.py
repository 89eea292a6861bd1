"""Salvage of a damaged journal (S9). The tests build journals from entries, so each loss is exact."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from spark_jms.store import open_store
from spark_jms.store.contract import Delete, Put
from spark_jms.store.errors import StoreCorruptError, StoreInUseError, StoreNotFoundError
from spark_jms.store.file.frame import FRAME_HEADER_BYTES, HEADER_BYTES, decode_header, scan
from spark_jms.store.file.salvage import salvage as salvage_journal
from spark_jms.store.file.salvage import salvage_directory
from spark_jms.store.file.store import FileStore
from spark_jms.store.kinds.administration import salvage
from spark_jms.store.ledger.administration import Salvaged
from spark_jms.store.ledger.codec import TABLE_ROW_BYTES
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import (
    Change,
    Closed,
    Connected,
    Ended,
    Entry,
    Opened,
    Prepared,
    Resolved,
    Restored,
    Waited,
    Written,
)
from tests.harness.stores.histories import HEADER, flip, history, journal
from tests.harness.stores.journal_files import without_reserve

A, B = Connected("a", ""), Connected("b", "")


def head(data: bytes, start: int) -> int:
    """The offset of the head of this frame."""
    return start + FRAME_HEADER_BYTES + TABLE_ROW_BYTES * int.from_bytes(data[start + 4 : start + 8], "little")


def salvaged(frames: Sequence[Sequence[Entry]], *lost: int) -> tuple[Salvaged, int]:
    """Salvages a journal in which the heads of the frames `lost` are damaged; also returns the size of these frames."""
    data, starts = journal(frames)
    for index in lost:
        data = flip(data, head(data, starts[index]))
    return salvage_journal(data, HEADER.seed, "j"), sum(starts[index + 1] - starts[index] for index in lost)


def records(found: Salvaged) -> dict[str, Restored]:
    return {entry.name: entry for entry in found.entries if isinstance(entry, Restored)}


def put(name: str, epoch: int, **values: bytes) -> Written:
    return Written((Change(name, epoch, tuple(Put(key, value) for key, value in values.items())),))


def test_an_undamaged_journal_is_salvaged_unchanged() -> None:
    """S9: nothing is left out or uncertain, and no epoch is raised."""
    found, _ = salvaged([[A], [Opened("r", 1, "a")], [put("r", 1, k=b"1")]])
    assert (found.left_out, found.uncertain) == ((), ())
    assert found.entries == (Restored("r", 1, None, (), (("k", b"1"),)),)


def test_damage_in_the_middle_keeps_the_frames_around_it() -> None:
    """S9: frames before and after count; the lost bytes are named; old owners stay fenced; a later record set is certain."""
    frames: list[list[Entry]] = [
        [A],
        [Opened("r", 1, "a")],
        [put("r", 1, old=b"1", again=b"1")],
        [put("r", 1, again=b"2", lost=b"2")],
        [put("r", 1, again=b"3")],
        [Opened("new", 1, "a")],
        [put("new", 1, k=b"v")],
    ]
    _, starts = journal(frames)
    found, size = salvaged(frames, 3)
    assert found.uncertain == ("r",)
    assert found.left_out == (
        f"j: bytes {starts[3]} to {starts[4]}: the checksum of the head of a frame does not match",
    )
    assert dict(records(found)["r"].objects) == {"old": b"1", "again": b"3"}
    assert records(found)["r"].epoch == 1 + size
    assert records(found)["new"] == Restored("new", 1, None, (), (("k", b"v"),))


@pytest.mark.parametrize("at", [0, FRAME_HEADER_BYTES, -1])
def test_damage_of_any_frame_keeps_all_others(at: int) -> None:
    """S9: every other frame counts, and epochs rise above every epoch that the lost frame may have used."""
    frames: list[list[Entry]] = [
        [A, B],
        [Opened("r", 1, "a")],
        [put("r", 1, one=b"1")],
        [Closed("r", 1)],
        [Opened("r", 2, "b")],
        [put("r", 2, two=b"2")],
        [Ended(("b",))],
        [Opened("r", 3, "a")],
        [put("r", 3, three=b"3")],
    ]
    data, starts = journal(frames)
    for index, start in enumerate(starts[:-1]):
        found = salvage_journal(flip(data, head(data, start) if at < 0 else start + at), HEADER.seed, "j")
        assert len(found.left_out) == 1
        assert f"bytes {start} to {starts[index + 1]}" in found.left_out[0]
        expected = {"one": 2, "two": 5, "three": 8}
        assert {key for key, _ in records(found)["r"].objects} == {k for k, made in expected.items() if made != index}
        assert records(found)["r"].epoch > 3
        assert found.uncertain == ("r",)


def test_a_damaged_section_concerns_only_its_record_set() -> None:
    """S9: other record sets of the same commit keep their changes, epochs are right, and no other record set is uncertain."""
    both = Written((Change("r", 1, (Put("k", b"lost"),)), Change("s", 1, (Put("k", b"kept"),))))
    data, starts = journal([[A], [Opened("r", 1, "a"), Opened("s", 1, "a")], [put("r", 1, k=b"1", j=b"1")], [both]])
    found = salvage_journal(flip(data, data.rindex(b"lost")), HEADER.seed, "j")
    assert found.uncertain == ("r",)
    assert len(found.left_out) == 1
    assert "'r'" in found.left_out[0]
    assert records(found)["r"] == Restored("r", 1, None, (), (("k", b"1"), ("j", b"1")))
    assert records(found)["s"] == Restored("s", 1, None, (), (("k", b"kept"),))
    assert starts[3] < data.rindex(b"lost")


def test_a_damaged_promise_stays_in_doubt() -> None:
    """S9, S2: the transaction stays in doubt with what is left of it, and the record set is named."""
    promise = Prepared("tx", (Change("r", 1, (Put("k", b"lost"),)), Change("s", 1, (Put("k", b"kept"),))))
    data, _ = journal([[A], [Opened("r", 1, "a"), Opened("s", 1, "a")], [promise], [put("s", 1, j=b"1")]])
    found = salvage_journal(flip(data, data.rindex(b"lost")), HEADER.seed, "j")
    assert found.uncertain == ("r",)
    assert "what transaction tx promises" in found.left_out[0]
    left = Prepared("tx", (Change("r", 1, ()), Change("s", 1, (Put("k", b"kept"),))), restored=True)
    assert [entry for entry in found.entries if isinstance(entry, Prepared)] == [left]


def test_every_damaged_place_is_named() -> None:
    """S9: the report adds that damage at the end looks like a torn last write."""
    frames: list[list[Entry]] = [
        [A],
        [Opened("r", 1, "a")],
        [put("r", 1, x=b"1")],
        [put("r", 1, y=b"1")],
        [put("r", 1, z=b"1")],
    ]
    found, size = salvaged(frames, 2, 4)
    assert [" to the end of the file; a torn" in place for place in found.left_out] == [False, True]
    assert dict(records(found)["r"].objects) == {"y": b"1"}
    assert records(found)["r"].epoch == 1 + size


def test_a_truncated_journal_keeps_all_complete_frames() -> None:
    """S9: cut at each byte of the last frame."""
    data, starts = journal([[A], [Opened("r", 1, "a")], [put("r", 1, x=b"1")], [put("r", 1, x=b"2")]])
    for end in range(starts[3] + 1, starts[4]):
        found = salvage_journal(data[:end], HEADER.seed, "j")
        assert dict(records(found)["r"].objects) == {"x": b"1"}
        assert len(found.left_out) == 1


def made(directory: Path) -> Path:
    with open_store(str(directory)) as store, store.connect() as session:
        session.open("r").commit([Put("k", b"1")])
        session.open("other").commit([Put("k", b"2"), Delete("none")])
    return next(directory.glob("journal-*.log"))


def test_a_damaged_header_is_refused(tmp_path: Path) -> None:
    """S9: without the journal's id a frame cannot be told from a value; the file is named and left."""
    file = made(tmp_path / "s")
    whole = file.read_bytes()
    for at in range(HEADER_BYTES):
        if 8 <= at < 12:  # the version, which has a checksum
            continue
        file.write_bytes(flip(whole, at))
        with pytest.raises(StoreCorruptError, match=file.name):
            salvage_directory(str(tmp_path / "s"))
        assert file.read_bytes() == flip(whole, at)


def test_salvage_changes_nothing_in_the_source(tmp_path: Path) -> None:
    """S9: salvage takes no lock, writes no hint and cuts no torn end."""
    source = tmp_path / "s"
    file = made(source)
    whole = without_reserve(file)
    file.write_bytes(flip(whole, head(whole, HEADER_BYTES))[:-3])

    def look() -> dict[str, tuple[bytes, int]]:
        files = [path for path in source.rglob("*") if path.is_file()]
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = look()
    assert (
        len(salvage(str(source), str(tmp_path / "t")).left_out) == 3
    )  # one more: the file is shorter than the acknowledged length
    assert look() == before


def test_salvage_of_a_missing_store_is_refused(tmp_path: Path) -> None:
    """S9: with a named error, and nothing is created."""
    with pytest.raises(StoreNotFoundError):
        salvage_directory(str(tmp_path / "none"))
    assert list(tmp_path.iterdir()) == []


def test_a_live_session_with_a_lost_entry_keeps_the_store_in_use(tmp_path: Path) -> None:
    """S9, S3: the session files tell which sessions live, not only the damaged journal."""
    source = tmp_path / "s"
    with open_store(str(source)) as store, store.connect():
        file = next(source.glob("journal-*.log"))
        whole = file.read_bytes()
        try:
            file.write_bytes(flip(whole, HEADER_BYTES + FRAME_HEADER_BYTES))
            with pytest.raises(StoreInUseError):
                salvage_directory(str(source))
        finally:
            file.write_bytes(whole)


def test_record_sets_of_lost_sessions_keep_their_objects() -> None:
    """S9: whether the lost session held them or waited for them."""
    frames: list[list[Entry]] = [
        [A, B],
        [Restored("r", 7, "a", ("b",), (("k", b"1"),))],
        [Ended(("a",))],
        [put("r", 8, j=b"2")],
    ]
    found, _ = salvaged(frames, 0)
    assert dict(records(found)["r"].objects) == {"k": b"1", "j": b"2"}
    assert records(found)["r"].epoch > 8
    assert found.uncertain == ("r",)


def test_a_transaction_with_a_lost_end_stays_in_doubt_unless_its_keys_changed() -> None:
    """S9: a later write of its keys proves that it was resolved; keeping it could undo newer values."""
    change = Change("r", 1, (Put("k", b"old"),))
    frames: list[list[Entry]] = [[A], [Opened("r", 1, "a")], [Prepared("tx", (change,))], [Resolved("tx", True)]]
    found, _ = salvaged([*frames, [put("r", 1, j=b"1")]], 3)
    assert [entry.xid for entry in found.entries if isinstance(entry, Prepared)] == ["tx"]
    for later in (put("r", 1, k=b"new"), Prepared("ty", (change,))):
        found, _ = salvaged([*frames, [later]], 3)
        kept = [entry.xid for entry in found.entries if isinstance(entry, Prepared)]
        assert kept == (["ty"] if isinstance(later, Prepared) else [])
        assert any("transaction tx" in place for place in found.left_out)
        ledger = Ledger()
        for entry in found.entries:
            ledger.apply(entry)


def test_a_transaction_with_a_lost_beginning_is_named() -> None:
    """S9: by the entry of its end."""
    change = Change("r", 1, (Put("k", b"1"),))
    frames: list[list[Entry]] = [[A], [Opened("r", 1, "a")], [Prepared("tx", (change,))], [Resolved("tx", True)]]
    found, _ = salvaged(frames, 2)
    assert "transaction tx was committed; the changes that it promised are lost" in found.left_out
    assert found.uncertain == ("r",)


def test_a_hand_over_to_a_lost_session_fences_it() -> None:
    """S9, R9: also for a record set that was first opened after the damage."""
    frames: list[list[Entry]] = [[A], [B], [Opened("new", 1, "a")], [Waited("new", "b")], [Closed("new", 1)]]
    found, _ = salvaged(frames, 1)  # b owned it at epoch 2
    assert records(found)["new"].epoch > 2


def test_hand_overs_after_the_damage_never_outgrow_the_epochs() -> None:
    """S9, R9: each of many dropped waiters may have been an owner."""
    people = [f"w{n}" for n in range(200)]
    waits: list[list[Entry]] = [[Waited("r", name)] for name in people]
    ends: list[list[Entry]] = [[Ended((name,))] for name in people[:-1]]
    frames: list[list[Entry]] = [
        [A, B, *(Connected(name, "") for name in people)],
        [Opened("r", 1, "a")],
        [Closed("r", 1), Opened("r", 2, "b")],
        [Closed("r", 2)],
        [Opened("r", 3, "b")],
        *waits,
        [Closed("r", 3)],
        *ends,
    ]
    for lost in (1, 2, 3, 4):
        found, _ = salvaged(frames, lost)
        assert records(found)["r"].epoch >= 3 + len(people), lost


def test_a_journal_cut_between_frames_is_known_from_the_lock_file(tmp_path: Path) -> None:
    """S9: every remaining frame is good; only journal.lock tells that others are missing. The store does not open either."""
    file = made(tmp_path / "s")
    whole = without_reserve(file)
    ends = [frame.end for frame in scan(whole[HEADER_BYTES:], HEADER_BYTES, decode_header(whole, "j").seed).frames]
    for end, reserve in itertools.product([HEADER_BYTES, *ends[:-1]], (0, 300)):
        file.write_bytes(whole[:end] + bytes(reserve))
        found = salvage_directory(str(tmp_path / "s"))
        assert len(found.left_out) == 1
        assert f"bytes {end} to {len(whole)}: the file ends before what was acknowledged" in found.left_out[0]
        assert found.uncertain == tuple(sorted(records(found)))
        with pytest.raises(StoreCorruptError, match="acknowledged"):
            FileStore(str(tmp_path / "s"))
        assert file.read_bytes() == whole[:end] + bytes(reserve)


def test_a_record_set_refused_before_a_compaction_comes_from_the_kept_journal(tmp_path: Path) -> None:
    """S9: its prepared transactions move with it."""
    source, target = tmp_path / "s", str(tmp_path / "t")
    with FileStore(str(source)) as store, store.connect() as session:
        handle, other = session.open("r"), session.open("s")
        handle.commit([Put("k", b"left")])
        handle.commit([Put("j", b"lost")])
        session.prepare("tx", {handle: [Put("k", b"promised")], other: [Put("k", b"promised")]})
    file = next(source.glob("journal-*.log"))
    file.write_bytes(flip(file.read_bytes(), file.read_bytes().index(b"lost")))
    with FileStore(str(source)) as store:
        store.compact()
    assert next(source.glob("journal-*.log")) != file
    done = salvage(str(source), target)
    assert done.uncertain == ("r",)
    assert len(done.left_out) == 1
    assert "damaged-0000000001.log" in done.left_out[0]
    with open_store(target) as store:
        info = store.info("r")
        assert info is not None
        assert (info.epoch, store.peek("r"), store.in_doubt()) == (1, {"k": b"left"}, {"tx": ("r", "s")})
    next(source.glob("damaged-*.log")).unlink()
    done = salvage(str(source), str(tmp_path / "u"))
    assert done.uncertain == ("r",)
    assert "it changes r, which is left out" in done.left_out[-1]
    with open_store(str(tmp_path / "u")) as store:
        assert (store.names(), store.in_doubt()) == (["s"], {})


@pytest.mark.parametrize("seed", range(300))
def test_random_damage_fences_every_owner_and_names_all_losses(seed: int) -> None:
    """S9, R9: every record set that is salvaged is fenced; one that is not called uncertain is as it was; whatever is
    salvaged can be written into an empty store."""
    random = Random(seed)
    frames = [[entry] for entry in history(random)]
    data, _ = journal(frames)
    for at in random.sample(range(HEADER_BYTES, len(data)), random.randint(1, 4)):
        data = flip(data, at, random.randrange(1, 256))
    found = salvage_journal(data, HEADER.seed, "j")
    true, copy = Ledger(), Ledger()
    for entry in (entry for frame in frames for entry in frame):
        true.apply(entry)
    for entry in found.entries:
        copy.apply(entry)
    assert found.left_out
    for name, record in copy.records.items():
        assert record.epoch >= true.records[name].epoch
        if name not in found.uncertain:
            assert record.objects == true.records[name].objects
