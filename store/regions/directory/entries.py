"""The entries of regions in the Global Directory: reading and changing them, and gathering up those of removed regions.

A change is a compare-and-swap without a lock, so that a daemon that stops in the middle blocks no other: it writes the new
version under a temporary name, syncs it, and links it to the next number, which only one writer can do. A deleted region
keeps a last version that records the deletion: without it, a writer that slept could use an old number again.

`remove_stale_files` removes what a dead writer has left: temporary files, and all versions but the last two. A reader takes
the highest number, and looks again when that file was removed. A writer that was stopped for so long finds its temporary
file removed, its number used, or its folder gathered up, and raises DirectoryUnavailableError, because the outcome is unknown.
Readers and writers stay in the folder that they have opened, whatever its path leads to meanwhile.

Entries of removed regions are gathered up, so that they cost nothing in every list. A removed region keeps its folder with the
versions of its entry: a writer that slept must find its number used. An hour later a daemon moves the folder away.
`gathered/NAME`, an empty file, still says that the region was removed, to a daemon that slept through all of that.

    step      by                                                        after it
    mark      any daemon: the next version, linked as every other one   no region can be created on this folder
    record    the daemon that the mark names                            gathered/NAME exists
    move      only that daemon                                          the name is free: it has no folder
    clear     any daemon                                                the moved folder is removed

Theory. Moving is by path, and a path may lead to a new region's folder by then. It cannot here: until the daemon of the mark
has moved the folder, the name has no other folder, and that daemon moves it once. A creator that meets the mark waits; when
the daemon of the mark has certainly ended, it builds on the mark. Another daemon then marks the folder again, and of the two
only one gets the number. A daemon that has marked a folder checks that the path leads to it before it moves it. A writer
with an earlier version works in the folder that it has opened, wherever that is, and checks afterwards that the path still
leads there.

Features: R8, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from spark_jms.store.errors import DirectoryUnavailableError, RegionEntryDamagedError, RegionEntryVersionError
from spark_jms.store.regions.directory import global_directory
from spark_jms.store.regions.directory.global_directory import (
    ENTRIES,
    FIELDS,
    GATHERED,
    GATHERING,
    MARK,
    MAX_LOOKS,
    MAX_NAMED,
    STALE_AGE_S,
    TEMPORARY,
    VERSION,
    GlobalDirectory,
    _named,
    _regions_of,
    _restless,
    quoted,
    write_whole,
)
from spark_jms.store.regions.protocol.region_entry import (
    Absent,
    DirectoryListing,
    DirectoryPort,
    Holder,
    RegionEntry,
    unexpected,
)

GATHER_AGE_S = 3600.0


class RegionNames(NamedTuple):
    entered: list[str]  # those with a folder of versions
    gathered: set[str]  # those that were removed and gathered up; they may have been created again since


@dataclass(frozen=True)
class GatheredBy:
    """The last version in a folder: this daemon moves it away (EntryGathering)."""

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
        mode = self._directory.file_mode
        if not global_directory.link_new_file(self._disk, folder, str(version + 1), encode_entry(new), mode):
            return False
        versions = global_directory.file_numbers(self._disk, folder)
        if max(versions, default=0) > version + 1 or not self._disk.is_at(folder, self.folder_of(name)):
            # Another daemon built on it; or, while this process slept, used this number and removed it, or gathered the
            # folder up.
            raise DirectoryUnavailableError(f"region {name}: changed again in the same moment")
        for stale in versions:
            if stale < version:
                with contextlib.suppress(OSError):  # the change is made; housekeeping removes it, or names it
                    global_directory.remove_file(self._disk, folder, str(stale))
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
                self._disk.make_folder(self.folder_of(name), self._directory.folder_mode)
        raise _restless(name)

    def discard(self, name: str) -> bool:
        with _named():
            try:
                with self._disk.opened_folder(self.folder_of(name)) as folder:
                    version = max(global_directory.file_numbers(self._disk, folder), default=0)
                    try:
                        self.newest_in(folder, name)
                        return False
                    except RegionEntryDamagedError:
                        last = encode_entry(None)
                        done = global_directory.link_new_file(
                            self._disk, folder, str(version + 1), last, self._directory.file_mode
                        )
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
                        versions = sorted(global_directory.file_numbers(self._disk, folder))
                        if versions[:-2]:  # the writers of the two that stay may have died before they could sync
                            self._disk.sync_folder(folder)
                        old += map(str, versions[:-2])
                    for name in old:
                        try:
                            global_directory.remove_file(self._disk, folder, name)
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
            version = max(global_directory.file_numbers(self._disk, folder), default=0)
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
                    if global_directory.file_numbers(self._disk, fd):
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
            elif entry is Absent.REMOVED:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(str(self._regions / f"{quoted(name)}.RGN"))
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


class EntryGathering:
    """Gathers up the entries of removed regions. Of one daemon, for its life; one call at a time."""

    def __init__(self, directory: GlobalDirectory, files: DirectoryFiles, me: Holder) -> None:
        self._directory, self._path = directory, directory.path
        self._disk = directory.disk
        self._files = files
        self._me = me

    def gather(self, now_s: float, age_s: float = GATHER_AGE_S) -> list[str]:
        """The regions that were gathered up, all removed at least `age_s` ago. DirectoryUnavailableError, which names the
        regions that could not be, once the others are."""
        gathered: list[str] = []
        failed: list[str] = []
        for name in sorted(self._files.entries().removed):
            try:
                if self._gather_one(name, now_s - age_s):
                    gathered.append(name)
            except (OSError, DirectoryUnavailableError) as error:
                failed.append(f"region {name}: {error}")
        try:
            with self._disk.opened_folder(str(self._path / GATHERING)) as folder:
                for left in self._disk.names(folder):
                    self._disk.remove_tree(str(self._path / GATHERING / left))
        except OSError as error:
            failed.append(str(error))
        if failed:
            raise DirectoryUnavailableError("; ".join(failed[:MAX_NAMED]))
        return gathered

    def _gather_one(self, name: str, before_s: float) -> bool:
        try:
            path = self._files.folder_of(name)
            with self._disk.opened_folder(path) as folder:
                if not self._mark(folder, name, before_s) or not self._disk.is_at(folder, path):
                    return False  # perhaps it marked a folder that a daemon had moved before it died
        except FileNotFoundError:
            return False  # gathered up before
        self._record(name)
        moved = self._path / GATHERING / f"{quoted(name)}.{secrets.token_hex(4)}"
        self._disk.rename(path, str(moved))
        self._disk.sync_folder_at(str(self._path / ENTRIES))
        return True

    def _mark(self, folder: int, name: str, before_s: float) -> bool:
        """Whether the folder has this daemon's mark now."""
        version, last = self._files.newest_in(folder, name)
        if not version or isinstance(last, RegionEntry):
            return False
        if isinstance(last, GatheredBy):
            if last.daemon == self._me:
                return True  # it could not move the folder before
            if self._files.running(last.daemon):
                return False
        elif self._disk.stat(str(version), folder=folder).st_mtime > before_s:
            return False
        return global_directory.link_new_file(
            self._disk, folder, str(version + 1), encode_entry(GatheredBy(self._me)), self._directory.file_mode
        )

    def _record(self, name: str) -> None:
        with self._disk.opened_folder(str(self._path / GATHERED)) as gathered:
            self._disk.close(
                self._disk.open(quoted(name), os.O_WRONLY | os.O_CREAT, self._directory.file_mode, folder=gathered)
            )
            self._disk.sync_folder(gathered)


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
