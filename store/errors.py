"""Everything a store can refuse, by name. The docstring of a class is its advice; `args` are its facts, so all of them
pickle."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence


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
    """A store is named by file:///path (or a plain path), memory://NAME, jdbc:sqlite:///path/file.db or
    jdbc:postgresql://user@host:port/db. Correct the URI."""


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


class TransactionInDoubtError(StoreError):
    """A transaction was prepared and neither committed nor rolled back; its keys stay locked until then. Find out what
    its coordinator decided, then `resolve` it, by `Store.resolve` or `jmsq store resolve`."""


class TransactionUnknownError(StoreError):
    """No transaction of this id is prepared: it was never prepared, or is resolved already."""


class StoreVersionError(StoreError):
    """The store was written in a format that this version does not know. Use the version of spark-jms that wrote it."""

    def __init__(self, file: str, found: int, known: int) -> None:
        super().__init__(file, found, known)
        self.file = file
        self.found = found
        self.known = known

    def detail(self) -> str:
        return f"{self.file} has format version {self.found}, this program knows {self.known}"


class StoreCorruptError(StoreError):
    """What is damaged was left as it is and nothing was changed. Stop the users of the store and keep a copy of it; then
    restore it from a backup, or `jmsq store migrate --salvage` all that is readable into a new one."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(file, offset, reason)
        self.file = file
        self.offset = offset
        self.reason = reason

    def detail(self) -> str:
        return f"{self.file} is damaged at byte {self.offset}: {self.reason}"


class RecordCorruptError(StoreCorruptError):
    """Only this record set is refused, the others work on. What is damaged was left as it is: `jmsq store check` lists all
    of it. Restore the store from a backup, or stop its users and `jmsq store migrate --salvage` all that is readable into
    a new one, which names what this record set may have lost."""

    def __init__(self, file: str, offset: int, reason: str, name: str) -> None:
        super().__init__(file, offset, reason)
        self.args = (file, offset, reason, name)
        self.name = name

    def detail(self) -> str:
        return f"record set {self.name!r} is damaged: {self.file}, {self.reason}"


class StoreWriteError(StoreError):
    """The operating system refused to write; nothing was acknowledged. Look at the disk and its rights, then try
    again."""


class StoreFullError(StoreWriteError):
    """There is no room on the disk; nothing was acknowledged and the file is consistent. Make room and try again."""


class OutcomeUnknownError(StoreWriteError):
    """The write may have been kept or not. Read the record set again, then decide."""


class StoreBusyError(StoreError):
    """The store could not be read, locked or reached within its bound. Try again; if it stays, look for a stopped
    process (`jmsq store lock` names the owner of a served store)."""


# ---- the replicated store


class ObjectNotFoundError(StoreError):
    """No object has this handle; it was deleted, or belongs to another connection. Drop the handle."""

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self.handle = handle

    def detail(self) -> str:
        return f"handle {self.handle}"


class ObjectTooLargeError(StoreError, ValueError):
    """An object must fit a region and MaximumMessageSizePercent of it. Split it, or make the region size larger."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(size_bytes, limit_bytes)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def detail(self) -> str:
        return f"{self.size_bytes} bytes, at most {self.limit_bytes}"


