"""The Global Directory on disk: what all daemons, stores and administrators of one cluster share.

    rs_daemons.cfg                     the daemons; written by the administrator
    logs/                              daemon log files
    regions/NAME.RGN                   created with the region, remains when it is closed
    regions/NAME_client_meta.f         exists while a store has the region open
    regions/NAME_admin_meta.f          exists while an administrator deletes it
    daemons/directory.id               the directory's identity; written once, by the first daemon that starts on it
    daemons/dNNN.lock                  locked while the daemon lives; holds its incarnation
    daemons/dNNN.secret                proves that a process may read this directory; new at each start of the daemon (R17)
    daemons/STORE.engine               the address of the process that serves the store
    daemons/entries/NAME/VERSION       the region's entry, with its checksum; the highest version counts

A change is a compare-and-swap without a lock, so that a daemon that stops in the middle blocks no other: it writes the new
version under a temporary name, syncs it, and links it to the next number, which only one writer can do. A deleted region
keeps a last version that records the deletion: without it, a writer that slept could use an old number again.

An absent directory is not an empty one. When it is away, its path may lead to an empty mount point, in which no region has
an entry and no daemon a lock. So nothing counts as "not there" unless the same descriptor of the directory also shows its
identity. A daemon reads the identity when it starts and remembers it. A directory from before this file gets one from the
first daemon that starts on it: that daemon requires rs_daemons.cfg, which an empty mount point lacks.

`remove_stale_files` removes what a dead writer has left: temporary files, and all versions but the last two. A reader takes
the highest number, and looks again when that file was removed. A writer that was stopped for so long finds its temporary
file removed or its number used, and raises DirectoryUnavailableError, because the outcome is unknown.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from spark_jms.store.errors import (
    DaemonConfigError,
    DaemonUnavailableError,
    DirectoryUnavailableError,
    RegionEntryDamagedError,
    RegionEntryVersionError,
)
from spark_jms.store.regions.core.config import ClusterConfig, DaemonSpec, checksum_of, parse, pick_local
from spark_jms.store.regions.core.directory import Absent, DirectoryListing, DirectoryPort, Holder, RegionEntry

CONFIG = "rs_daemons.cfg"
IDENTITY = "daemons/directory.id"
ENTRIES = "daemons/entries"
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
TIGHT_FILE, TIGHT_FOLDER = 0o600, 0o700
GROUP_FILE = 0o660
LOCK_TIMEOUT_S, LOCK_POLL_S = 1.0, 0.01
STALE_AGE_S = 3600.0
VERSION = 1  # of an entry
FIELDS = {field.name for field in dataclasses.fields(RegionEntry)}
IDENTITY_TEXT = re.compile("[0-9a-f]{64}")
TEMPORARY = re.compile(r"\..+\.[0-9]+\.[0-9a-f]{8}")  # see _written


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

    def __init__(self, path: str) -> None:
        self.path = Path(os.path.realpath(path))
        self.config_file = self.path / CONFIG

    def config(self) -> ClusterConfig:
        """Reads the file at each call, so that a change is noticed (R2)."""
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
        """What both sides of a connection must agree on (R2, R17)."""
        return hashlib.sha256(f"{self.path}\0{config.checksum}".encode()).digest()

    def prepare(self) -> None:
        """Makes the folders and the identity. DirectoryUnavailableError without rs_daemons.cfg."""
        with _named(), self.opened() as root:
            if not _has(root, CONFIG):
                raise DirectoryUnavailableError(f"{self.path} has no {CONFIG}, so it may be an empty mount point")
            for name, mode in (("daemons", TIGHT_FOLDER), (ENTRIES, TIGHT_FOLDER), ("regions", 0o750)):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, mode, dir_fd=root)
            if not _has(root, IDENTITY):
                _link_new(self.path / IDENTITY, secrets.token_hex(32).encode(), TIGHT_FILE)

    # ---- whether it is the directory at all

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the folder: whatever is looked up through it belongs to the same directory, even if the path leads
        to another one meanwhile."""
        root = os.open(self.path, FOLDER_FLAGS)
        try:
            yield root
        finally:
            os.close(root)

    def read_identity(self) -> str:
        """DirectoryUnavailableError without one: `prepare` makes it."""
        with _named(), self.opened() as root:
            identity = _identity_in(root)
        if not IDENTITY_TEXT.fullmatch(identity):
            raise DirectoryUnavailableError(f"{self.path / IDENTITY} is damaged: remove it while no daemon runs")
        return identity

    def is_seen(self, root: int, identity: str) -> bool:
        """Whether the descriptor belongs to the directory with this identity. Without one, as for a command, the directory is
        the one that has rs_daemons.cfg."""
        if not identity:
            return _has(root, CONFIG)
        try:
            return _identity_in(root) == identity
        except FileNotFoundError:
            return False

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
        write_whole(secret, secrets.token_hex(32).encode(), TIGHT_FILE)
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
            return _has(root, str(path.relative_to(self.path)))

    # ---- services on stores

    def _service_file(self, store: str) -> Path:
        return self.path / "daemons" / f"{_quoted(store)}.engine"

    def publish_service(self, store: str, reached: Mapping[str, Any]) -> None:
        """The process that opened the store's regions and serves them publishes how the others reach it. OSError."""
        write_whole(self._service_file(store), json.dumps(reached).encode(), TIGHT_FILE)

    def published_service(self, store: str) -> dict[str, Any]:
        """What the last server of the store published; {} when none has, or the file cannot be read."""
        return _object_in(self._service_file(store))


