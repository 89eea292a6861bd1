"""The Global Directory on disk: what all daemons, stores and administrators of one cluster share.

    rs_daemons.cfg                     the daemons; written by the administrator
    logs/                              daemon log files
    regions/NAME.RGN                   created with the region, remains until the region is removed
    regions/NAME_client_meta.f         exists while a store has the region open
    regions/NAME_admin_meta.f          exists while an administrator deletes it
    daemons/directory.id               the directory's identity; written once, by the first daemon that starts on it
    daemons/dNNN.lock                  locked while the daemon lives; holds its incarnation
    daemons/dNNN.secret                proves that a process may read this directory; new at each start of the daemon
    daemons/STORE.engine               the address of the process that serves the store
    daemons/entries/NAME/VERSION       the region's entry, with its checksum; the highest version counts
    daemons/gathered/NAME              the region was removed, and its entry gathered up
    daemons/gathering/                 entries that are being gathered up

Here are the daemons and the services; the entries are in entries.py.

An absent directory is not an empty one. When it is away, its path may lead to an empty mount point, in which no region has
an entry and no daemon a lock. So nothing counts as "not there" unless the same descriptor of the directory also shows its
identity. A daemon reads the identity when it starts and remembers it. A directory from before this file gets one from the
first daemon that starts on it: that daemon requires rs_daemons.cfg, which an empty mount point lacks.

Every call on a small file goes through the descriptor of its folder: it belongs to that folder for good, whatever its path
leads to meanwhile.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spark_jms.store.disk import Disk
from spark_jms.store.errors import DaemonConfigError, DaemonUnavailableError, DirectoryUnavailableError
from spark_jms.store.net.addresses import interfaces, numbers_of
from spark_jms.store.regions.protocol.cluster_config import ClusterConfig, DaemonSpec, checksum_of, parse, pick_local
from spark_jms.store.regions.protocol.region_entry import Absent, RegionEntry

CONFIG = "rs_daemons.cfg"
IDENTITY = "daemons/directory.id"
ENTRIES = "daemons/entries"
GATHERED = "daemons/gathered"
GATHERING = "daemons/gathering"
TIGHT_FILE, TIGHT_FOLDER = 0o600, 0o700
GROUP_FILE, GROUP_FOLDER = 0o640, 0o750
FOLDERS = ("daemons", ENTRIES, GATHERED, GATHERING)
LOCK_TIMEOUT_S, LOCK_POLL_S = 1.0, 0.01
STALE_AGE_S = 3600.0
MAX_LOOKS = 100  # at an entry that others change
MAX_NAMED = 10  # failures in one error
NAME_KEPT_S, UNKNOWN_KEPT_S = 60.0, 5.0
VERSION = 1  # of an entry
MARK = "gathered by"  # a daemon's mark instead of an entry
FIELDS = set(RegionEntry.__struct_fields__)
IDENTITY_TEXT = re.compile("[0-9a-f]{64}")
TEMPORARY = re.compile(r"\..+\.[0-9]+\.[0-9a-f]{8}")  # see _written
VERSION_NAME = re.compile("[1-9][0-9]{0,17}")


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
        config = parse(text, str(self.config_file), NAMES.numbers)
        if config.checksum != checksum_of(data):
            raise DaemonConfigError(str(self.config_file), 0, "the file changed while it was read")
        return config

    def local_daemon(self, config: ClusterConfig, localindex: int) -> DaemonSpec:
        return pick_local(config, machine_addresses(), localindex)

    def identity(self, config: ClusterConfig) -> bytes:
        """What both sides of a connection must agree on."""
        return hashlib.sha256(f"{self.path}\0{config.checksum}".encode()).digest()

    @property
    def is_for_group(self) -> bool:
        """Whether the members of its group may use it: the folder `daemons` says so."""
        try:
            return os.stat(self.path / "daemons").st_mode & 0o050 == 0o050
        except OSError:
            return False

    @property
    def file_mode(self) -> int:
        """Of a new file in `daemons`."""
        return GROUP_FILE if self.is_for_group else TIGHT_FILE

    @property
    def folder_mode(self) -> int:
        return GROUP_FOLDER if self.is_for_group else TIGHT_FOLDER

    def prepare(self, for_group: bool | None = None) -> None:
        """Makes the folders and the identity. `for_group`: whether the members of its group may use it from now on; None: as
        before, a new one is for its user alone. DirectoryUnavailableError without rs_daemons.cfg."""
        with _named(), self.opened() as root:
            if not self.disk.has(CONFIG, folder=root):
                raise DirectoryUnavailableError(f"{self.path} has no {CONFIG}, so it may be an empty mount point")
            mode = GROUP_FOLDER if for_group or (for_group is None and self.is_for_group) else TIGHT_FOLDER
            for name in FOLDERS:
                with contextlib.suppress(FileExistsError):
                    self.disk.make_folder(name, mode, folder=root)
            with contextlib.suppress(FileExistsError):
                self.disk.make_folder("regions", GROUP_FOLDER, folder=root)
            if for_group is not None and for_group != self.is_for_group:
                self._change_modes(for_group)
            with self.disk.opened_folder("daemons", folder=root) as folder:
                self.disk.sync_folder(root)
                if not self.disk.has(IDENTITY, folder=root):
                    identity = secrets.token_hex(32).encode()
                    link_new_file(self.disk, folder, Path(IDENTITY).name, identity, self.file_mode)
                self.disk.sync_folder(folder)  # the folders; and the identity, if its maker died before it could

    def _change_modes(self, for_group: bool) -> None:
        """Of the folders last, so that a change that was interrupted is made again."""
        folders, files = [self.path / name for name in FOLDERS], list[Path]()
        for found in (self.path / "daemons").rglob("*"):
            (folders if found.is_dir() else files).append(found)
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                path.chmod(GROUP_FILE if for_group else TIGHT_FILE)
        for path in sorted(folders, reverse=True):
            with contextlib.suppress(FileNotFoundError):
                kept = path.stat().st_mode & 0o7000  # a setgid folder hands its group on
                path.chmod(kept | (GROUP_FOLDER if for_group else TIGHT_FOLDER))

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

    def lock_daemon(self, index: int, incarnation: str, checksum: str, for_group: bool | None = None) -> int:
        """The descriptor that holds the lock for the daemon's life. DaemonUnavailableError when the daemon runs already."""
        self.prepare(for_group)
        fd = os.open(self._daemon_file(index, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self.file_mode)
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
        write_whole(secret, secrets.token_hex(32).encode(), self.file_mode, self.disk)
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
        write_whole(self._service_file(store), json.dumps(reached).encode(), self.file_mode, self.disk)

    def published_service(self, store: str) -> dict[str, Any]:
        """What the last server of the store published; {} when none has, or the file cannot be read."""
        return _object_in(self._service_file(store))


class ResolvedNames:
    """The numbers of names, by hosts file and DNS. They are asked again after a minute; while no answer comes, the last one counts.
    Thread-safe: a later answer replaces an earlier one."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._known: dict[str, tuple[float, frozenset[str]]] = {}

    def numbers(self, name: str) -> frozenset[str]:
        """Empty for a name that is not known."""
        until_s, found = self._known.get(name, (0.0, frozenset()))
        if self._clock_s() >= until_s:
            answers = numbers_of(name)
            found = frozenset(answers) or found
            self._known[name] = (self._clock_s() + (NAME_KEPT_S if answers else UNKNOWN_KEPT_S), found)
        return found


NAMES = ResolvedNames()


def machine_addresses() -> frozenset[str]:
    """The names and numbers of this machine, as they may stand in rs_daemons.cfg."""
    found = {"localhost", "127.0.0.1", "::1", socket.gethostname(), _full_name()}
    return frozenset(found.union(*interfaces().values()))


@functools.cache
def _full_name() -> str:
    return socket.getfqdn()  # may ask a name server


def quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="-_.@ ")


def _object_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} when there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


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


# -- small whole files in an open folder, OSErrors ---------------------------------------------------------------------


def write_whole(path: Path, data: bytes, mode: int, disk: Disk | None = None) -> None:
    """The old content or the new one, whatever happens."""
    disk = disk or Disk()
    with disk.opened_folder(str(path.parent)) as folder:
        replace_file(disk, folder, path.name, data, mode)


def file_numbers(disk: Disk, folder: int) -> list[int]:
    """The files whose names are the numbers of versions, from 1, as `str` writes them."""
    return [int(name) for name in disk.names(folder) if VERSION_NAME.fullmatch(name)]


def remove_file(disk: Disk, folder: int, name: str) -> None:
    """No error without the file."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(name, folder=folder)


def replace_file(disk: Disk, folder: int, name: str, data: bytes, mode: int) -> None:
    """The old content or the new one, whatever happens."""
    with _written(disk, folder, name, data, mode) as temporary:
        disk.rename(temporary, name, folder=folder)
    disk.sync_folder(folder)


def link_new_file(disk: Disk, folder: int, name: str, data: bytes, mode: int) -> bool:
    """A file that was not there, whole; False when it is there already."""
    with _written(disk, folder, name, data, mode) as temporary:
        try:
            disk.link(temporary, name, folder=folder)
        except FileExistsError:
            return False
    disk.sync_folder(folder)
    return True


@contextlib.contextmanager
def _written(disk: Disk, folder: int, name: str, data: bytes, mode: int) -> Iterator[str]:
    """A synced file beside it, for the moment."""
    temporary = f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
    fd = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, folder=folder)
    try:
        disk.pwrite_all(fd, data, 0)
        disk.sync(fd)
        yield temporary
    finally:
        disk.close(fd)
        remove_file(disk, folder, temporary)
