"""Compression: of bodies, from their sender to their reader, and of the files of a destination.

A message whose body has at least so many bytes as its producer's compression threshold is stored with a GZIP body:

    sent               stored in `body`          `text`   the property JMS_JMSQ_Compressed
    text (or a map)    GZIP of its UTF-8 bytes   null     text
    bytes              GZIP of the bytes         null     body

A body that does not get smaller stays as it is. Limits on the size of a message count what was sent. Moving messages, selectors
and compaction leave the bodies compressed; the client decompresses one when the application reads it, and a query of Spark where
its `columns` name `text` or `body`. Only rows with such a body are looked at one by one: GZIP has no kernel.

In files all columns are compressed with Snappy. With `storeMessageCompressionEnabled` the bodies, which are `text` and `body`, have
the codec that `messageCompressionOptions` names instead; headers and properties, which planning and selectors read, stay fast.
Parquet has no LZF: LZ4, which is as fast, stands for it. Readers find the codec in each file, so files of several kinds lie side by
side.

The body of a very large message stays uncompressed unless the setting says otherwise: a codec needs as much memory as the body
once more, and a sender shall need at most three times its size.

Features: T8 (docs/FEATURES.md)
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import arrow_scalar
from spark_jms.core.messages.properties import MapEntries
from spark_jms.core.messages.types import map_column, map_rows, readable
from spark_jms.settings.destination import BEST_COMPRESSION, BEST_SPEED, DEFAULT_COMPRESSION, LZF, DestinationSettings

COMPRESSED_PROPERTY = "JMS_JMSQ_Compressed"
TEXT, BODY = "text", "body"
_GZIP = 31  # zlib's window bits for the format of GZIP
_LEVEL = 6
MOST_BYTES = 16 * 2**20  # that are decompressed at a time
_MAP = pa.map_(pa.string(), pa.string())
_COMPRESSED = arrow_scalar(COMPRESSED_PROPERTY, pa.string())
BODIES = ("text", "body")
OTHERS = "snappy"
VERY_LARGE_BYTES = 32 * 2**20


def pack(data: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return packer.compress(data) + packer.flush()


def unpack(packed: bytes) -> bytes:
    """Raises ValueError for bytes that are not GZIP, or not all of it."""
    try:
        return zlib.decompress(packed, _GZIP)
    except zlib.error as error:
        raise ValueError(f"the compressed body is damaged: {error}") from None


def unpacked_bytes(packed: bytes) -> int:
    """How many bytes `unpack` gives, by the end of the GZIP: below 4 GiB, as the size of a message is."""
    return int.from_bytes(packed[-4:], "little")


def has_compressed(properties: pa.Array) -> bool:
    """Of a column of properties."""
    return len(properties.keys) > 0 and bool(pc.any(pc.equal(properties.keys, _COMPRESSED)).as_py())


def compressed(rows: pa.RecordBatch, threshold: int | pa.Array | None) -> pa.RecordBatch:
    """Normalised rows, with the bodies compressed that have `threshold` bytes or more: one for all rows, or for each, in which
    null is never. None: none."""
    if threshold is None:
        return rows
    text, body = rows.column(TEXT), rows.column(BODY)
    sizes = pc.coalesce(pc.binary_length(text), pc.binary_length(body))
    large = pc.indices_nonzero(pc.fill_null(pc.greater_equal(sizes, threshold), False)).to_pylist()
    changed: dict[int, tuple[bytes, str]] = {}
    for row in large:
        kind = TEXT if text[row].is_valid else BODY
        data = (text if kind == TEXT else body)[row].as_buffer().to_pybytes()
        packed = pack(data)
        if len(packed) < len(data):
            changed[row] = packed, kind
    if not changed:
        return rows
    is_changed = pa.array([row in changed for row in range(rows.num_rows)])
    bodies = pc.replace_with_mask(body, is_changed, pa.array([packed for packed, _ in changed.values()], body.type))
    texts = pc.if_else(is_changed, pa.scalar(None, text.type), text)
    properties = rows.column("properties").to_pylist()
    for row, (_, kind) in changed.items():
        properties[row] = [*(properties[row] or ()), (COMPRESSED_PROPERTY, kind)]
    return _with(rows, {TEXT: texts, BODY: bodies, "properties": pa.array(properties, _MAP)})


def columns_to_read(columns: list[str]) -> list[str]:
    """To decompress what these stored columns have."""
    more = {TEXT: [BODY, "properties"], BODY: ["properties"]}
    return list(dict.fromkeys([*columns, *(name for column in columns for name in more.get(column, ()))]))


def pieces(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Consecutive slices of the rows, whose compressed bodies have MOST_BYTES together once they are decompressed, or that are one
    row. A few MB of GZIP may be more than a column can have."""
    names = rows.schema.names
    if BODY not in names or "properties" not in names or not has_compressed(rows.column("properties")):
        return [rows]
    starts, used = [0], 0
    for row, kind in enumerate(_kinds(rows)):
        size = unpacked_bytes(rows.column(BODY)[row].as_py() or b"") if kind is not None else 0
        if used and used + size > MOST_BYTES:
            starts.append(row)
            used = 0
        used += size
    return [rows.slice(first, end - first) for first, end in pairwise([*starts, rows.num_rows])]