class DirectoryFiles(DirectoryPort):
    """The entries of the regions, for one daemon or administrator. `identity`: see GlobalDirectory.is_seen."""

    def __init__(self, directory: GlobalDirectory, identity: str = "") -> None:
        self._directory = directory
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
        for name in names:
            try:
                found[name] = self.read(name)
            except DirectoryUnavailableError as error:
                unreadable[name] = error
        if Absent.UNSEEN in found.values():
            raise self._unseen()
        removed = frozenset(name for name, entry in found.items() if entry is Absent.REMOVED)
        entries = {name: entry for name, entry in found.items() if isinstance(entry, RegionEntry)}
        return DirectoryListing(entries, removed, unreadable)

    def _names(self) -> list[str]:
        with self._directory.opened() as root:
            if not self._directory.is_seen(root, self._identity):
                raise self._unseen()
            with _opened_folder(ENTRIES, root) as fd, os.scandir(fd) as folders:
                return [urllib.parse.unquote(folder.name) for folder in folders if folder.is_dir()]

    def _unseen(self) -> DirectoryUnavailableError:
        return DirectoryUnavailableError(f"{self._directory.path}: {Absent.UNSEEN.value}")

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        with _named():
            version, current = self._newest(name)
            if current is Absent.UNSEEN:
                raise self._unseen()
            if (current.tag if isinstance(current, RegionEntry) else None) != (old.tag if old else None):
                return False
            folder = self._folder(name)
            if not version:
                folder.mkdir(mode=TIGHT_FOLDER, exist_ok=True)
                _sync_folder(self._entries)
            if not _link_new(folder / str(version + 1), _encode(new), TIGHT_FILE):
                return False
            versions = _versions(folder)
            if max(versions) > version + 1:
                # Another daemon built on it, or used this number and removed it while this process slept.
                raise DirectoryUnavailableError(f"region {name}: changed again in the same moment")
            for stale in versions:
                if stale < version:
                    (folder / str(stale)).unlink(missing_ok=True)
            self._lock_files(name)
            return True

    def discard(self, name: str) -> bool:
        with _named():
            folder = self._folder(name)
            version = max(_versions(folder), default=0)
            try:
                self._newest(name)
                return False
            except RegionEntryDamagedError:
                done = _link_new(folder / str(version + 1), _encode(None), TIGHT_FILE)
            if done:
                self._lock_files(name)
            return done

    def remove_stale_files(self, now_s: float, age_s: float = STALE_AGE_S) -> list[Path]:
        """The removed files. Any process may call it at any time."""
        with _named():
            folders = [folder for folder in self._entries.iterdir() if folder.is_dir()]
            stale = [folder / str(old) for folder in folders for old in sorted(_versions(folder))[:-2]]
            for folder in (*folders, self._entries.parent, self._regions, self._directory.path):
                for path in (folder / name for name in os.listdir(folder) if TEMPORARY.fullmatch(name)):
                    with contextlib.suppress(FileNotFoundError):  # its writer has just finished
                        if now_s - path.lstat().st_mtime > age_s:
                            stale.append(path)
            for path in stale:
                path.unlink(missing_ok=True)
            return stale

    def running(self, holder: Holder) -> bool:
        return self._directory.is_running(holder.daemon, holder.incarnation, self._identity)

    def _newest(self, name: str) -> tuple[int, RegionEntry | Absent]:
        folder = self._folder(name)
        while True:
            version = max(_versions(folder), default=0)
            if not version and (absent := self._nothing(name)) is not None:
                return 0, absent
            path = folder / str(version)
            try:
                return version, _decode(str(path), path.read_bytes()) or Absent.REMOVED
            except FileNotFoundError:
                continue  # two newer versions exist by now, or the directory was away for a moment

    def _nothing(self, name: str) -> Absent | None:
        """What it means that there is no version; None when there is one after all."""
        with self._directory.opened() as root:
            if not self._directory.is_seen(root, self._identity):
                return Absent.UNSEEN
            try:
                with _opened_folder(f"{ENTRIES}/{_quoted(name)}", root) as fd:
                    return None if any(found.isdecimal() for found in os.listdir(fd)) else Absent.NOTHING
            except FileNotFoundError:
                return Absent.NOTHING

    def _folder(self, name: str) -> Path:
        return self._entries / _quoted(name)

    def _lock_files(self, name: str) -> None:
        """R8: the files by which people know regions. Looks again when the entry changed meanwhile."""
        client = self._regions / f"{_quoted(name)}_client_meta.f"
        version = -1
        while version != (newest := self._newest(name))[0]:
            version, entry = newest
            if isinstance(entry, RegionEntry) and entry.epoch == 1:
                (self._regions / f"{_quoted(name)}.RGN").touch(mode=0o640)
            if isinstance(entry, RegionEntry) and entry.opener is not None:
                if not client.exists():
                    write_whole(client, entry.opener.encode(), 0o640)
            else:
                client.unlink(missing_ok=True)

    @contextlib.contextmanager
    def administered(self, name: str) -> Iterator[None]:
        """While an administrator deletes the region."""
        path = self._regions / f"{_quoted(name)}_admin_meta.f"
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


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="-_.@ ")


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DirectoryUnavailableError(str(error)) from error


