"""Every error that a store raises, by name, and `shown_uri`, which keeps passwords out of their texts.

The docstring of a class is its default message: what is wrong and what to do. `args` are the facts of one error, so that
all errors pickle.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from spark_jms.errors import NoRoomError
from spark_jms.errors import ResourceAllocationException as ResourceAllocationException
from spark_jms.errors import StoreError as StoreError

_USER_PASSWORD = re.compile(r"(//[^:/?#@]*):[^?#]*@")
_PASSWORD_OPTION = re.compile(r"([?&][^=&]*(?:password|secret)[^=&]*=)[^&#]*", re.IGNORECASE)


class NameInvalidError(StoreError, ValueError):
    """Names and keys are printable text of 1 to 512 characters; a label may also be empty. Choose another name."""


class ValueInvalidError(StoreError, ValueError):
    """Correct the argument. Values are `bytes` of at most 16 MiB and one commit is at most 256 MiB: split what is larger."""


class StoreUriError(StoreError, ValueError):
    """A store URI is file:///path (or a plain path), memory://NAME, jdbc:sqlite:///path/file.db,
    jdbc:postgresql://user@host:port/db or replicated:///directory?store=NAME. Correct the URI."""


class StoreNotFoundError(StoreError):
    """No store exists here. Check the path, and bring its directory, disk or mount back. Only if it is lost for good, make an empty
    one with `jmsq store create [URI]`: every message that is still in the tables is delivered again then."""


class StoreAbsentError(StoreNotFoundError):
    """The store was here when this process opened it. Bring the directory or its mount back, and everything continues;
    a new store in its place would be empty."""


class StoreClosedError(StoreError):
    """This store, session or handle is closed, or belongs to the parent of a forked process. Open a new one in this
    process."""


class RecordOpenError(StoreError):
    """This session already has the record set open. Use its handle, or close the handle first."""


class RecordHeldError(StoreError):
    """Another session has the record set open. Try again; a session that called open() keeps its place among the waiters
    until it cancels."""

    def __init__(self, name: str, holder: str | None = None) -> None:
        super().__init__(name, holder)
        self.name = name
        self.holder = holder

    def detail(self) -> str:
        return f"record set {self.name!r} is held by session {self.holder!r}"


class FencedError(StoreError):
    """This session lost what it held, and nothing was written. Connect again and reopen the record set."""


class StaleEpochError(FencedError):
    """A newer owner has the record set, and nothing was read or written. Discard this handle and the changes planned
    with it."""

    def __init__(self, name: str, epoch: int, current: int) -> None:
        super().__init__(name, epoch, current)
        self.name = name
        self.epoch = epoch
        self.current = current

    def detail(self) -> str:
        return f"record set {self.name!r} is at epoch {self.current}, the handle at {self.epoch}"


class SessionLostError(FencedError):
    """The session counts as dead because its process stopped for longer than session_timeout_ms. Connect again; this
    session writes nothing any more."""


class RuleError(StoreError):
    """Nothing was changed. Use the same version of spark-jms in all processes of this store; when they have it, report this
    as a fault of spark-jms."""


class TransactionInDoubtError(StoreError):
    """A transaction was prepared and not yet committed or rolled back, and its keys are locked until then. Find out
    what its coordinator decided, then resolve it with `Store.resolve` or `jmsq store resolve`."""


class TransactionUnknownError(StoreError):
    """No prepared transaction has this id: it was never prepared, or it is already resolved."""


class StoreVersionError(StoreError):
    """This version of spark-jms does not know the format of the store. Use the version that wrote it."""

    def __init__(self, file: str, found: int, known: int) -> None:
        super().__init__(file, found, known)
        self.file = file
        self.found = found
        self.known = known

    def detail(self) -> str:
        return f"{self.file} has format version {self.found}; this program knows version {self.known}"


