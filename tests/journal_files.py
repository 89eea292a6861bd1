"""Journal files of the file store, as tests look at them (S9)."""

from __future__ import annotations

from pathlib import Path

from spark_jms.store.file.frame import HEADER_BYTES, decode_header, scan


def frames_end(file: Path) -> int:
    """Where the frames of a good journal end and its reserve begins."""
    data = file.read_bytes()
    found = scan(data[HEADER_BYTES:], HEADER_BYTES, decode_header(data, str(file)).seed)
    assert not found.wrong
    return found.end


def without_reserve(file: Path) -> bytes:
    """The bytes of a good journal up to the end of its frames."""
    return file.read_bytes()[: frames_end(file)]