@contextlib.contextmanager
def _opened_folder(name: str, root: int) -> Iterator[int]:
    fd = os.open(name, FOLDER_FLAGS, dir_fd=root)
    try:
        yield fd
    finally:
        os.close(fd)


def _has(root: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=root)
    except FileNotFoundError:
        return False
    return True


def _identity_in(root: int) -> str:
    fd = os.open(IDENTITY, os.O_RDONLY | os.O_CLOEXEC, dir_fd=root)
    try:
        return os.read(fd, 1_000).decode("ascii", "replace").strip()
    finally:
        os.close(fd)


def _versions(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]
    except FileNotFoundError:
        return []


def _encode(entry: RegionEntry | None) -> bytes:
    body = json.dumps(None if entry is None else asdict(entry), sort_keys=True)
    return f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n".encode()


def _decode(file: str, data: bytes) -> RegionEntry | None:
    """RegionEntryDamagedError, RegionEntryVersionError."""
    lines = data.decode("utf-8", "replace").split("\n")
    if len(lines) < 2 or hashlib.sha256(lines[0].encode()).hexdigest() != lines[1]:
        raise RegionEntryDamagedError(file, "the entry does not fit its checksum")
    try:
        fields = json.loads(lines[0])
        if fields is None:
            return None
        unknown = sorted(fields.keys() - FIELDS)
        if unknown or fields["version"] > VERSION:
            raise RegionEntryVersionError(file, fields["version"], VERSION, ", ".join(unknown))
        return msgspec.convert(fields, RegionEntry)
    except (ValueError, KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise RegionEntryDamagedError(file, f"it is no region's entry: {error}") from error


def write_whole(path: Path, data: bytes, mode: int) -> None:
    """The old content or the new one, whatever happens."""
    with _written(path, data, mode) as temporary:
        os.rename(temporary, path)
    _sync_folder(path.parent)


def _link_new(path: Path, data: bytes, mode: int) -> bool:
    """A file that was not there, whole; False when it is there already."""
    with _written(path, data, mode) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    _sync_folder(path.parent)
    return True


@contextlib.contextmanager
def _written(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A synced file beside `path`, for the moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
        yield temporary
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
