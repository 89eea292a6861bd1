"""A persistent map: the next one shares most of its entries with the one before.

Entries lie in a large dict, which all maps of a series share, and a small one with what has changed since. Only the small
one is copied for the next map; when it has grown, both are joined into a new large one. So with n entries a change costs on
average half of `_MAX_CHANGED` copied entries and n / `_MAX_CHANGED` joined ones: about the same for 100 and for 10,000.

Features: C5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MAX_CHANGED = 64


class LayeredMap(Mapping[K, V]):
    """Immutable. Values are never None."""

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._base: dict[K, V] = dict(entries or {})
        self._changed: dict[K, V | None] = {}  # None: removed
        self._size = len(self._base)

    def changed(self, changes: Mapping[K, V | None]) -> LayeredMap[K, V]:
        """With these entries; None removes one."""
        if not changes:
            return self
        out: LayeredMap[K, V] = LayeredMap()
        out._size = self._size
        for key, value in changes.items():
            out._size += (value is not None) - (key in self)
        out._base, out._changed = self._base, {**self._changed, **changes}
        if len(out._changed) > _MAX_CHANGED:
            out._base = _joined(out._base, out._changed)
            out._changed = {}
        return out

    def __getitem__(self, key: K) -> V:
        value = self._changed[key] if key in self._changed else self._base[key]
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self._changed[key] is not None if key in self._changed else key in self._base

    def __iter__(self) -> Iterator[K]:
        yield from (key for key in self._base if key not in self._changed)
        yield from (key for key, value in self._changed.items() if value is not None)

    def __len__(self) -> int:
        return self._size


def _joined(base: dict[K, V], changed: Mapping[K, V | None]) -> dict[K, V]:
    out = dict(base)
    for key, value in changed.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = value
    return out


class MapEdit(dict[K, "V | None"]):
    """The changes of a map that are being collected; `get_new` sees them."""

    def __init__(self, start: LayeredMap[K, V]) -> None:
        super().__init__()
        self.start = start

    def get_new(self, key: K) -> V | None:
        return self[key] if key in self else self.start.get(key)

    def done(self) -> LayeredMap[K, V]:
        return self.start.changed(self)