class DaemonConfigError(StoreError, ValueError):
    """Correct rs_daemons.cfg: one daemon a line, `address port shared-memory-key memory-limit`, # begins a comment."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(file, line, reason)
        self.file = file
        self.line = line
        self.reason = reason

    def detail(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}"


class ClusterMismatchError(StoreError):
    """Daemons, stores and the administration utility of one cluster use one Global Directory and one unchanged
    rs_daemons.cfg. Stop all daemons before the file is changed."""


class AuthenticationError(StoreError):
    """The other side could not prove that it reads the Global Directory. Use the same directory and user."""


class NoLocalDaemonError(StoreError):
    """No daemon of this cluster runs on this machine. Start one: `jmsq store up`, or `jmsq store daemon start`."""


class DaemonUnavailableError(StoreError):
    """The daemon cannot be reached or went away. Attach again, to it or to another daemon of the cluster."""


class RegionOpenError(StoreError):
    """Another client has the region open. Wait until it closes, or stop that client."""


class RegionUnavailableError(StoreError):
    """No running daemon holds a copy of the region just now. It comes back with the daemon that holds it; try again."""


class RegionLostError(StoreError):
    """Both daemons that held the region are gone, and its memory with them. Nothing partial is served. Remove it with
    `storeadmin rmr`, and begin anew."""


class RegionFullError(StoreFullError):
    """The region has no room for this object. Delete objects, or let the store make another region."""


class MemoryLimitError(StoreFullError):
    """The shared memory limits of the daemons leave no room for another region copy. Raise the limits in
    rs_daemons.cfg (all daemons stopped), delete regions, or add a daemon."""


class SingleCopyError(StoreWriteError):
    """The region has one copy left and its policy refuses writes until there are two. Start another daemon."""


class ProtocolError(StoreError):
    """The other side sent bytes that are no frame of this protocol; the connection was closed. Look at the versions of
    both sides."""


class ShutdownRefusedError(StoreError):
    """Nothing was shut down. Close what is open or make room, or use -force and accept the loss."""


class DirectoryUnavailableError(StoreError):
    """The Global Directory could not be read or written; what was asked may or may not have happened. Look at its file
    system and rights; daemons go on as soon as it answers."""


class ResourceAllocationException(StoreError):  # JMS's name
    """The message was not taken, nothing was written. Send it again when there is room, or make it smaller; the limits
    are the `store.replicated.*Percent` settings."""


class SettingInvalidError(StoreError, ValueError):
    """Correct the setting, or leave it out to have its default."""

    def __init__(self, name: str, value: str, reason: str) -> None:
        super().__init__(name, value, reason)
        self.name = name
        self.value = value
        self.reason = reason

    def detail(self) -> str:
        return f"{self.name}={self.value}: {self.reason}"


class SecurityConfigError(StoreError, ValueError):
    """On the loopback nothing is needed; any other address needs TLS (certificate and key), a WebHDFS door a token file
    besides. Key and tokens are files of this user with mode 0600. See docs/REPLICATED-STORE.md, docs/WEBHDFS.md."""


class CommandUsageError(StoreError, ValueError):
    """Correct the command line; nothing was done."""

    def __init__(self, command: str, reason: str, usage: str) -> None:
        super().__init__(command, reason, usage)
        self.command = command
        self.reason = reason
        self.usage = usage

    def detail(self) -> str:
        return f"{self.command}: {self.reason}. Usage: {self.usage}"


class StoreRightsError(StoreWriteError):
    """The database's user may not do this; nothing was changed. Let an administrator grant it, or make the tables with the
    statements of `jmsq store ddl`."""


class DatabaseUnreachableError(StoreError):
    """There is no connection to the database. Look at host, port, user and database of the URI, and whether it runs."""


class TablesMissingError(StoreNotFoundError):
    """The database has no tables of a store of this name. Make them with `jmsq store create`, or let an administrator run
    what `jmsq store ddl` prints."""


class TablesIncompleteError(StoreError):
    """Some of the store's tables are there and some are not; nothing was changed. Restore the missing ones from a copy, or
    drop all of them and make the store anew."""


class ForeignOwnerError(StoreError):
    """The store belongs to another messaging engine; nothing was changed. One store serves one domain: choose another
    schema or prefix, or correct `engine=` in the URI."""

    def __init__(self, place: str, found: str, wanted: str) -> None:
        super().__init__(place, found, wanted)
        self.place = place
        self.found = found
        self.wanted = wanted

    def detail(self) -> str:
        return f"{self.place} belongs to engine {self.found!r}, this is {self.wanted!r}"


class LockHeldError(StoreBusyError):
    """Another engine has the data store's lock, and did not let go of it within the limit. `jmsq store lock` says who; if
    its process is gone, the database drops the lock when its keepalive notices, or when an administrator ends the
    session."""


class StoreInUseError(StoreError):
    """Somebody uses the store, or it has a content of its own; nothing was changed. Stop its users, or take an empty one."""


def error_of(name: str, arguments: Sequence[object]) -> StoreError:
    """The error that another process raised: made again from the name of its class and its arguments. A name that is no
    error of this module becomes a StoreError."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, StoreError):
        with contextlib.suppress(TypeError):
            return kind(*arguments)
    return StoreError(name, *arguments)
