"""What the readers of a store must find: the writes that were acknowledged, and those that may have happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.simulator.errors import Violation


def short(value: bytes | None) -> str:
    return "absent" if value is None else f"{value[:16].hex()} ({len(value)} bytes)"


@dataclass
class Acknowledged:
    """A handle in `maybe` may have any of these values; None = not there."""

    values: dict[int, bytes] = field(default_factory=dict)
    maybe: dict[int, set[bytes | None]] = field(default_factory=dict)

    def allow(self, handle: int, value: bytes | None) -> None:
        """The object may also have this value: the write has no answer."""
        self.maybe.setdefault(handle, {self.values.get(handle)}).add(value)

    def acknowledge(self, handle: int, value: bytes | None) -> None:
        """A doubt from before does not outlive this write: it replaced whatever the object was."""
        self.maybe.pop(handle, None)
        if value is None:
            self.values.pop(handle, None)
        else:
            self.values[handle] = value

    def check(self, found: dict[int, bytes], where: str) -> None:
        for handle, value in self.values.items():
            if found.get(handle) not in self.maybe.get(handle, {value}):
                raise Violation(
                    f"{where}: object {handle} is {short(found.get(handle))}, was acknowledged as {short(value)}"
                )
        for handle, got in found.items():
            if handle not in self.values and got not in self.maybe.get(handle, set()):
                raise Violation(f"{where}: object {handle} is there, but was deleted or never written")

    def become(self, found: dict[int, bytes]) -> None:
        self.values, self.maybe = dict(found), {}

    def copy(self) -> Acknowledged:
        return Acknowledged(dict(self.values), {handle: set(values) for handle, values in self.maybe.items()})


@dataclass
class Write:
    """A create, update or delete (`value` None) without its last acknowledgement. `region`: that it wrote to. `leftover`:
    the region of an updated object's old block, still to be forgotten. `lost`: its region was removed."""

    handle: int
    value: bytes | None
    region: str
    requests: set[int]
    leftover: str | None = None
    lost: bool = False


class Writes:
    """The writes of one client that have no answer yet, oldest first."""

    def __init__(self) -> None:
        self._writes: deque[Write] = deque()
        self._leftovers: deque[Write] = deque()

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, write: Write) -> None:
        self._writes.append(write)

    def handles(self) -> set[int]:
        return {write.handle for write in self._writes}

    def region_removed(self, name: str) -> None:
        """With the writes that the region acknowledged while an older write to another region had no answer."""
        for write in self._writes:
            write.lost = write.lost or write.region == name

    def in_doubt(self, acknowledged: Acknowledged) -> None:
        for write in self._writes:
            acknowledged.allow(write.handle, write.value)

    def answered(self, request: int) -> Iterator[Write]:
        """Yields the writes that are acknowledged now."""
        for write in self._writes:
            if request in write.requests:
                write.requests.remove(request)
                if write.leftover is not None and not write.requests:
                    self._leftovers.append(write)
        while self._writes and not self._writes[0].requests and self._writes[0].leftover is None:
            yield self._writes.popleft()

    def forget_leftovers(self, forget: Callable[[str, int], set[int]]) -> None:
        """`forget` takes region and handle, and returns the requests that it sent."""
        while self._leftovers:
            write = self._leftovers.popleft()
            assert write.leftover is not None
            requests = forget(write.leftover, write.handle)
            write.leftover, write.requests = None, requests
