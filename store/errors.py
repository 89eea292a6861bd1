"""Everything a store can refuse, by name. The docstring of a class is its advice; `args` are its facts, so all of them
pickle."""

from __future__ import annotations

import inspect


class StoreError(Exception):
    """The store could not do what was asked; the text before this sentence says why."""

    def detail(self) -> str:
        return ": ".join(str(argument) for argument in self.args)

    def __str__(self) -> str:
        advice = inspect.cleandoc(type(self).__doc__ or "").replace("\n", " ")
        detail = self.detail()
        return f"{detail}. {advice}" if detail else advice


class NameInvalidError(StoreError, ValueError):
    """Names and keys are printable text of 1 to 512 characters; labels may also be empty. Choose another name."""


class ValueInvalidError(StoreError, ValueError):
    """Values are `bytes` of at most 16 MiB and one commit is at most 256 MiB. Split the value or the commit."""


class StoreUriError(StoreError, ValueError):
    """A store is named by file:///path (or a plain path) or by memory://NAME. Correct the URI."""


class StoreNotFoundError(StoreError):
    """There is no store here. Check the path, or open it with create=True."""


class StoreClosedError(StoreError):
    """This store, session or handle was closed, or belongs to the parent of a forked process. Open a new one in this
    process."""


class RecordOpenError(StoreError):
    """This session already has the record set open. Use the handle it has, or close it first."""


class RecordHeldError(StoreError):
    """Another session has the record set open. This session keeps its place among the waiters: call open() again, or
    cancel()."""

    def __init__(self, name: str, holder: str | None = None) -> None:
        super().__init__(name, holder)
        self.name = name
        self.holder = holder

    def detail(self) -> str:
        return f"record set {self.name!r} is held by session {self.holder!r}"


class FencedError(StoreError):
    """This session lost what it held; nothing was written. Connect anew and open the record set again."""


class StaleEpochError(FencedError):
    """The record set has a newer owner; nothing was read or written. Drop this handle and what was planned with it."""

    def __init__(self, name: str, epoch: int, current: int) -> None:
        super().__init__(name, epoch, current)
        self.name = name
        self.epoch = epoch
        self.current = current

    def detail(self) -> str:
        return f"record set {self.name!r} is at epoch {self.current}, the handle at {self.epoch}"


class SessionLostError(FencedError):
    """The session was declared dead (its process stopped for longer than session_timeout_ms). Connect anew; nothing
    more is written through it."""


class StoreVersionError(StoreError):
    """The store was written in a format that this version does not know. Use the newer version of spark-jms that wrote
    it."""

    def __init__(self, file: str, found: int, known: int) -> None:
        super().__init__(file, found, known)
        self.file = file
        self.found = found
        self.known = known

    def detail(self) -> str:
        return f"{self.file} has format version {self.found}, this program knows {self.known}"


class StoreCorruptError(StoreError):
    """The file was left as it is and nothing was changed. Stop the users of the store, keep a copy of its directory,
    and restore it from a backup or remove the directory to begin anew."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(file, offset, reason)
        self.file = file
        self.offset = offset
        self.reason = reason

    def detail(self) -> str:
        return f"{self.file} is damaged at byte {self.offset}: {self.reason}"


class StoreWriteError(StoreError):
    """The operating system refused to write; nothing was acknowledged. Look at the disk and its rights, then try
    again."""


class StoreFullError(StoreWriteError):
    """There is no room on the disk; nothing was acknowledged and the file is consistent. Make room and try again."""


class StoreBusyError(StoreError):
    """The journal could not be read or locked within its bound. Try again; if it stays, look for a stopped process."""
