"""T7: what of a message buffer stays in memory, where the rest is in its paging files, and how both fail."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.compression import CODECS
from spark_jms.core.messages.paging import (
    BufferAccount,
    PagePlace,
    PageSpace,
    default_limit_bytes,
    header_estimate_bytes,
)
from spark_jms.errors import OptionError, PagingError
from spark_jms.log.messages import paging
from spark_jms.log.messages.paging import (
    MessageBuffer,
    PagedRows,
    PagingFiles,
    buffer_of,
    default_directory,
    memory_bytes,
    process_buffer,
)
from spark_jms.settings.connection_factory import ConnectionFactory


def rows(first: int, count: int, size: int = 1_000) -> pa.RecordBatch:
    return pa.record_batch({"number": list(range(first, first + count)), "body": [os.urandom(size)] * count})


def numbers(kept: PagedRows) -> list[int]:
    return [n for batch in kept for n in batch.column("number").to_pylist()]


# -- the rule ---------------------------------------------------------------------------------------------------------
def test_default_is_a_third_of_the_memory_up_to_512_megabytes() -> None:
    """T7: the numbers of the text."""
    assert default_limit_bytes(300) == 100
    assert default_limit_bytes(1_536_000_000) == default_limit_bytes(2**40) == 512_000_000


def test_header_estimate_is_that_of_the_text() -> None:
    """T7: a message with three subscribers that have not finished it takes 1,024 bytes."""
    assert header_estimate_bytes([1, 1, 1], 1, is_topic=True) == 1024
    assert header_estimate_bytes([10], 10, is_topic=False) == 5120
    assert header_estimate_bytes([], 0, is_topic=True) == 0


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60), st.integers(0, 100))
def test_account_counts_what_is_resident_and_paged(steps: list[tuple[int, bool]], limit: int) -> None:
    """T7: what has room is resident, so memory stays within the limit; both counts end at 0."""
    account, resident, paged = BufferAccount(limit), list[int](), list[int]()
    for size, leaves in steps:
        if leaves and (resident or paged):
            if paged:
                assert account.unpage(paged.pop(), 1) == (not paged)
            else:
                account.drop(resident.pop())
        elif account.has_room(size):
            account.keep(size)
            resident.append(size)
        else:
            assert account.page(size, 1) == (not paged)
            paged.append(size)
        assert account.memory_bytes == sum(resident) <= limit
        assert account.free_bytes == limit - sum(resident)
        assert (account.paged_bytes, account.paged_messages) == (sum(paged), len(paged))


@given(st.lists(st.one_of(st.integers(0, 30), st.none()), max_size=80))
def test_places_of_pages_never_overlap(steps: list[int | None]) -> None:
    """T7: a place is used once, and a segment ends with its last page."""
    space, used, taken = PageSpace(segment_bytes=50), list[PagePlace](), set[tuple[int, int]]()
    ended: set[int] = set()
    for size in steps:
        if size is None and used:
            place = used.pop(0)
            is_last = all(other.segment != place.segment for other in used)
            assert space.free(place) == is_last
            ended |= {place.segment} if is_last else set()
        elif size is not None:
            place = space.take(size)
            assert place.segment not in ended
            octets = {(place.segment, place.offset + n) for n in range(size)}
            assert not octets & taken
            taken |= octets
            assert place.offset + size <= max(50, size)
            used.append(place)
        assert space.segments == len({place.segment for place in used})


# -- the memory of the process ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 1000),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": "600"}, 600),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/memory.max": "max"}, 1000),
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/memory.max": "400"}, 400),
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/b/memory.max": "5000"}, 1000),
        ({"/proc/self/cgroup": "9:memory:/x\n1:cpu:/", "/sys/fs/cgroup/memory/x/memory.limit_in_bytes": "300"}, 300),
        ({"/proc/self/cgroup": "0::/gone", "/sys/fs/cgroup/memory.max": "200"}, 200),
    ],
)
def test_memory_is_the_least_limit_of_the_control_groups(files: dict[str, str], found: int) -> None:
    """T7: of version 1 and 2, and of the groups around its own."""

    def read(path: str) -> str:
        try:
            return files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    assert memory_bytes(read, 1000) == found


def test_memory_of_this_process_is_known() -> None:
    assert 0 < memory_bytes() < 2**50


# -- the files --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [None, *CODECS])
def test_page_gives_back_what_was_written(tmp_path: Path, kind: str | None) -> None:
    """T7, T8: with each kind of compression; what does not get smaller stays as it is."""
    files = PagingFiles(str(tmp_path), CODECS[kind] if kind else None)
    for data in (b"", b"a" * 100_000, os.urandom(100_000)):
        page = files.write(pa.py_buffer(data))
        assert page.place.bytes == (len(data) if kind is None or len(set(data)) != 1 else page.place.bytes)
        assert page.place.bytes < 2_000 or kind is None or len(set(data)) != 1
        assert bytes(files.read(page)) == data
        files.free(page)
    files.close()


def test_directory_is_made_shows_no_file_and_keeps_no_byte(tmp_path: Path) -> None:
    """T7: the files have no names, so nothing of a killed process stays."""
    directory = tmp_path / "new" / "paging"
    files = PagingFiles(str(directory))
    assert not directory.exists()
    page = files.write(pa.py_buffer(b"x"))
    assert (files.segments, list(directory.iterdir()), directory.stat().st_mode & 0o777) == (1, [], 0o700)
    files.free(page)
    assert files.segments == 0
    files.close()


def test_damaged_page_is_refused(tmp_path: Path) -> None:
    """T7: a page has a checksum, and one that is cut is found too."""
    files = PagingFiles(str(tmp_path))
    page = files.write(pa.py_buffer(b"hello"))
    descriptor = next(iter(files._files.values())).fileno()
    os.pwrite(descriptor, b"j", 0)
    with pytest.raises(PagingError, match="is damaged: its checksum"):
        files.read(page)
    os.ftruncate(descriptor, 2)
    with pytest.raises(PagingError, match="cannot be read: it ends 3 bytes too early"):
        files.read(page)
    files.close()


def test_page_of_closed_files_is_refused(tmp_path: Path) -> None:
    """T7: a connection that another thread closes takes its pages with it."""
    files = PagingFiles(str(tmp_path))
    page = files.write(pa.py_buffer(b"x"))
    file = files._files[page.place.segment]
    files.close()
    with pytest.raises(PagingError, match="was closed"):
        files.read(page)
    files._files[page.place.segment] = file  # as when it is closed while it is read
    with pytest.raises(PagingError, match="cannot be read"):
        files.read(page)


def full(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_directory_keeps_nothing_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T7."""
    files = PagingFiles(str(tmp_path))
    monkeypatch.setattr(paging.os, "pwrite", full)
    with pytest.raises(PagingError, match=f"the paging directory {tmp_path} takes no page: .*No space left"):
        files.write(pa.py_buffer(b"x"))
    assert files.segments == 0


