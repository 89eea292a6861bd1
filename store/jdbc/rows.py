"""The rows of the SIBnnn tables. Pure.

    class                persistent   parent         name           number              data
    1 record set         yes          –              its name       epoch               –
    2 object             yes          record set     key            –                   value
    3 session            no           –              its id         –                   label
    4 holder             no           record set     session id     –                   –
    5 waiter             no           record set     session id     –                   –
    6 engine             no           –              incarnation    –                   Published (published.py)

Waiters are served in the order of their ids. A row keeps its id for life, and no id is used twice. `identity` covers id,
parent, class and, of a record set, the name: what tells which record set a damaged row concerns. `checksum` covers the
whole row. row_changes.py turns ledger entries into rows, restoration.py turns rows into ledger entries.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

RECORD, OBJECT, SESSION, HOLDER, WAITER, ENGINE = range(1, 7)
CLASSES: Mapping[int, tuple[str, bool]] = {
    RECORD: ("record set", True),
    OBJECT: ("object", True),
    SESSION: ("session", False),
    HOLDER: ("holder", False),
    WAITER: ("waiter", False),
    ENGINE: ("engine", False),
}
"""Name, and whether the class is persistent."""

MISMATCH = "the checksum of the row does not match"
_HEAD = struct.Struct("<qqqq")
_IDENTITY = struct.Struct("<qqq")


class RowKey(NamedTuple):
    """What a row is of. `subject`: a record set or a session; `name`: the key of an object or the session of a waiter."""

    class_id: int
    subject: str
    name: str = ""


@dataclass(frozen=True)
class Row:
    """`id` is 0 until the row gets one. `home` chooses the table among those of its kind: a record set and all of its rows are
    in one table."""

    id: int
    parent_id: int
    class_id: int
    name: str
    number: int
    data: bytes

    @property
    def checksum(self) -> int:
        head = _HEAD.pack(self.id, self.parent_id, self.class_id, self.number)
        return zlib.crc32(self.data, zlib.crc32(self.name.encode(), zlib.crc32(head)))

    @property
    def identity(self) -> int:
        head = _IDENTITY.pack(self.id, self.parent_id, self.class_id)
        return zlib.crc32(self.name.encode() if self.class_id == RECORD else b"", zlib.crc32(head))

    @property
    def home(self) -> int:
        return self.parent_id or self.id

    @property
    def persistent(self) -> bool:
        return CLASSES[self.class_id][1]

    def values(self) -> dict[str, object]:
        return {**vars(self), "identity": self.identity, "checksum": self.checksum}

    def with_id(self, row_id: int) -> Row:
        return Row(row_id, self.parent_id, self.class_id, self.name, self.number, self.data)

    def without_data(self) -> Row:
        if not self.data:
            return self
        return Row(self.id, self.parent_id, self.class_id, self.name, self.number, b"")


@dataclass(frozen=True)
class StoredRow:
    """A row as the table has it, with the two checksums of the table. `persistent`: it is in a persistent table."""

    row: Row
    identity: int
    checksum: int
    table: str
    persistent: bool

    @property
    def good(self) -> bool:
        return self.row.checksum == self.checksum and self.row.identity == self.identity

    @property
    def known(self) -> bool:
        """It is known which record set the row concerns."""
        return self.row.checksum == self.checksum or self.row.identity == self.identity


def text_of(value: object) -> str:
    """SQLite columns accept values of any type; a value of another type matches no checksum."""
    return value if isinstance(value, str) else f"no text: {value!r}"


def number_of(value: object) -> int:
    return value if isinstance(value, int) else -1


def bytes_of(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else f"no bytes: {value!r}".encode()


def row_of(found: Any) -> Row:
    """From a result row of a SIBnnn table."""
    return Row(
        id=number_of(found.id),
        parent_id=number_of(found.parent_id),
        class_id=number_of(found.class_id),
        name=text_of(found.name),
        number=number_of(found.number),
        data=bytes_of(found.data),
    )


def describe(row: Row) -> str:
    kind = CLASSES.get(row.class_id, (f"class {row.class_id}", False))[0]
    return f"row {row.id} ({kind} {row.name!r})"
