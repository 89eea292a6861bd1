"""What the bytes of a journal mean when not all of them are good (S9). Pure.

    what is not good                      where                                         judged
    a section that is not the head of     something stands behind its frame, or it      damage of one record set, which the
    its frame                             was acknowledged                              head names: refused, all else goes on
    the same                              last in the file, not acknowledged            a torn last write: cut off
    the header, table or head of a frame  good frames behind it, or it was acknowledged damage, nobody knows of what: the whole
                                                                                        store is refused
    the same                              last in the file, not acknowledged            a torn last write: cut off
    the file ends before what was         –                                             damage: the whole store is refused
    acknowledged

A frame is begun when the one before it is whole, so only the last one can be torn. What was acknowledged says the lock
file (lock.py); without it, 0, damage of the last frame cannot be told from a torn write.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.file.frame import Frame, find_frame, scan


@dataclass(frozen=True)
class Judged:
    """What counts, up to `end`; `torn`: behind it is what has to be cut off."""

    frames: tuple[Frame, ...]
    end: int
    torn: bool


def judge(data: bytes, base: int, seed: int, acknowledged: int, file: str) -> Judged:
    """Of the rest of a journal, from `base` on. StoreCorruptError when the whole store is to be refused."""
    found, size = scan(data, base, seed), base + len(data)
    if size < acknowledged:
        raise StoreCorruptError(file, size, f"the file ends here, and {acknowledged} bytes were acknowledged")
    if found.wrong:
        later = find_frame(data[found.end - base :], found.end, seed)
        if later is not None:
            raise StoreCorruptError(file, found.end, f"{found.wrong}, and good data follows at byte {later}")
        if found.end < acknowledged:
            raise StoreCorruptError(file, found.end, f"{found.wrong}, and it was acknowledged")
    last = found.frames[-1] if found.frames else None
    if last is not None and last.lost and last.end == size and acknowledged < last.end:
        return Judged(found.frames[:-1], last.offset, torn=True)
    return Judged(found.frames, found.end, torn=bool(found.wrong))
