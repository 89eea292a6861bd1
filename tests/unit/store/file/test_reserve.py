"""The reserve of a journal: zeros behind its last frame (S9)."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.store import Handle, Put, StoreCorruptError, StoreFullError
from spark_jms.store.disk import Disk
from spark_jms.store.file.frame import HEADER_BYTES, Judged, judge
from spark_jms.store.file.journal import LEAST_BYTES, RESERVE_BYTES, reserve_bytes
from spark_jms.store.file.store import FileStore
from tests.harness.stores.histories import HEADER, history, journal
from tests.harness.stores.journal_files import frames_end

JOURNAL = "journal-0000000001.log"


class CountingDisk(Disk):
    """Counts the writes that make a file longer. Is full once files have grown by `room` bytes."""

    def __init__(self) -> None:
        self.growths = 0
        self.room: int | None = None

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        size = os.fstat(fd).st_size
        if self.room is not None:
            data = data[: max(0, size + self.room - offset)]
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = super().pwrite(fd, data, offset)
        grown = max(0, offset + done - size)
        self.growths += grown > 0
        if self.room is not None:
            self.room -= grown
        return done


# ---- pure


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 20))
def test_reserve_is_bounded(length: int, limit: int) -> None:
    """S9: none if none is wanted; never more than the limit, nor than a small journal needs."""
    found = reserve_bytes(length, limit)
    assert 0 <= found <= min(limit, max(length, LEAST_BYTES))
    assert found or not limit


@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 3000), st.data())
def test_reserve_changes_no_judgement(seed: int, reserve: int, draw: st.DataObject) -> None:
    """S9: a journal cut anywhere, with zeros behind it, is judged as without them; but zeros hide where a cut file ended, so
    a frame whose last bytes are zeros may count."""
    data, starts = journal([[entry] for entry in history(Random(seed))])
    cut = draw.draw(st.integers(starts[-2], len(data)))
    acknowledged = draw.draw(st.sampled_from([0, starts[-2]]))

    def judged(found: bytes) -> Judged:
        return judge(found[HEADER_BYTES:], HEADER_BYTES, HEADER.seed, acknowledged, "j")

    bare, reserved = judged(data[:cut]), judged(data[:cut] + bytes(reserve))
    if data[:cut] + bytes(min(reserve, len(data) - cut)) == data:
        assert (len(reserved.frames), reserved.end, reserved.torn) == (len(starts) - 1, len(data), False)
        return
    assert (reserved.end, [frame.offset for frame in reserved.frames]) == (
        bare.end,
        [frame.offset for frame in bare.frames],
    )
    assert reserved.torn == (any(data[bare.end : cut]))


@settings(deadline=None)
@given(st.integers(0, 1 << 30), st.data())
def test_last_frame_with_lost_pages_is_torn(seed: int, draw: st.DataObject) -> None:
    """S9: a loss of power leaves any pages of an unacknowledged frame as zeros of the reserve: all of it counts or nothing."""
    data, starts = journal([[entry] for entry in history(Random(seed))])
    page = draw.draw(st.integers(1, 64))
    torn = bytearray(data)
    for at in range(starts[-2], len(data), page):
        if draw.draw(st.booleans()):
            end = min(at + page, len(data))
            torn[at:end] = bytes(end - at)
    found = judge(bytes(torn[HEADER_BYTES:]) + bytes(500), HEADER_BYTES, HEADER.seed, starts[-2], "j")
    assert found.end == (len(data) if bytes(torn) == data else starts[-2])


def test_zeros_in_place_of_an_acknowledged_frame_are_damage() -> None:
    """S9: the reserve begins where the acknowledged length ends, not before."""
    data, starts = journal([[entry] for entry in history(Random(1))])
    lost = data[HEADER_BYTES : starts[-2]] + bytes(len(data) - starts[-2] + 100)
    with pytest.raises(
        StoreCorruptError, match=f"the frames end here, and {len(data)} bytes were acknowledged"
    ) as caught:
        judge(lost, HEADER_BYTES, HEADER.seed, len(data), "j")
    assert caught.value.offset == starts[-2]


# ---- on the disk


def test_most_commits_leave_the_size_of_the_file(tmp_path: Path) -> None:
    """S9: 300 commits make the file longer a few times, and a small store keeps a small file."""
    disk = CountingDisk()
    with FileStore(str(tmp_path / "s"), disk=disk) as store, store.connect() as session:
        handle = session.open("r")
        file = tmp_path / "s" / JOURNAL
        assert file.stat().st_size < 2 * LEAST_BYTES
        before = disk.growths
        for number in range(300):
            handle.commit([Put("k", b"%d" % number)])
        assert disk.growths - before < 10
        assert frames_end(file) < file.stat().st_size <= frames_end(file) + RESERVE_BYTES


def commit_until_full(handle: Handle) -> int:
    """Commits 1, 2, 3 …; the last one that was taken."""
    for number in itertools.count(1):
        try:
            handle.commit([Put("n", b"%d" % number)])
        except StoreFullError:
            return number - 1
    raise AssertionError


def test_full_disk_takes_what_fits_into_the_reserve(tmp_path: Path) -> None:
    """S9: then StoreFullError, and with room again the same handle continues."""
    disk = CountingDisk()
    path = tmp_path / "s"
    with FileStore(str(path), disk=disk) as store, FileStore(str(path)) as other, store.connect() as session:
        handle = session.open("r")
        disk.room = 0
        taken = commit_until_full(handle)
        assert 0 < taken < LEAST_BYTES
        assert other.peek("r") == handle.objects() == {"n": b"%d" % taken}
        disk.room = None
        handle.commit([Put("n", b"after")])
        assert other.peek("r") == {"n": b"after"}
    with FileStore(str(path)) as store:
        assert store.peek("r") == {"n": b"after"}
        assert store.statistics().torn_tail_count == 0


def test_disk_with_room_for_the_frame_alone_takes_it(tmp_path: Path) -> None:
    """S9: a reserve that finds no room fails no commit."""
    disk = CountingDisk()
    path = tmp_path / "s"
    with FileStore(str(path), disk=disk) as store, FileStore(str(path)) as other, store.connect() as session:
        handle = session.open("r")
        disk.room = 10_100
        handle.commit([Put("k", b"x" * 10_000)])
        assert disk.room < 100
        assert other.peek("r") == {"k": b"x" * 10_000}
        with pytest.raises(StoreFullError):
            handle.commit([Put("k", b"y" * 10_000)])
        assert other.peek("r") == {"k": b"x" * 10_000}


@pytest.mark.parametrize("seed", range(20))
def test_openings_with_different_reserves_share_a_journal(tmp_path: Path, seed: int) -> None:
    """S9, C16: journals without a reserve, as earlier versions wrote them, continue; so do copies made at any moment."""
    random = Random(seed)
    path, expected = tmp_path / "s", dict[str, bytes]()
    for turn in range(6):
        first, second = (random.choice([0, 100, 700, RESERVE_BYTES]) for _ in range(2))
        with (
            FileStore(str(path), reserve_limit=first, compact_min_bytes=5_000, compact_ratio=1.5) as store,
            FileStore(str(path), reserve_limit=second) as other,
            store.connect() as session,
            other.connect() as theirs,
        ):
            handles = [session.open("r"), theirs.open("s")]
            for _ in range(random.randint(1, 30)):
                handle = random.choice(handles)
                key, value = random.choice("abc"), random.randbytes(random.choice([1, 50, 900]))
                handle.commit([Put(key, value)])
                expected[handle.name + key] = value
            copy = tmp_path / f"copy{turn}"
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns("sessions"))
            for where in (store, other):
                found = {name + key: value for name in "rs" for key, value in where.peek(name).items()}
                assert found == expected
        with FileStore(str(copy), reserve_limit=random.choice([0, 700])) as store:
            assert {name + key: value for name in "rs" for key, value in store.peek(name).items()} == expected
