"""Gathering up the entries of removed regions, so that they cost nothing in every list.

A removed region keeps its folder with the versions of its entry: a writer that slept must find its number used. An hour
later a daemon moves the folder away. `gathered/NAME`, an empty file, still says that the region was removed, to a daemon that
slept through all of that.

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

import os
import secrets

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions import folder_files
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.global_directory import (
    ENTRIES,
    GATHERED,
    GATHERING,
    MAX_NAMED,
    TIGHT_FILE,
    DirectoryFiles,
    GatheredBy,
    GlobalDirectory,
    encode_entry,
    quoted,
)

GATHER_AGE_S = 3600.0


class EntryGathering:
    """Of one daemon, for its life; one call at a time."""

    def __init__(self, directory: GlobalDirectory, files: DirectoryFiles, me: Holder) -> None:
        self._path = directory.path
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
        return folder_files.link_new(
            self._disk, folder, str(version + 1), encode_entry(GatheredBy(self._me)), TIGHT_FILE
        )

    def _record(self, name: str) -> None:
        with self._disk.opened_folder(str(self._path / GATHERED)) as gathered:
            self._disk.close(self._disk.open(quoted(name), os.O_WRONLY | os.O_CREAT, TIGHT_FILE, folder=gathered))
            self._disk.sync_folder(gathered)
