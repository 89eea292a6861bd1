"""What a loss of power can do to a Delta table in a directory, and the repair; and which boot of a host has written last.

A file that was not forced to the disk may be missing, empty, short or full of zeros after a loss of power, whatever was written
later. So

    the log        ends before its first commit that is missing or cannot be read; those behind it are set aside
    a checkpoint   that cannot be read is set aside, and so is the hint (`_last_checkpoint`) that names another than the newest left
    a data file    that is missing or not whole leaves the log, and is set aside

What is set aside lies in ROOT/_jmsq/lost/<boot>/, under its path. Messages that were in it are lost. Their numbers are never given
again: the commit that takes files out of the log records them, and those that a store knows beyond the table's last number, as
`lost/<member>/<first>`. A data file is whole when it has its size and the end of a Parquet file: the file systems that keep a
journal give a file its size after its content.

A host that was booted again may have lost what it had not forced to the disk. Only a domain in a directory notes boots, and only
hosts that tell their boot's id do (Linux). A container needs a host name that survives the boot.

    ROOT/_jmsq/boots/<host>         the id of the boot that has written to the domain last
    ROOT/_jmsq/boots/.<host>.lock   held by the process that repairs the domain after a new boot

Features: C5 (docs/FEATURES.md)
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.errors import DomainError, ForeignWriteError, UnreadableTableError
from spark_jms.log.sending.send import TransactionId
from spark_jms.log.tables.checkpoints import (
    LAST_CHECKPOINT,
    NEWEST_OWN_COMMIT,
    Checkpoint,
    LogListing,
    commit_path,
    hinted_checkpoint,
    read_checkpoint,
)
from spark_jms.log.tables.commit import Decision, commit
from spark_jms.log.tables.delta_log import Action, DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import ENGINE, LOST_PREFIX, SEQUENCE_PREFIX, Snapshot
from spark_jms.log.tables.storage import LocalStorage, now_ms

LOST = "_jmsq/lost"
BOOTS = "_jmsq/boots"
_PARQUET_END = b"PAR1"
_WAIT_S, _POLL_S = 30.0, 0.05

# -- a table -----------------------------------------------------------------------------------------------------------


def unreadable_log_files(storage: LocalStorage) -> list[str]:
    """Of the table in `storage`, the newest first: set aside in this order, they leave a log that ends early at every moment. None
    of a log whose beginning is missing, since nothing tells what is behind it."""
    listing = LogListing.of(storage)
    checkpoints, aside = list(listing.checkpoints), list[str]()
    while checkpoints and not _is_readable(storage, checkpoints[-1]):
        aside += checkpoints.pop().paths
    last = checkpoints[-1].version if checkpoints else -1
    hinted = hinted_checkpoint(storage)
    if hinted is not None and hinted.version != last:  # a reader that began there would read what may be damaged
        aside.insert(0, LAST_CHECKPOINT)
    behind = [version for version in listing.commits if version > last]
    if last < 0 and behind[:1] != [0]:
        return []
    names_itself = last >= 0
    for version in behind:
        commit = _WrittenCommit.of(storage.get(commit_path(version)) or b"")
        if version != last + 1 or commit is None or (names_itself and commit.is_ours and commit.own != version):
            break
        last, names_itself = version, names_itself or commit.own == version
    return [*aside, *(commit_path(version) for version in reversed(behind) if version > last)]


@dataclass(frozen=True)
class Loss(Decision):
    """What a table has lost. `files` leave the log, and `messages` (member -> numbers) are lost."""

    files: Sequence[str] = ()
    messages: Mapping[int, Ranges] = field(default_factory=dict)


def commit_loss(log: DeltaLog, known: Callable[[Snapshot], Mapping[int, int]]) -> Loss | None:
    """Take the data files out of the log that are not whole, and never give a number again up to those that are `known`: member ->
    the last one. Durable on return. None: nothing was lost."""
    storage = log.storage
    assert isinstance(storage, LocalStorage)
    done = commit(log, lambda snapshot: _loss(storage, snapshot, known(snapshot)))
    if done is None:
        return None
    storage.sync([commit_path(done.version)])
    return done.decision


@dataclass(frozen=True)
class _WrittenCommit:
    """A commit file. `own`: the version that the last line of our commits names; commits of early releases name none."""

    is_ours: bool
    own: int | None

    @staticmethod
    def of(data: bytes) -> _WrittenCommit | None:
        """None: it cannot be read."""
        try:
            actions = [json.loads(line) for line in data.splitlines() if line.strip()]
            engine = next((a["commitInfo"].get("engineInfo") for a in actions if a.get("commitInfo")), "")
            own = [int(a["txn"]["version"]) for a in actions if (a.get("txn") or {}).get("appId") == NEWEST_OWN_COMMIT]
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return _WrittenCommit(str(engine).startswith(ENGINE), own[-1] if own else None) if actions else None


def _is_readable(storage: LocalStorage, checkpoint: Checkpoint) -> bool:
    try:
        read_checkpoint(storage, Snapshot(storage.uri), checkpoint)
    except UnreadableTableError:
        return False
    except ForeignWriteError:
        return True  # another program has written, which is said when the table is read
    return True


def _loss(storage: LocalStorage, snapshot: Snapshot, known: Mapping[int, int]) -> Loss | None:
    files = [file for file in snapshot.files.values() if not _is_whole(storage, file)]
    lost: dict[int, Ranges] = {}
    for file in files:
        lost[file.member] = lost.get(file.member, EMPTY) | Ranges.of((file.first, file.last))
    ends = {m: number for m, number in known.items() if number > snapshot.last_sequence(m)}
    for member, number in ends.items():
        lost[member] = lost.get(member, EMPTY) | Ranges.of((snapshot.last_sequence(member) + 1, number))
    if not lost:
        return None
    now = now_ms()
    actions: list[Action] = [file.remove_action(now) for file in files]
    actions += [
        TransactionId(f"{SEQUENCE_PREFIX}{member}", number).action(now) for member, number in sorted(ends.items())
    ]
    for member, ranges in sorted(lost.items()):
        actions += [TransactionId(f"{LOST_PREFIX}{member}/{low}", high).action(now) for low, high in ranges]
    return Loss("POWER LOSS", actions, files=[file.path for file in files], messages=lost)


def _is_whole(storage: LocalStorage, file: DataFile) -> bool:
    try:
        with open(storage.root / file.path, "rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(size - len(_PARQUET_END), 0))
            return size == file.bytes and opened.read() == _PARQUET_END
    except FileNotFoundError:
        return False


# -- the boots of a host -----------------------------------------------------------------------------------------------


@cache
def this_boot() -> str:
    """The id of this boot of this host; "" where there is none to read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class Boots:
    """The boots of this host that a domain has noted. Every call reads or writes the storage."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage, self._host = storage, socket.gethostname()
        self._path = f"{BOOTS}/{self._host}"

    def earlier(self) -> str | None:
        """The boot before this one that has written to the domain; None: there was none, or it is this one."""
        known, boot = self._noted(), this_boot()
        return known if boot and known not in ("", boot) else None

    def note(self) -> None:
        """This boot writes from now on. Durable on return, so that a loss of power after it will be noticed."""
        if this_boot() and self._noted() != this_boot():
            self._storage.put(self._path, this_boot().encode())
            self._storage.sync([self._path])

    def _noted(self) -> str:
        return (self._storage.get(self._path) or b"").decode("ascii", "replace").strip("\0\n ")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """As the only process of this host. Raises DomainError after 30 s."""
        path = self._storage.root / BOOTS / f".{self._host}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            until_s = time.monotonic() + _WAIT_S
            while not _locked(descriptor):
                if time.monotonic() > until_s:
                    raise DomainError(
                        f"{self._storage.uri}: host {self._host} was booted again, and another process has been repairing the domain "
                        f"for {_WAIT_S:.0f} s (it holds {path}): wait for it, or stop it, then try again"
                    )
                time.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)  # which gives the lock back


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
