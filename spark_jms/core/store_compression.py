"""How the files of a destination are compressed.

All columns are compressed with Snappy. With `storeMessageCompressionEnabled` the bodies, which are `text` and `body`, have the codec
that `messageCompressionOptions` names instead; headers and properties, which planning and selectors read, stay fast. Parquet has
no LZF: LZ4, which is as fast, stands for it. Readers find the codec in each file, so files of several kinds lie side by side.

The body of a very large message stays uncompressed unless the setting says otherwise: a codec needs as much memory as the body
once more, and a sender shall need at most three times its size.

Features: T8 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_jms.settings.destination import BEST_COMPRESSION, BEST_SPEED, DEFAULT_COMPRESSION, LZF, DestinationSettings

BODIES = ("text", "body")
OTHERS = "snappy"
VERY_LARGE_BYTES = 32 * 2**20


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


def codec_of(settings: DestinationSettings) -> Codec | None:
    """Of the bodies; None: as the other columns."""
    return CODECS[settings.message_compression_options] if settings.store_message_compression_enabled else None


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