class StoreCorruptError(StoreError):
    """The store was left as it is. Stop its users and keep a copy of it; then restore it from a backup, or copy all
    that is readable into a new store with `jmsq store migrate --salvage`."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(file, offset, reason)
        self.file = file
        self.offset = offset
        self.reason = reason

    def detail(self) -> str:
        return f"{self.file} is damaged at byte {self.offset}: {self.reason}"


class RecordCorruptError(StoreCorruptError):
    """Only this record set is refused; all others work. The damage was left as it is, and `jmsq store check` lists all
    of it. Restore the store from a backup, or stop its users and copy all that is readable into a new store with `jmsq
    store migrate --salvage`, which names what this record set may have lost."""

    def __init__(self, file: str, offset: int, reason: str, name: str) -> None:
        super().__init__(file, offset, reason)
        self.args = (file, offset, reason, name)
        self.name = name

    def detail(self) -> str:
        return f"record set {self.name!r} is damaged: {self.file}, {self.reason}"


class StoreWriteError(StoreError):
    """The operating system or the database refused it, and nothing was acknowledged. Check the disk or the database, whether it is
    read-only, and the access rights, then try again."""


class StoreFullError(StoreWriteError, NoRoomError):
    """The disk is full; nothing was acknowledged and the file is consistent. Free some space and try again."""

    def __init__(self, *facts: object) -> None:
        Exception.__init__(self, *facts)


class OutcomeUnknownError(StoreWriteError):
    """The write may or may not have been kept. Read the record set again, then decide."""


class StoreBusyError(StoreError):
    """The store could not be read, locked or reached within the limit. Try again; if it stays busy, look for a stopped
    process (`jmsq store lock` names the owner of the store)."""


# ---- the replicated store


class ObjectNotFoundError(StoreError):
    """No object has this handle: it was deleted, or it belongs to another connection. Discard the handle."""

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self.handle = handle

    def detail(self) -> str:
        return f"handle {self.handle}"


class ObjectTooLargeError(StoreError, ValueError):
    """An object must fit into a region and into MaximumMessageSizePercent of it. Split the object, or use larger
    regions."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(size_bytes, limit_bytes)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def detail(self) -> str:
        return f"{self.size_bytes} bytes, at most {self.limit_bytes}"


class DaemonConfigError(StoreError, ValueError):
    """Correct rs_daemons.cfg: one daemon per line, `address port shared-memory-key memory-limit`; # begins a
    comment."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(file, line, reason)
        self.file = file
        self.line = line
        self.reason = reason

    def detail(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}"


class ClusterMismatchError(StoreError):
    """All daemons, stores and administration utilities of a cluster use the same Global Directory and the same
    rs_daemons.cfg. Stop all daemons before you change the file."""


class AuthenticationError(StoreError):
    """The other side did not prove that it can read the Global Directory. Use the same directory and user on both
    sides."""


class NoLocalDaemonError(StoreError):
    """No daemon of this cluster runs on this machine. Start one: `jmsq store up`, or `jmsq store daemon start`."""


class UnsupportedPlatformError(StoreError):
    """Run the daemons and the stores of a cluster on Linux; of other stores, a file store and one in a database work here."""


class DaemonUnavailableError(StoreError):
    """The daemon cannot be reached, or it stopped. Attach again, to this daemon or to another one of the cluster."""


class RegionOpenError(StoreError):
    """Another client has the region open. Wait until it closes the region, or stop that client."""


class RegionUnavailableError(StoreError):
    """The region cannot be used at the moment; the text before this sentence names the reason. Try again when that has
    changed."""


class RegionLostError(StoreError):
    """The region's memory is lost: both daemons that held it stopped, or it was removed by force while a store had it open.
    Remove the store's regions with `storeadmin rmr`, and begin with an empty one."""


class RegionFullError(StoreFullError):
    """The region has no room for this object. Delete objects, or let the store create another region."""


class MemoryLimitError(StoreFullError):
    """The shared memory limits of the daemons leave no room for another copy of a region. Raise the limits in
    rs_daemons.cfg (stop all daemons first), delete regions, or add a daemon."""


class MemoryLockError(StoreError):
    """The system does not let this user lock so much memory. Raise the user's memlock limit (`ulimit -l`, or
    LimitMEMLOCK=infinity in a unit of systemd), lower the daemon's limit in rs_daemons.cfg, or set RS_LOCK_MEMORY=false: the
    system may then page regions out to a disk."""


class SingleCopyError(StoreWriteError):
    """The region has only one copy left, and its policy refuses writes until it has two. Start another daemon."""


class ProtocolError(StoreError):
    """The other side sent bytes that are no frame of this protocol, and the connection was closed. Compare the versions
    of both sides."""


class ShutdownRefusedError(StoreError):
    """Nothing was shut down. Close what is open or make room, or force it and accept the loss: -force (of `jmsq store down`:
    --force)."""


class ShutdownBrokenOffError(StoreError):
    """Regions may have moved, and opens continue. The daemons that are not named have stopped. Repeat the command when there
    is room."""


