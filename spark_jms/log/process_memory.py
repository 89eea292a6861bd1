"""How much memory this process may use: the limit of its control group, or what the machine has.

Features: T7 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath

_CGROUP = "/proc/self/cgroup"
_MOUNT = PurePosixPath("/sys/fs/cgroup")


def memory_bytes(read: Callable[[str], str] | None = None, physical_bytes: int | None = None) -> int:
    """The least of the limits of its control groups, of version 1 or 2, and the machine's memory. `read` returns the text of a
    file, or raises OSError."""
    reading = read or _text
    known = [_physical_bytes() if physical_bytes is None else physical_bytes]
    for path in _limit_files(reading):
        with suppress(OSError, ValueError):  # "max", or no such file
            known.append(int(reading(path)))
    return min(known)


def _limit_files(read: Callable[[str], str]) -> list[str]:
    """Of the group of this process and those around it, also where the mount shows this group as the root."""
    try:
        lines = read(_CGROUP).splitlines()
    except OSError:
        return []
    found = [str(_MOUNT / "memory.max"), str(_MOUNT / "memory" / "memory.limit_in_bytes")]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers in ("", "memory"):
            mount, name = (_MOUNT, "memory.max") if not controllers else (_MOUNT / "memory", "memory.limit_in_bytes")
            group = PurePosixPath(path.lstrip("/"))
            found += [str(mount / above / name) for above in (group, *group.parents)]
    return found


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8").strip()


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
