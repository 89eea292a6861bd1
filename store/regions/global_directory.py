"""The Global Directory on disk: what all daemons, stores and administrators of one cluster share.

    rs_daemons.cfg                     the daemons; written by the administrator
    logs/                              daemon log files
    regions/NAME.RGN                   created with the region, remains when it is closed
    regions/NAME_client_meta.f         exists while a store has the region open
    regions/NAME_admin_meta.f          exists while an administrator deletes it
    daemons/directory.id               the directory's identity; written once, by the first daemon that starts on it
    daemons/dNNN.lock                  locked while the daemon lives; holds its incarnation
    daemons/dNNN.secret                proves that a process may read this directory; new at each start of the daemon
    daemons/STORE.engine               the address of the process that serves the store
    daemons/entries/NAME/VERSION       the region's entry, with its checksum; the highest version counts
    daemons/gathered/NAME              the region was removed, and its entry gathered up
    daemons/gathering/                 entries that are being gathered up

A change is a compare-and-swap without a lock, so that a daemon that stops in the middle blocks no other: it writes the new
version under a temporary name, syncs it, and links it to the next number, which only one writer can do. A deleted region
keeps a last version that records the deletion: without it, a writer that slept could use an old number again.

An absent directory is not an empty one. When it is away, its path may lead to an empty mount point, in which no region has
an entry and no daemon a lock. So nothing counts as "not there" unless the same descriptor of the directory also shows its
identity. A daemon reads the identity when it starts and remembers it. A directory from before this file gets one from the
first daemon that starts on it: that daemon requires rs_daemons.cfg, which an empty mount point lacks.

`remove_stale_files` removes what a dead writer has left: temporary files, and all versions but the last two. A reader takes
the highest number, and looks again when that file was removed. A writer that was stopped for so long finds its temporary
file removed, its number used, or its folder gathered up (entry_gathering.py), and raises DirectoryUnavailableError, because
the outcome is unknown. Readers and writers stay in the folder that they have opened, whatever its path leads to meanwhile.

Features: R2, R8, R17 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import secrets
import socket
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from spark_jms.store.disk import Disk
from spark_jms.store.errors import (
    DaemonConfigError,
    DaemonUnavailableError,
    DirectoryUnavailableError,
    RegionEntryDamagedError,
    RegionEntryVersionError,
)
from spark_jms.store.regions import folder_files
from spark_jms.store.regions.core.config import ClusterConfig, DaemonSpec, checksum_of, parse, pick_local
from spark_jms.store.regions.core.directory import (
    Absent,
    DirectoryListing,
    DirectoryPort,
    Holder,
    RegionEntry,
    unexpected,
)

CONFIG = "rs_daemons.cfg"
IDENTITY = "daemons/directory.id"
ENTRIES = "daemons/entries"
GATHERED = "daemons/gathered"
GATHERING = "daemons/gathering"
TIGHT_FILE, TIGHT_FOLDER = 0o600, 0o700
GROUP_FILE = 0o660
FOLDERS = (*((name, TIGHT_FOLDER) for name in ("daemons", ENTRIES, GATHERED, GATHERING)), ("regions", 0o750))
LOCK_TIMEOUT_S, LOCK_POLL_S = 1.0, 0.01
STALE_AGE_S = 3600.0
MAX_LOOKS = 100  # at an entry that others change
MAX_NAMED = 10  # failures in one error
VERSION = 1  # of an entry
MARK = "gathered by"  # a daemon's mark instead of an entry
FIELDS = set(RegionEntry.__struct_fields__)
IDENTITY_TEXT = re.compile("[0-9a-f]{64}")
TEMPORARY = re.compile(r"\..+\.[0-9]+\.[0-9a-f]{8}")  # see folder_files.py


def machine_addresses() -> frozenset[str]:
    """The names and numbers of this machine, as they may stand in rs_daemons.cfg."""
    import psutil

    found = {"localhost", "127.0.0.1", "::1", socket.gethostname(), _full_name()}
    for addresses in psutil.net_if_addrs().values():
        found |= {a.address.split("%")[0] for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)}
    return frozenset(found)


@functools.cache
def _full_name() -> str:
    return socket.getfqdn()  # may ask a name server


class GlobalDirectory:
    """The folder. `path` is its real path, so that two processes may name it differently."""

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.path = Path(os.path.realpath(path))
        self.disk = disk or Disk()
        self.config_file = self.path / CONFIG

    def config(self) -> ClusterConfig:
        """Reads the file at each call, so that a change is noticed."""
        try:
            data = self.config_file.read_bytes()
        except OSError as error:
            raise DaemonConfigError(str(self.config_file), 0, error.strerror or str(error)) from error
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DaemonConfigError(str(self.config_file), 0, f"not UTF-8: {error.reason}") from error
        config = parse(text, str(self.config_file))
        if config.checksum != checksum_of(data):
            raise DaemonConfigError(str(self.config_file), 0, "the file changed while it was read")
        return config

    def local_daemon(self, config: ClusterConfig, localindex: int) -> DaemonSpec:
        return pick_local(config, machine_addresses(), localindex)

    def identity(self, config: ClusterConfig) -> bytes:
        """What both sides of a connection must agree on."""
        return hashlib.sha256(f"{self.path}\0{config.checksum}".encode()).digest()

    def prepare(self) -> None:
        """Makes the folders and the identity. DirectoryUnavailableError without rs_daemons.cfg."""
        with _named(), self.opened() as root:
            if not self.disk.has(CONFIG, folder=root):
                raise DirectoryUnavailableError(f"{self.path} has no {CONFIG}, so it may be an empty mount point")
            for name, mode in FOLDERS:
                with contextlib.suppress(FileExistsError):
                    self.disk.make_folder(name, mode, folder=root)
            with self.disk.opened_folder("daemons", folder=root) as folder:
                self.disk.sync_folder(root)
                if not self.disk.has(IDENTITY, folder=root):
                    identity = secrets.token_hex(32).encode()
                    folder_files.link_new(self.disk, folder, Path(IDENTITY).name, identity, TIGHT_FILE)
                self.disk.sync_folder(folder)  # the folders; and the identity, if its maker died before it could

    # ---- whether it is the directory at all

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the folder: whatever is looked up through it belongs to the same directory, even if the path leads
        to another one meanwhile."""
        with self.disk.opened_folder(str(self.path)) as root:
            yield root

    def read_identity(self) -> str:
        """DirectoryUnavailableError without one: `prepare` makes it."""
        with _named(), self.opened() as root:
            identity = self._identity_in(root)
        if not IDENTITY_TEXT.fullmatch(identity):
            raise DirectoryUnavailableError(f"{self.path / IDENTITY} is damaged: remove it while no daemon runs")
        return identity

    def is_seen(self, root: int, identity: str) -> bool:
        """Whether the descriptor belongs to the directory with this identity. Without one, as for a command, the directory is
        the one that has rs_daemons.cfg."""
        if not identity:
            return self.disk.has(CONFIG, folder=root)
        try:
            return self._identity_in(root) == identity
        except FileNotFoundError:
            return False

    def _identity_in(self, root: int) -> str:
        return self.disk.read(IDENTITY, folder=root).decode("ascii", "replace").strip()

    # ---- daemons

    def _daemon_file(self, index: int, kind: str) -> Path:
        return self.path / "daemons" / f"d{index:03d}.{kind}"

    def secret(self, index: int) -> bytes:
        """DaemonUnavailableError when that daemon never ran, or this user may not read its secret."""
        try:
            return bytes.fromhex(self._daemon_file(index, "secret").read_text())
        except (OSError, ValueError) as error:
            raise DaemonUnavailableError(f"daemon {index} has no readable secret: {error}") from error

    def told(self, index: int) -> dict[str, Any]:
        """What the daemon wrote about itself when it started; {} when it never ran."""
        return _object_in(self._daemon_file(index, "lock"))

    def lock_daemon(self, index: int, incarnation: str, checksum: str) -> int:
        """The descriptor that holds the lock for the daemon's life. DaemonUnavailableError when the daemon runs already."""
        self.prepare()
        fd = os.open(self._daemon_file(index, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, TIGHT_FILE)
        deadline_s = time.monotonic() + LOCK_TIMEOUT_S
        while True:  # others test whether the daemon runs by locking the file for a moment
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() < deadline_s:
                    time.sleep(LOCK_POLL_S)
                    continue
                os.close(fd)
                raise DaemonUnavailableError(
                    f"daemon {index} runs already, as process {self.told(index).get('pid')}"
                ) from error
        os.ftruncate(fd, 0)  # removes what the incarnation before wrote
        secret = self._daemon_file(index, "secret")
        write_whole(secret, secrets.token_hex(32).encode(), TIGHT_FILE, self.disk)
        self.tell(fd, incarnation, checksum)
        return fd

    def tell(self, fd: int, incarnation: str, checksum: str, door: str = "") -> None:
        told = json.dumps({"incarnation": incarnation, "pid": os.getpid(), "config": checksum, "door": door}).encode()
        os.pwrite(fd, told, 0)
        os.ftruncate(fd, len(told))
        os.fsync(fd)

    def is_running(self, index: int, incarnation: str | None = None, identity: str = "") -> bool:
        """False only when the daemon certainly does not run: its lock is free, or the directory with this identity has none."""
        path = self._daemon_file(index, "lock")
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._certainly_has_lock(path, identity)
        except OSError as error:
            raise DirectoryUnavailableError(f"{path}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                told = self.told(index).get("incarnation")
                return incarnation is None or told is None or told == incarnation
            return False
        finally:
            os.close(fd)

    def _certainly_has_lock(self, path: Path, identity: str) -> bool:
        with _named(), self.opened() as root:
            if not self.is_seen(root, identity):
                raise DirectoryUnavailableError(f"{path}: {Absent.UNSEEN.value}")
            return self.disk.has(str(path.relative_to(self.path)), folder=root)

    # ---- services on stores

    def _service_file(self, store: str) -> Path:
        return self.path / "daemons" / f"{quoted(store)}.engine"

    def publish_service(self, store: str, reached: Mapping[str, Any]) -> None:
        """The process that opened the store's regions and serves them publishes how the others reach it. OSError."""
        write_whole(self._service_file(store), json.dumps(reached).encode(), TIGHT_FILE, self.disk)

    def published_service(self, store: str) -> dict[str, Any]:
        """What the last server of the store published; {} when none has, or the file cannot be read."""
        return _object_in(self._service_file(store))


class RegionNames(NamedTuple):
    entered: list[str]  # those with a folder of versions
    gathered: set[str]  # those that were removed and gathered up; they may have been created again since


@dataclass(frozen=True)
class GatheredBy:
    """The last version in a folder: this daemon moves it away (entry_gathering.py)."""

    daemon: Holder


class DirectoryFiles(DirectoryPort):
    """The entries of the regions, for one daemon or administrator. `identity`: see GlobalDirectory.is_seen."""

    def __init__(self, directory: GlobalDirectory, identity: str = "") -> None:
        self._directory = directory
        self._disk = directory.disk
        self._identity = identity
        self._entries = directory.path / ENTRIES
        self._regions = directory.path / "regions"

    def read(self, name: str) -> RegionEntry | Absent:
        with _named():
            return self._newest(name)[1]

    def entries(self) -> DirectoryListing:
        found: dict[str, RegionEntry | Absent] = {}
        unreadable: dict[str, DirectoryUnavailableError] = {}
        with _named():
            names = self._names()
        for name in names.entered:
            try:
                found[name] = self.read(name)
            except DirectoryUnavailableError as error:
                unreadable[name] = error
            except Exception as error:  # noqa: BLE001 - it refuses this region only
                unreadable[name] = unexpected(error)
        if Absent.UNSEEN in found.values():
            raise self._unseen()
        removed = {name for name, entry in found.items() if entry is Absent.REMOVED} | (names.gathered - found.keys())
        entries = {name: entry for name, entry in found.items() if isinstance(entry, RegionEntry)}
        return DirectoryListing(entries, frozenset(removed - unreadable.keys()), unreadable)

    def _names(self) -> RegionNames:
        with self._directory.opened() as root:
            if not self._directory.is_seen(root, self._identity):
                raise self._unseen()
            with self._disk.opened_folder(ENTRIES, folder=root) as fd:
                entered = _regions_of(self._disk.folders(fd))
            try:  # after the others: what is gathered up meanwhile is in one of the two
                with self._disk.opened_folder(GATHERED, folder=root) as fd:
                    return RegionNames(entered, set(_regions_of(self._disk.names(fd))))
            except FileNotFoundError:
                return RegionNames(entered, set())  # a directory of an earlier version

    def _unseen(self) -> DirectoryUnavailableError:
        return DirectoryUnavailableError(f"{self._directory.path}: {Absent.UNSEEN.value}")

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        with _named():
            folder = self._open_entry(name, make=old is None)
            if folder is None:
                return False
            try:
                if not self._swap_in(folder, name, old, new):
                    return False
            finally:
                self._disk.close(folder)
            if old is None and new is not None:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(str(self._directory.path / GATHERED / quoted(name)))
            self._lock_files(name)
            return True

    def _swap_in(self, folder: int, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        version, current = self.newest_in(folder, name)
        if (current.tag if isinstance(current, RegionEntry) else None) != (old.tag if old else None):
            return False
        if isinstance(current, GatheredBy) and self.running(current.daemon):
            raise DirectoryUnavailableError(f"region {name}: daemon {current.daemon.daemon} gathers up its old entry")
        if not version:  # its maker may have died before it synced the folder's name
            self._disk.sync_folder_at(str(self._entries))
        if not folder_files.link_new(self._disk, folder, str(version + 1), encode_entry(new), TIGHT_FILE):
            return False
        versions = folder_files.numbers(self._disk, folder)
        if max(versions, default=0) > version + 1 or not self._disk.is_at(folder, self.folder_of(name)):
            # Another daemon built on it; or, while this process slept, used this number and removed it, or gathered the
            # folder up.
            raise DirectoryUnavailableError(f"region {name}: changed again in the same moment")
        for stale in versions:
            if stale < version:
                with contextlib.suppress(OSError):  # the change is made; housekeeping removes it, or names it
                    folder_files.remove(self._disk, folder, str(stale))
        return True

    def _open_entry(self, name: str, make: bool) -> int | None:
        """The folder of the region's versions. Without one: a new one with `make`, else None."""
        for _ in range(MAX_LOOKS):
            try:
                return self._disk.open_folder(self.folder_of(name))
            except FileNotFoundError:
                absent = self._nothing(name)
            if absent is Absent.UNSEEN:
                raise self._unseen()
            if absent is not None and not make:
                return None
            with contextlib.suppress(FileExistsError):
                self._disk.make_folder(self.folder_of(name), TIGHT_FOLDER)
        raise _restless(name)

    def discard(self, name: str) -> bool:
        with _named():
            try:
                with self._disk.opened_folder(self.folder_of(name)) as folder:
                    version = max(folder_files.numbers(self._disk, folder), default=0)
                    try:
                        self.newest_in(folder, name)
                        return False
                    except RegionEntryDamagedError:
                        last = encode_entry(None)
                        done = folder_files.link_new(self._disk, folder, str(version + 1), last, TIGHT_FILE)
            except FileNotFoundError:
                return False
            if done:
                self._lock_files(name)
            return done

    def remove_stale_files(self, now_s: float, age_s: float = STALE_AGE_S) -> list[Path]:
        """The removed files. Any process may call it at any time. DirectoryUnavailableError, which names what could not be
        removed, once everything else is."""
        with _named(), self._disk.opened_folder(str(self._entries)) as entries:
            folders = [self._entries / name for name in self._disk.folders(entries)]
        stale: list[Path] = []
        failed: list[str] = []
        for path in (*folders, self._entries.parent, self._regions, self._directory.path):
            try:
                with contextlib.suppress(FileNotFoundError), self._disk.opened_folder(str(path)) as folder:
                    # without it, it was gathered up meanwhile
                    old = [name for name in self._disk.names(folder) if self._is_old(folder, name, now_s - age_s)]
                    if path.parent == self._entries:
                        versions = sorted(folder_files.numbers(self._disk, folder))
                        if versions[:-2]:  # the writers of the two that stay may have died before they could sync
                            self._disk.sync_folder(folder)
                        old += map(str, versions[:-2])
                    for name in old:
                        try:
                            folder_files.remove(self._disk, folder, name)
                        except OSError as error:
                            failed.append(f"{path / name}: {error.strerror}")
                        else:
                            stale.append(path / name)
            except OSError as error:
                failed.append(f"{path}: {error.strerror}")
        if failed:
            raise DirectoryUnavailableError("; ".join(failed[:MAX_NAMED]))
        return stale

    def _is_old(self, folder: int, name: str, before_s: float) -> bool:
        """Whether it is a temporary file of a writer that is dead by now."""
        with contextlib.suppress(FileNotFoundError):  # its writer has just finished
            return bool(TEMPORARY.fullmatch(name)) and self._disk.stat(name, folder=folder).st_mtime < before_s
        return False

    def running(self, holder: Holder) -> bool:
        return self._directory.is_running(holder.daemon, holder.incarnation, self._identity)

    def _newest(self, name: str) -> tuple[int, RegionEntry | Absent]:
        for _ in range(MAX_LOOKS):
            version = 0
            with contextlib.suppress(FileNotFoundError), self._disk.opened_folder(self.folder_of(name)) as folder:
                version, found = self.newest_in(folder, name)
            if version:
                return version, found if isinstance(found, RegionEntry) else Absent.REMOVED
            if (absent := self._nothing(name)) is not None:
                return 0, absent
        raise _restless(name)

    def newest_in(self, folder: int, name: str) -> tuple[int, RegionEntry | GatheredBy | None]:
        """Version 0: there is none. None: the removal of the region."""
        for _ in range(MAX_LOOKS):
            version = max(folder_files.numbers(self._disk, folder), default=0)
            if not version:
                return 0, None
            file = f"{self.folder_of(name)}/{version}"
            try:
                found = decode_entry(file, self._disk.read(str(version), folder=folder))
            except FileNotFoundError:
                continue  # two newer versions exist by now, or the folder was gathered up
            if isinstance(found, RegionEntry) and found.name != name:
                raise RegionEntryDamagedError(file, f"it is the entry of region {found.name}")
            return version, found
        raise _restless(name)

    def _nothing(self, name: str) -> Absent | None:
        """What it means that there is no version; None when there is one after all."""
        with self._directory.opened() as root:
            if not self._directory.is_seen(root, self._identity):
                return Absent.UNSEEN
            try:
                with self._disk.opened_folder(f"{ENTRIES}/{quoted(name)}", folder=root) as fd:
                    if folder_files.numbers(self._disk, fd):
                        return None
            except FileNotFoundError:
                pass
            removed = self._disk.has(f"{GATHERED}/{quoted(name)}", folder=root)
            return Absent.REMOVED if removed else Absent.NOTHING

    def folder_of(self, name: str) -> str:
        return f"{self._entries}/{quoted(name)}"

    def _lock_files(self, name: str) -> None:
        """The files by which people know regions. Looks again when the entry changed meanwhile; who changed it last does
        so too, so a writer that is always late may stop."""
        client = self._regions / f"{quoted(name)}_client_meta.f"
        version = -1
        for _ in range(MAX_LOOKS):
            last, (version, entry) = version, self._newest(name)
            if version == last:
                return
            if isinstance(entry, RegionEntry) and entry.epoch == 1:
                self._touch(f"{quoted(name)}.RGN")
            if isinstance(entry, RegionEntry) and entry.opener is not None:
                if not self._disk.has(str(client)):
                    write_whole(client, entry.opener.encode(), 0o640, self._disk)
            else:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(str(client))

    def _touch(self, name: str) -> None:
        self._disk.close(self._disk.open(str(self._regions / name), os.O_WRONLY | os.O_CREAT, 0o640))

    @contextlib.contextmanager
    def administered(self, name: str) -> Iterator[None]:
        """While an administrator deletes the region."""
        path = self._regions / f"{quoted(name)}_admin_meta.f"
        with _named():
            path.touch(mode=0o640)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _object_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} when there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="-_.@ ")


def _restless(name: str) -> DirectoryUnavailableError:
    return DirectoryUnavailableError(f"region {name}: its entry was listed {MAX_LOOKS} times and absent each time")


def _regions_of(names: Iterable[str]) -> list[str]:
    """The regions with these names of files. No region has any other file, so a stray one is not a region."""
    return [urllib.parse.unquote(name) for name in names if _is_quoted(name)]


def _is_quoted(name: str) -> bool:
    try:
        return quoted(urllib.parse.unquote(name)) == name
    except UnicodeEncodeError:  # its bytes are not UTF-8
        return False


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DirectoryUnavailableError(str(error)) from error


def encode_entry(entry: RegionEntry | GatheredBy | None) -> bytes:
    fields = msgspec.to_builtins(entry)
    body = json.dumps({MARK: fields} if isinstance(entry, GatheredBy) else fields, sort_keys=True)
    return f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n".encode()


def decode_entry(file: str, data: bytes) -> RegionEntry | GatheredBy | None:
    """RegionEntryDamagedError, RegionEntryVersionError."""
    lines = data.decode("utf-8", "replace").split("\n")
    if len(lines) < 2 or hashlib.sha256(lines[0].encode()).hexdigest() != lines[1]:
        raise RegionEntryDamagedError(file, "the entry does not fit its checksum")
    try:
        fields = json.loads(lines[0])
        if fields is None:
            return None
        if MARK in fields:
            return msgspec.convert(fields[MARK], GatheredBy)
        unknown = sorted(fields.keys() - FIELDS)
        if unknown or fields["version"] > VERSION:
            raise RegionEntryVersionError(file, fields["version"], VERSION, ", ".join(unknown))
        return msgspec.convert(fields, RegionEntry)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        raise RegionEntryDamagedError(file, f"it is no region's entry: {error}") from error


def write_whole(path: Path, data: bytes, mode: int, disk: Disk | None = None) -> None:
    """The old content or the new one, whatever happens."""
    disk = disk or Disk()
    with disk.opened_folder(str(path.parent)) as folder:
        folder_files.replace(disk, folder, path.name, data, mode)