def _kinds(rows: pa.RecordBatch) -> list[str | None]:
    """What the property of each row says."""
    entries = MapEntries(rows.column("properties"))
    return list(readable(entries.items.take(entries.of(pc.equal(entries.keys, COMPRESSED_PROPERTY)))).to_pylist())


def saved_bytes(rows: pa.RecordBatch) -> pa.Int64Array | None:
    """How many bytes of each stored row compression has saved, so that its size counts what was sent; None: no body is
    compressed."""
    if not has_compressed(rows.column("properties")):
        return None
    bodies = rows.column(BODY)
    saved = [
        0 if kind is None else unpacked_bytes(body) - len(body) - len(COMPRESSED_PROPERTY) - len(kind)
        for kind, body in ((kind, bodies[row].as_py() or b"" if kind else b"") for row, kind in enumerate(_kinds(rows)))
    ]
    return pa.array(saved, pa.int64())


class DamagedBodyError(ValueError):
    """The compressed body of a row cannot be read. `row` counts from 0."""

    def __init__(self, row: int, reason: object) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row, self.reason = row, str(reason)


def decompressed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Stored rows as they were sent, byte by byte, as far as their columns go (see `columns_to_read`). Raises
    DamagedBodyError."""
    names = rows.schema.names
    if "properties" not in names or not has_compressed(rows.column("properties")):
        return rows
    kinds, names = _kinds(rows), [name for name in (TEXT, BODY) if name in names]
    columns: dict[str, list[Any]] = {name: rows.column(name).cast(pa.binary()).to_pylist() for name in names}
    plain = map_rows(rows.column("properties"))
    for row, kind in enumerate(kinds):
        if kind is None:
            continue
        if BODY in columns:
            try:
                data = unpack(columns[BODY][row] or b"")
            except ValueError as error:
                raise DamagedBodyError(row, error) from None
            columns[BODY][row] = data if kind == BODY else None
            if TEXT in columns:
                columns[TEXT][row] = data if kind == TEXT else None
        plain[row] = {name: text for name, text in (plain[row] or {}).items() if name != COMPRESSED_PROPERTY} or None
    arrays = {
        name: pa.array(values, pa.binary()).view(rows.schema.field(name).type) for name, values in columns.items()
    }
    return _with(rows, {**arrays, "properties": map_column(plain)})


def _with(rows: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    arrays = [columns.get(name, rows.column(name)) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(arrays, names=rows.schema.names)


# -- files -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Codec:
    name: str
    level: int | None = None


UNCOMPRESSED = Codec("none")
CODECS = {
    DEFAULT_COMPRESSION: Codec("gzip", 6),
    BEST_COMPRESSION: Codec("gzip", 9),
    BEST_SPEED: Codec("gzip", 1),
    LZF: Codec("lz4"),
}


def codec_of(settings: DestinationSettings, of_server: str | None = None) -> Codec | None:
    """Of the bodies; None: as the other columns. `of_server`: the options of the member's server, for destinations without their
    own."""
    options = settings.message_compression_options if settings.store_message_compression_enabled else of_server
    return None if options is None else CODECS[options]


def parquet_arguments(schema: pa.Schema, codec: Codec | None) -> dict[str, Any]:
    """Of a ParquetWriter."""
    bodies = [name for name in BODIES if name in schema.names] if codec else []
    if codec is None or not bodies:
        return {"compression": OTHERS}
    columns = {path: OTHERS for field in schema for path in _leaves(field)} | dict.fromkeys(bodies, codec.name)
    levels = {} if codec.level is None else {"compression_level": dict.fromkeys(bodies, codec.level)}
    return {"compression": columns, **levels}


def _leaves(field: pa.Field) -> list[str]:
    if pa.types.is_map(field.type):
        return [f"{field.name}.key_value.{part}" for part in ("key", "value")]
    return [field.name]
