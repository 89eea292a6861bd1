"""The active files of one member, ordered by sequence.

Features: C3 (docs/FEATURES.md)
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from spark_jms.core.ranges import Ranges
from spark_jms.log.data_file import DataFile

_MAX_TAIL = 64


@dataclass(frozen=True, eq=False)
class MemberFiles:
    """Immutable. `base` is shared by a series of snapshots, while sends make a new `tail` each; a long tail is joined to a new
    base. So a send costs the same at 100 and at 10,000 files. Finding a sequence is a bisection."""

    base_firsts: Sequence[int] = ()
    base: Sequence[DataFile] = ()
    tail_firsts: Sequence[int] = ()
    tail: Sequence[DataFile] = ()  # behind the base

    @property
    def files(self) -> list[DataFile]:
        """A new list on each call."""
        return [*self.base, *self.tail]

    def __len__(self) -> int:
        return len(self.base) + len(self.tail)

    @property
    def newest(self) -> DataFile | None:
        return self.tail[-1] if self.tail else self.base[-1] if self.base else None

    def overlapping(self, first: int, last: int) -> list[DataFile]:
        """The files that hold any of first..last, in order."""
        return overlapping(self.base_firsts, self.base, first, last) + overlapping(
            self.tail_firsts, self.tail, first, last
        )

    def missing(self, wanted: Ranges) -> Ranges:
        """Those of these sequences that no file holds."""
        files = self.overlapping(wanted.first, wanted.last) if wanted else []
        return wanted - Ranges.of(*((file.first, file.last) for file in files))


def overlapping(firsts: Sequence[int], files: Sequence[DataFile], first: int, last: int) -> list[DataFile]:
    at = max(bisect.bisect_right(firsts, first) - 1, 0)
    out = []
    while at < len(files) and firsts[at] <= last:
        if files[at].last >= first:
            out.append(files[at])
        at += 1
    return out


class MemberEdit:
    """Makes the next MemberFiles. Files behind all others go to the tail; any other change copies the whole list."""

    def __init__(self, start: MemberFiles) -> None:
        self._start = start
        self._newest = start.newest
        self._added: list[DataFile] = []  # behind all others
        self._whole: list[DataFile] | None = None

    def add(self, file: DataFile) -> None:
        if self._whole is None and (self._newest is None or file.first > self._newest.first):
            self._added.append(file)
            self._newest = file
            return
        whole = self._copied()
        whole.insert(bisect.bisect_left(whole, file.first, key=_first), file)

    def remove(self, file: DataFile) -> None:
        whole = self._copied()
        at = bisect.bisect_left(whole, file.first, key=_first)
        while at < len(whole) and whole[at].path != file.path:
            at += 1
        if at < len(whole):
            del whole[at]

    def done(self) -> MemberFiles:
        start, firsts = self._start, tuple([file.first for file in self._added])
        if self._whole is not None:
            return MemberFiles(tuple([file.first for file in self._whole]), tuple(self._whole))
        tail_firsts, tail = (*start.tail_firsts, *firsts), (*start.tail, *self._added)
        if len(tail) <= _MAX_TAIL:
            return MemberFiles(start.base_firsts, start.base, tail_firsts, tail)
        return MemberFiles((*start.base_firsts, *tail_firsts), (*start.base, *tail))

    def _copied(self) -> list[DataFile]:
        if self._whole is None:
            self._whole = [*self._start.base, *self._start.tail, *self._added]
        return self._whole


def _first(file: DataFile) -> int:
    return file.first
