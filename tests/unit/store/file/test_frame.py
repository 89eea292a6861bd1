"""The bytes of a journal file, without a file (S9)."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.store.errors import StoreCorruptError, StoreVersionError
from spark_jms.store.file.frame import (
    HEADER_BYTES,
    MAGIC,
    Header,
    decode_header,
    encode_frame,
    encode_header,
    find_frame,
    scan,
)
from spark_jms.store.ledger.codec import Lost, Section, pack, unpack

HEADER = Header(7, b"0123456789abcdef")
SEED = HEADER.seed


def frames(payloads: list[bytes], base: int) -> tuple[bytes, list[int]]:
    data, starts = b"", []
    for payload in payloads:
        starts.append(base + len(data))
        data += encode_frame([payload], base + len(data), SEED)
    return data, starts


def test_a_header_survives_encoding() -> None:
    data = encode_header(HEADER)
    assert len(data) == HEADER_BYTES
    assert decode_header(data, "f") == HEADER


def test_every_flipped_or_missing_header_byte_is_noticed() -> None:
    data = encode_header(HEADER)
    for at in range(len(data)):
        with pytest.raises(StoreCorruptError):
            decode_header(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "f")
        with pytest.raises(StoreCorruptError):
            decode_header(data[:at], "f")


def test_a_newer_version_is_refused_by_its_preamble_alone() -> None:
    """C16: the bytes after the preamble may have another layout."""
    first = struct.pack("<8sI", MAGIC, 3)
    with pytest.raises(StoreVersionError) as caught:
        decode_header(first + struct.pack("<I", zlib.crc32(first)), "journal-1")
    assert (caught.value.file, caught.value.found, caught.value.known) == ("journal-1", 3, 2)


def test_an_older_version_is_refused() -> None:
    """S9: version 1 had no sections."""
    with pytest.raises(StoreVersionError, match="version 1"):
        decode_header(encode_header(HEADER, version=1), "journal-1")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(0, 1000))
def test_scan_reads_all_written_frames(payloads: list[bytes], base: int) -> None:
    data, starts = frames(payloads, base)
    found = scan(data, base, SEED)
    assert [frame.sections for frame in found.frames] == [(payload,) for payload in payloads]
    assert [frame.offset for frame in found.frames] == starts
    assert (found.end, found.wrong) == (base + len(data), "")


def test_every_flip_is_noticed_and_the_next_frame_is_found() -> None:
    data, starts = frames([b"first", b"second", b"third"], HEADER_BYTES)
    for at in range(starts[2] - HEADER_BYTES):
        for bit in range(8):
            bad = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
            found = scan(bad, HEADER_BYTES, SEED)
            start = starts[0] if at < starts[1] - HEADER_BYTES else starts[1]
            assert found.wrong
            assert found.end == start
            assert find_frame(bad[start - HEADER_BYTES :], start, SEED) is not None


@pytest.mark.parametrize("bits", [1, 0x80, 0xFF])
def test_a_damaged_section_leaves_the_others_readable(bits: int) -> None:
    """S9: scan reports the place of the lost section and reads everything else of this frame and the next."""
    sections = [b"head", b"one", b"", b"three"]
    data = encode_frame(sections, HEADER_BYTES, SEED)
    start = len(data) - len(b"onethree")
    data += encode_frame([b"next"], HEADER_BYTES + len(data), SEED)
    for at in range(start, start + len(b"onethree")):
        bad = data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
        found = scan(bad, HEADER_BYTES, SEED)
        assert found.wrong == ""
        assert [frame.lost for frame in found.frames] == [True, False]
        lost = 1 if at < start + 3 else 3
        place = HEADER_BYTES + (start if lost == 1 else start + 3)
        expected: list[Section] = [*sections]
        expected[lost] = Lost(place, place + len(sections[lost]))
        assert found.frames[0].sections == tuple(expected)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=4), st.data())
def test_a_flipped_byte_of_packed_sections_loses_one_section_or_all(sections: list[bytes], draw: st.DataObject) -> None:
    """S2, S9: the table is lost with all sections, a section alone."""
    data = pack(sections)
    assert unpack(data) == tuple(sections)
    at = draw.draw(st.integers(0, len(data) - 1))
    found = unpack(data[:at] + bytes([data[at] ^ draw.draw(st.integers(1, 255))]) + data[at + 1 :])
    start = len(data) - sum(map(len, sections))
    assert (found is None) == (at < start)
    if found is not None:
        assert [part for part in found if isinstance(part, Lost)] == [
            part for part in found if isinstance(part, Lost) and part.start <= at < part.end
        ]
        assert sum(isinstance(part, Lost) for part in found) == 1
        assert all(isinstance(part, Lost) or part == whole for part, whole in zip(found, sections, strict=True))
    assert unpack(data[:at]) is None


def test_a_journal_inside_a_value_is_not_taken_for_frames() -> None:
    inner, _ = frames([b"one", b"two"], HEADER_BYTES)
    data = encode_frame([inner * 3], HEADER_BYTES, SEED)
    torn = data[:-1]
    found = scan(torn, HEADER_BYTES, SEED)
    assert (found.frames, found.end) == ((), HEADER_BYTES)
    assert find_frame(torn, HEADER_BYTES, SEED) is None


def test_frames_of_another_journal_are_ignored() -> None:
    data, _ = frames([b"one"], HEADER_BYTES)
    assert scan(data, HEADER_BYTES, SEED + 1).wrong
    assert scan(data, HEADER_BYTES + 1, SEED).wrong
