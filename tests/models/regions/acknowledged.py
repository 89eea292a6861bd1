"""What the readers of a store must find: the writes that were acknowledged, and those that may have happened."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tests.models.regions.errors import Promise, Violation


def short(value: bytes | None) -> str:
    return "absent" if value is None else f"{value[:24]!r} ({len(value)} bytes)"


@dataclass
class Acknowledged:
    """Objects by handle, or values by key. One in `maybe` may have any of these values; None = not there. `unplaced`:
    values of creates without an answer, whose handles are not known."""

    values: dict[int, bytes] = field(default_factory=dict)
    maybe: dict[int, set[bytes | None]] = field(default_factory=dict)
    unplaced: set[bytes] = field(default_factory=set)
    used: set[int] = field(default_factory=set)  # handles of objects that have been there

    def allowed(self, handle: int) -> set[bytes | None]:
        return self.maybe.get(handle) or {self.values.get(handle)}

    # ---- writes

    def begin(self, handle: int, value: bytes | None) -> set[bytes | None]:
        """The object may also have this value from now on. Returns what it could be before, for `refuse`."""
        before = self.allowed(handle)
        self.maybe[handle] = before | {value}
        return before

    def refuse(self, handle: int, before: set[bytes | None]) -> None:
        """The write did not happen."""
        self.maybe[handle] = before

    def acknowledge(self, handle: int, value: bytes | None) -> None:
        """A doubt from before does not outlive this write: it replaced whatever the object was."""
        self.maybe.pop(handle, None)
        if value is None:
            self.values.pop(handle, None)
        else:
            self.values[handle] = value
            self.used.add(handle)

    def check_new(self, handle: int) -> None:
        if handle in self.used:
            raise Violation(Promise.HANDLES, f"object {handle} is new, and has been there before")

    def forget_one(self) -> None:
        """A region was removed, with any objects of the store."""
        for handle in self.values.keys() | self.maybe.keys():
            self.begin(handle, None)
        self.used.clear()  # with what the region recorded about handles

    # ---- readers

    def check(self, found: dict[int, bytes], where: str) -> None:
        self.check_some(found.keys(), found, where)

    def check_some(self, present: Collection[int], found: dict[int, bytes], where: str) -> None:
        """`present`: all objects that are there; `found`: those that were read."""
        for handle in self.values.keys() | self.maybe.keys():
            allowed = self.allowed(handle)
            if handle not in present:
                lawful = None in allowed
            elif handle in found:
                lawful = found[handle] in allowed or (None in allowed and self._is_reused(handle, found[handle]))
            else:
                lawful = allowed != {None}
            if not lawful:
                got = found.get(handle) if handle in found or handle not in present else b"?"
                expected = " or ".join(map(short, allowed))
                raise Violation(
                    Promise.DURABLE, f"{where}: object {handle} is {short(got)}, was acknowledged as {expected}"
                )
        for handle in present:
            if handle not in self.values and handle not in self.maybe and found.get(handle) not in self.unplaced:
                raise Violation(Promise.DURABLE, f"{where}: object {handle} is there, but was deleted or never written")

    def _is_reused(self, handle: int, value: bytes) -> bool:
        """A region was removed with what it recorded about handles, so a create on its way may have one of its handles."""
        return handle not in self.used and value in self.unplaced

    def to_read(self, present: Collection[int]) -> list[int]:
        """Those of which it is not known what they are."""
        return [handle for handle in present if handle in self.maybe or handle not in self.values]

    def become(self, present: Collection[int], found: dict[int, bytes]) -> None:
        """After `check_some`, with all of `to_read` found."""
        self.values = {handle: found[handle] if handle in found else self.values[handle] for handle in present}
        self.maybe, self.unplaced = {}, set()
        self.used.update(present)
