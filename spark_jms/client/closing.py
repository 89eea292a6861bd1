"""What an application may use in a `with` statement, which closes it at its end (C11)."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

_Own = TypeVar("_Own", bound="ClosedAtTheEnd")


class ClosedAtTheEnd:
    """The subclass defines `close`."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