def test_default_directory_is_on_a_disk_unless_one_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T7: /tmp may be in memory."""
    monkeypatch.setattr(paging.tempfile, "gettempdir", lambda: str(tmp_path))
    assert default_directory() == str(tmp_path)
    monkeypatch.setattr(paging.tempfile, "gettempdir", lambda: "/tmp")
    assert default_directory() == "/var/tmp"
    monkeypatch.setattr(paging.os, "access", lambda *_: False)
    assert default_directory() == "/tmp"


# -- the buffer ---------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(1, 40), max_size=25), st.sampled_from([1, 20_000, 10**9]))
def test_rows_keep_their_order_whatever_pages(counts: list[int], limit: int) -> None:
    """T7: resident, paged and pending ones; afterwards nothing is counted."""
    buffer, first = MessageBuffer(limit), 0
    kept = PagedRows(buffer, piece_bytes=16_384)
    for count in counts:
        kept.append(rows(first, count))
        first += count
    assert numbers(kept) == numbers(kept) == list(range(first))
    assert kept.count == first
    kept.clear()
    found = buffer.statistics()
    assert (found.memory_bytes, found.paged_bytes, found.paged_messages, kept.count) == (0, 0, 0, 0)
    assert buffer.files.segments == 0


def test_what_exceeds_the_buffer_pages_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """T7: once when the threshold is crossed, once when nothing is paged any more."""
    caplog.set_level(logging.INFO, "spark_jms")
    buffer = MessageBuffer(3 * 2**20, str(tmp_path))
    kept = PagedRows(buffer)
    for number in range(10):
        kept.append(rows(number, 1, 2**20))
    found = buffer.statistics()
    assert (found.paged_messages, found.paged_messages_total, found.failures) == (8, 8, 0)
    assert found.memory_bytes <= found.limit_bytes < found.memory_bytes_high < 5 * 2**20
    assert found.paged_bytes == found.paged_bytes_total > 8 * 2**20
    assert [r.getMessage() for r in caplog.records] == [
        f"the message buffer has its 3,145,728 bytes: messages page to {tmp_path}"
    ]
    kept.clear()
    assert [r.getMessage() for r in caplog.records[1:]] == ["the message buffer has room again: no message is paged"]
    assert buffer.statistics().paged_messages_total == 8


def test_rows_stay_in_memory_while_the_directory_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T7: nothing is lost, one warning names the directory, and paging begins again by itself."""
    buffer = MessageBuffer(1, str(tmp_path))
    kept = PagedRows(buffer)
    with monkeypatch.context() as broken:
        broken.setattr(paging.os, "pwrite", full)
        for number in range(3):
            kept.append(rows(number, 1, 2**20))
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert f"the paging directory {tmp_path} takes no page: [Errno 28] No space left on device" in warning.getMessage()
    assert (buffer.statistics().failures, buffer.statistics().paged_messages) == (3, 0)
    kept.append(rows(3, 1, 2**20))
    assert (buffer.statistics().failures, buffer.statistics().paged_messages) == (3, 1)
    assert numbers(kept) == [0, 1, 2, 3]
    kept.clear()
    assert buffer.statistics().memory_bytes == 0


