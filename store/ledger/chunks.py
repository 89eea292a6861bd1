"""Entries in chunks of bounded size, so that copying a whole ledger never builds one write of everything. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_jms.store.ledger.entries import Entry, Restored

CHUNK_BYTES = 8 * 1024 * 1024
CHUNK_ENTRIES = 500


def chunks(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Each chunk ends with the entry that reaches CHUNK_BYTES of keys and values, or CHUNK_ENTRIES."""
    chunk: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        chunk.append(entry)
        if isinstance(entry, Restored):
            size_bytes += sum(len(key) + len(value) for key, value in entry.objects)
        if size_bytes >= CHUNK_BYTES or len(chunk) >= CHUNK_ENTRIES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk
