"""A client reads its store after it has connected: it opens all regions and reads every object.

answer    next request
list      open the first region; a new region if there is none
open      its header
header    the region in chunks (an empty region is formatted)
bytes     the next chunk; after the last one the next region
(all)     list again: until this client had the last region, another one could make a new one
"""

from __future__ import annotations

from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.regions.core.instance import InstanceCore, Walk
from spark_jms.store.regions.core.protocol import Open, ReadRegion, RegionRow, Regions
from spark_jms.store.regions.core.space import BLOCK_BYTES, HEADER_BYTES, check_header
from tests.simulator.errors import Violation
from tests.simulator.requests import Requests

CHUNK_BYTES = 16 * 1024


class Recovery:
    """Reads one region after the other. Every step returns True once it has read all of them."""

    def __init__(self, store: str, requests: Requests, core: InstanceCore, epochs: dict[str, int]) -> None:
        self._store = store
        self._requests = requests
        self._core = core
        self._epochs = epochs
        self._to_open: list[str] = []
        self._opened: set[str] = set()
        self._listed = False
        self._size = 0
        self._walk = Walk("", 0)
        self._contents: dict[tuple[str, int], bytes] = {}

    def begin(self) -> None:
        self._requests.ask("list", lambda n: Regions(n, self._store + "."))

    def is_empty(self, rows: list[RegionRow]) -> bool:
        return not rows and not self._opened

    def listed(self, rows: list[RegionRow]) -> bool:
        self._to_open = [row.name for row in rows if row.name not in self._opened]
        return self._open_next()

    def _open_next(self) -> bool:
        if self._to_open:
            name = self._to_open[0]
            self._opened.add(name)
            self._listed = False
            self._requests.ask("open", lambda n: Open(n, name, 0), name)
        elif not self._listed:
            self._listed = True
            self.begin()
        else:
            return True
        return False

    def opened(self, name: str, epoch: int, size: int) -> None:
        self._epochs[name], self._size = epoch, size
        self._walk = Walk(name, HEADER_BYTES + (size - HEADER_BYTES) // 16 * 16)
        self._requests.ask("header", lambda n: ReadRegion(n, name, epoch, 0, HEADER_BYTES), name)

    def header(self, name: str, data: bytes) -> bool:
        if data == bytes(len(data)):
            # The client that created the region disconnected before its first write.
            self._requests.write(name, self._epochs[name], self._core.add_region(name, self._size))
            return self._region_done()
        try:
            check_header(name, data, self._size)
        except StoreCorruptError as error:
            raise Violation(str(error)) from error
        return self._read_on(name)

    def _read_on(self, name: str) -> bool:
        start = self._walk.wanted()
        if start is None:
            self._core.load_region(name, self._size, self._walk.blocks)
            return self._region_done()
        length, epoch = min(CHUNK_BYTES, self._size - start), self._epochs[name]
        self._requests.ask("bytes", lambda n: ReadRegion(n, name, epoch, start, length), (name, start))
        return False

    def _region_done(self) -> bool:
        self._to_open.pop(0)
        return self._open_next()

    def bytes_read(self, name: str, start: int, data: bytes) -> bool:
        known = len(self._walk.blocks)
        try:
            self._walk.feed(start, data)
        except StoreCorruptError as error:
            raise Violation(str(error)) from error
        for block in self._walk.blocks[known:]:
            at = block.offset - start + BLOCK_BYTES
            self._contents[(name, block.offset)] = bytes(data[at : at + block.length])
        return self._read_on(name)

    def objects(self) -> dict[int, bytes]:
        """The objects in the regions, by handle."""
        found = {}
        for handle in self._core.places:
            region, block = self._core.where(handle)
            found[handle] = self._contents[(region, block.offset)]
        return found