def test_rows_of_earlier_sends_outlast_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T7, T16: the application may commit them after an error that is not the directory's."""
    buffer = MessageBuffer(0, str(tmp_path))
    kept = PagedRows(buffer, 40_000)
    kept.append(rows(0, 10))
    counted = buffer.statistics().memory_bytes

    def out_of_memory(*_: Any) -> int:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(paging.os, "pwrite", out_of_memory)
        with pytest.raises(MemoryError):
            kept.append(rows(10, 30))
    assert kept.count == 10
    assert buffer.statistics().memory_bytes == counted
    kept.append(rows(40, 1))
    assert numbers(kept) == [*range(10), 40]
    kept.clear()
    assert buffer.statistics().memory_bytes == buffer.statistics().paged_bytes == 0
    buffer.close()


def test_paging_directory_that_is_a_file_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """T7."""
    place = tmp_path / "file"
    place.write_text("")
    kept = PagedRows(MessageBuffer(1, str(place)))
    kept.append(rows(0, 1, 2**20))
    assert numbers(kept) == [0]
    assert f"the paging directory {place} takes no page" in caplog.text


def test_forked_child_frees_no_page_of_its_parent(tmp_path: Path) -> None:
    """T7: the child closes its copies of the files."""
    buffer = MessageBuffer(1, str(tmp_path))
    kept = PagedRows(buffer)
    kept.append(rows(7, 1, 2**20))
    buffer.abandon()
    assert buffer.files.segments == 0


# -- its settings -----------------------------------------------------------------------------------------------------
def test_factory_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T7, T18: messageBufferSize, pagingDirectory, pagingMessageCompressionEnabled."""
    for name in ("JMSQ_MESSAGE_BUFFER_SIZE", "JMSQ_PAGING_DIRECTORY", "JMSQ_PAGING_COMPRESSION"):
        monkeypatch.delenv(name, raising=False)
    plain = process_buffer()
    assert plain.limit_bytes == default_limit_bytes(memory_bytes())
    assert (plain.files.directory, plain.files._codec) == (default_directory(), None)
    monkeypatch.setenv("JMSQ_MESSAGE_BUFFER_SIZE", "64 MB")
    monkeypatch.setenv("JMSQ_PAGING_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("JMSQ_PAGING_COMPRESSION", "LZF")
    given_here = process_buffer()
    assert (given_here.limit_bytes, given_here.files.directory) == (64_000_000, str(tmp_path))
    assert given_here.files._codec == CODECS["LZF"]
    factory = ConnectionFactory(
        message_buffer_bytes=10**6, paging_directory="/elsewhere", paging_message_compression_enabled=True
    )
    of_factory = buffer_of(factory)
    assert (of_factory.limit_bytes, of_factory.files.directory) == (10**6, "/elsewhere")
    assert of_factory.files._codec == CODECS["GZIP_DEFAULT_COMPRESSION"]


def test_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """T7."""
    monkeypatch.setenv("JMSQ_MESSAGE_BUFFER_SIZE", "many")
    with pytest.raises(
        OptionError, match="environment variable JMSQ_MESSAGE_BUFFER_SIZE is 'many', but must be 64 KiB to"
    ):
        process_buffer()
