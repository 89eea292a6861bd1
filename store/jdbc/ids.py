"""The ids of rows, handed out once each. SIBKEYS keeps the last id of the newest block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.jdbc.database import DatabaseConnection
from spark_jms.store.jdbc.rows import number_of

BLOCK = 1_024
OBJECTS = "objects"


class RowIds:
    def __init__(self, keys: sa.Table) -> None:
        self._keys = keys
        self._next_id = self._last_id = 0

    def load(self, data: DatabaseConnection, last_used: int) -> None:
        """StoreCorruptError when a row has an id that no block contains."""
        found = data.rows(sa.select(self._keys.c.last_key).where(self._keys.c.key_id == OBJECTS))
        last_id = number_of(found[0].last_key) if found else last_used
        if not found:
            data.run(sa.insert(self._keys), {"key_id": OBJECTS, "last_key": last_used})
        if last_id < last_used:
            raise StoreCorruptError(self._keys.fullname, last_id, f"id {last_used} is in use, and was not handed out")
        self._next_id = self._last_id = last_id

    def new_id(self, data: DatabaseConnection) -> int:
        if self._next_id == self._last_id:
            # The end of the block is read back, not computed: a commit whose answer was lost may have taken a block too.
            next_block = sa.update(self._keys).where(self._keys.c.key_id == OBJECTS)
            data.run(next_block.values(last_key=self._keys.c.last_key + BLOCK))
            found = data.rows(sa.select(self._keys.c.last_key).where(self._keys.c.key_id == OBJECTS))
            self._last_id = int(found[0].last_key)
            self._next_id = self._last_id - BLOCK
        self._next_id += 1
        return self._next_id

    @contextmanager
    def taken_back_on_error(self) -> Iterator[None]:
        """Around a transaction: when it fails, the ids of the block that it rolled back must not be used."""
        before = self._next_id, self._last_id
        try:
            yield
        except BaseException:
            self._next_id, self._last_id = before
            raise
