"""What an application may use in a `with` statement, which closes it at its end (C11)."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from spark_jms.errors import ForkedProcessError
from spark_jms.store.forks import this_process

_Own = TypeVar("_Own", bound="ClosedAtTheEnd")


class ClosedAtTheEnd:
    """The subclass defines `close`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OwningProcess:
    """Of the process that made it. A context and everything of it belong to that process: in a forked child their calls raise
    ForkedProcessError, and closing them does nothing. Both look here before they take a lock, which a thread of the parent may have
    held at the fork."""

    def __init__(self) -> None:
        self._process = this_process()

    @property
    def is_parent(self) -> bool:
        """This process is a forked child of it."""
        return self._process is not this_process()

    def check(self) -> None:
        """Raises ForkedProcessError in a forked child."""
        if self._process is not this_process():
            raise ForkedProcessError()
