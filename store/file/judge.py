"""What the bytes of a journal mean when not all of them are good. Pure.

    what is damaged                       where                                         judgement
    a section other than the head of      a frame follows, or it was acknowledged       damage of one record set, which the head
    its frame                                                                           names: that record set is refused
    the same                              last in the file, not acknowledged            a torn last write: cut off
    the header, table or head of a frame  good frames follow, or it was acknowledged    damage of unknown extent: the whole store
                                                                                        is refused
    the same                              last in the file, not acknowledged            a torn last write: cut off
    the file, or its frames, end before   –                                             damage: the whole store is refused
    the acknowledged length

Zeros behind the last frame are its reserve (reserve.py), not damage.

A frame is written only when the one before it is complete, so only the last one can be torn. The lock file (lock.py) knows
the acknowledged length. Without it the length counts as 0, and damage of the last frame looks like a torn write.

Features: S9 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.file.frame import Frame, find_frame, scan


@dataclass(frozen=True)
class Judged:
    """The frames that count, up to `end`. `torn`: what follows has to be cut off."""

    frames: tuple[Frame, ...]
    end: int
    torn: bool


def judge(data: bytes, base: int, seed: int, acknowledged: int, file: str) -> Judged:
    """Judges `data`, which begins at offset `base` of `file`. StoreCorruptError when the whole store must be refused."""
    found, size = scan(data, base, seed), base + len(data)
    if size < acknowledged:
        raise StoreCorruptError(file, size, f"the file ends here, and {acknowledged} bytes were acknowledged")
    if found.wrong:
        later = find_frame(data[found.end - base :], found.end, seed)
        if later is not None:
            raise StoreCorruptError(file, found.end, f"{found.wrong}, and good data follows at byte {later}")
        if found.end < acknowledged:
            raise StoreCorruptError(file, found.end, f"{found.wrong}, and it was acknowledged")
    elif found.end < acknowledged:
        raise StoreCorruptError(file, found.end, f"the frames end here, and {acknowledged} bytes were acknowledged")
    last = found.frames[-1] if found.frames else None
    if last is not None and last.lost and not found.wrong and acknowledged < last.end:
        return Judged(found.frames[:-1], last.offset, torn=True)
    return Judged(found.frames, found.end, torn=bool(found.wrong))
