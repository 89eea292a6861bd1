"""What an application may use in a `with` statement, which closes it at its end.

The end of a block is orderly unless an exception leaves the block: any, so SystemExit, KeyboardInterrupt, CancelledError and
GeneratorExit too. A call of `close()` is orderly: it does not look for an exception. An orderly end acknowledges what a consumer
with the mode "auto" or "dups-ok" has delivered.

Features: C8, C11 (docs/FEATURES.md)
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from spark_jms.errors import ForkedProcessError
from spark_jms.store.forks import this_process

_Own = TypeVar("_Own", bound="ClosedAtTheEnd")


class ClosedAtTheEnd:
    """The subclass defines `close`, and `_end` if it matters to it whether the end is orderly."""

    def close(self) -> None:
        raise NotImplementedError

    def _end(self, *, orderly: bool) -> None:
        self.close()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(orderly=kind is None)


def end(one: ClosedAtTheEnd, *, orderly: bool) -> None:
    """As the end of its block."""
    one._end(orderly=orderly)


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