class DirectoryUnavailableError(StoreError):
    """The Global Directory could not be read or written; the request may or may not have taken effect. Check its file
    system and access rights; the daemons continue as soon as it answers."""


class RegionEntryDamagedError(DirectoryUnavailableError):
    """Only this region is refused; all others work. Restore the file from a copy of the directory, or remove the region and
    its contents with `storeadmin rmr -force`."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file = file
        self.reason = reason

    def detail(self) -> str:
        return f"{self.file} is damaged: {self.reason}"


class RegionEntryVersionError(StoreVersionError, DirectoryUnavailableError):
    """Only this region is refused; all others work. Use the version of spark-jms that wrote the entry."""

    def __init__(self, file: str, found: int, known: int, unknown: str = "") -> None:
        super().__init__(file, found, known)
        self.args = (file, found, known, unknown)
        self.unknown = unknown

    def detail(self) -> str:
        return super().detail() + (f", without {self.unknown}" if self.unknown else "")


class SettingInvalidError(StoreError, ValueError):
    """Correct the setting, or remove it to use its default."""

    def __init__(self, name: str, value: str, reason: str) -> None:
        super().__init__(name, value, reason)
        self.name = name
        self.value = value
        self.reason = reason

    def detail(self) -> str:
        return f"{self.name}={self.value}: {self.reason}"


class SecurityConfigError(StoreError, ValueError):
    """The loopback address needs no security. Any other address needs TLS (certificate and key), and a WebHDFS door
    also a token file. Key and token files must belong to this user and have mode 0600. See docs/REPLICATED-STORE-REFERENCE.md and
    docs/WEBHDFS.md."""


class CommandUsageError(StoreError, ValueError):
    """Correct the command line. Nothing was done."""

    def __init__(self, command: str, reason: str, usage: str) -> None:
        super().__init__(command, reason, usage)
        self.command = command
        self.reason = reason
        self.usage = usage

    def detail(self) -> str:
        return f"{self.command}: {self.reason}. Usage: {self.usage}"


class StoreRightsError(StoreWriteError):
    """The user lacks a right, and nothing was changed. Let an administrator grant it: on the directory of a file store, or in the
    database, whose tables the statements of `jmsq store ddl` create."""


class DatabaseUnreachableError(StoreError):
    """The database cannot be reached. Check host, port, user and database of the URI, and that the server runs."""


class TablesMissingError(StoreNotFoundError):
    """The database has no tables of a store with this name. If it had some, bring them back. Else create them with
    `jmsq store create`, or let an administrator run the output of `jmsq store ddl`."""


class TablesIncompleteError(StoreError):
    """Only some of the store's tables exist, and nothing was changed. Restore the missing ones from a copy, or drop all
    of them and create the store again."""


class OwnerMissingError(StoreError):
    """SIBOWNER has no row although the store has content, so it cannot tell whose store this is. Nothing was changed. Insert
    the row again, with the ME_UUID of the domain (`engine=` in its store's URI), or restore the table."""


class ForeignOwnerError(StoreError):
    """Nothing was changed. One store serves one domain: name another one with `store:` in the module file (another path, name,
    schema or prefix), or correct `engine=` in the URI. If the domain that has it does not exist any more, `jmsq store own` takes the
    store over."""

    def __init__(self, place: str, found: str, wanted: str) -> None:
        super().__init__(place, found, wanted)
        self.place = place
        self.found = found
        self.wanted = wanted

    def detail(self) -> str:
        return f"{self.place} belongs to {self.found}, not to {self.wanted}"


class LockHeldError(StoreBusyError):
    """Another engine holds the lock of the data store and did not release it within the limit. `jmsq store lock` names
    that engine; if its process is dead, the database drops the lock when its keepalive notices, or when an
    administrator ends the session."""


class StoreInUseError(StoreError):
    """The store is in use, or it holds other content, and nothing was changed. Stop its users, or choose an empty
    store."""


def error_of(name: str, arguments: Sequence[object]) -> StoreError:
    """The error that another process raised: made again from the name of its class and its arguments. A name that is no
    error of this module becomes a StoreError."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, StoreError):
        with contextlib.suppress(TypeError):
            return kind(*arguments)
    return StoreError(name, *arguments)


def shown_uri(uri: str) -> str:
    """The URI without passwords: `***` stands for one, also for one that makes the URI wrong."""
    return _PASSWORD_OPTION.sub(r"\1***", _USER_PASSWORD.sub(r"\1:***@", uri))
