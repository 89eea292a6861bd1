"""Bugs to plant that only a loss of power shows: syncs, and the order of two changes (in_regions.py)."""

from __future__ import annotations

from tests.models.planted.bug import Edit, Planted, by_test, elsewhere

STORES = "tests/simulation/test_power_loss_in_stores.py::test_store_keeps_acknowledged_commits_through_losses_of_power"
DIRECTORIES = (
    "tests/simulation/test_power_loss_in_directories.py"
    "::test_directory_keeps_acknowledged_changes_through_losses_of_power[0]"
)


def store(name: str, file: str, event: str, old: str, new: str) -> Planted:
    """`event`: what has to happen before the loss of power."""
    return elsewhere(name, file, "", old, new, test=f"{STORES}[0-{event}]")


def directory(name: str, file: str, old: str, new: str) -> Planted:
    return by_test(name, file, DIRECTORIES, old, new)


POWER_LOSSES = (
    store(
        "a new generation is linked before it is synced",
        "file/journal_files.py",
        "compaction",
        "        self._disk.sync(fd)\n        return offset",
        "        return offset",
    ),
    store(
        "the name of a new generation is not synced",
        "file/journal_files.py",
        "compaction",
        "            self.sync_names()\n        except BaseException:",
        "        except BaseException:",
    ),
    store(
        "the journal before is removed before the new one has its name",
        "file/journal.py",
        "compaction",
        "        opened, length = generations.create(generation, replay.snapshot())",
        "        generations.remove(before)\n"
        "        opened, length = generations.create(generation, replay.snapshot())",
    ),
    store(
        "a commit is acknowledged before it is synced",
        "file/journal.py",
        "two instances",
        "            if self._fsync:\n                self._disk.sync(replay.fd)\n        except OSError as error:\n"
        "            raise self._undo",
        "        except OSError as error:\n            raise self._undo",
    ),
    store(
        "a commit is published before it is synced",
        "file/journal.py",
        "two instances",
        "            self._write(frame)\n            if self._fsync:",
        "            self._write(frame)\n"
        "            self._lock.publish(Hint(replay.generation, replay.length + len(frame), self._fsync))\n"
        "            if self._fsync:",
    ),
    store(
        "a writer that was stopped acknowledges what another process has left behind",
        "file/journal.py",
        "a writer stopped before it writes",
        "        if self._lock.superseded():\n",
        "        if False:\n",
    ),
    store(
        "recovery publishes unsynced frames",
        "file/journal.py",
        "death before the sync",
        "                self._disk.sync(replay.fd)\n                self._generations.sync_names()",
        "                self._generations.sync_names()",
    ),
    store(
        "recovery takes a sync that succeeds for one that has written what an earlier one could not",
        "file/journal.py",
        "a write that fails and cannot be cut off",
        "                self._write_again(max(acknowledged, HEADER_BYTES), judged.end)\n",
        "",
    ),
    store(
        "recovery publishes frames before it syncs them",
        "file/journal.py",
        "death before the sync",
        "        judged = replay.read_rest(acknowledged)\n        try:",
        "        judged = replay.read_rest(acknowledged)\n        self._publish()\n        try:",
    ),
    store(
        "recovery does not sync the name of the journal",
        "file/journal.py",
        "death before the name is synced",
        "                self._disk.sync(replay.fd)\n                self._generations.sync_names()",
        "                self._disk.sync(replay.fd)",
    ),
    store(
        "recovery removes the journals before it has synced the name of the newest",
        "file/journal.py",
        "death before the name is synced",
        "        self._read_to_end(hint.length",
        "        self._generations.remove_leftovers(generation)\n        self._read_to_end(hint.length",
    ),
    store(
        "the folders above a new store are not synced",
        "disk.py",
        "two instances",
        "        self.sync_name(above)\n",
        "",
    ),
    store(
        "the folder of a new store is not synced",
        "file/journal.py",
        "two instances",
        "            self._disk.sync_name(self.directory)\n",
        "",
    ),
    elsewhere(
        "the folder of a new SQLite store is not synced",
        "jdbc/tables.py",
        "",
        "            disk.sync_name(directory)\n",
        "            pass\n",
        test="tests/unit/store/jdbc/test_jdbc.py::test_folders_of_a_new_sqlite_store_survive_a_loss_of_power",
    ),
    directory(
        "a directory entry is linked before its sync",
        "directory/global_directory.py",
        "        disk.sync(fd)\n        yield temporary",
        "        yield temporary",
    ),
    directory(
        "a directory entry is acknowledged before its name is synced",
        "directory/global_directory.py",
        "            return False\n    disk.sync_folder(folder)",
        "            return False",
    ),
    directory(
        "a file that was replaced is not synced under its name",
        "directory/global_directory.py",
        "        disk.rename(temporary, name, folder=folder)\n    disk.sync_folder(folder)",
        "        disk.rename(temporary, name, folder=folder)",
    ),
    directory(
        "the folders of a new directory are not synced",
        "directory/global_directory.py",
        "                self.disk.sync_folder(root)\n",
        "",
    ),
    directory(
        "the folders of the entries of a new directory are not synced",
        "directory/global_directory.py",
        "                self.disk.sync_folder(folder)  #",
        "                #",
    ),
    directory(
        "the folder of a new entry is not synced",
        "directory/entries.py",
        "            self._disk.sync_folder_at(str(self._entries))",
        "            pass",
    ),
    directory(
        "old versions are removed before the new ones are synced",
        "directory/entries.py",
        "                            self._disk.sync_folder(folder)",
        "                            pass",
    ),
    directory(
        "the version before is removed before the next one is linked",
        "directory/entries.py",
        "        if not global_directory.link_new_file(self._disk, folder, str(version + 1), encode_entry(new), mode):",
        "        global_directory.remove_file(self._disk, folder, str(version))\n"
        "        if not global_directory.link_new_file(self._disk, folder, str(version + 1), encode_entry(new), mode):",
    ),
    Planted(
        "an entry is moved away before its removal is recorded",
        "",
        (
            Edit("store/regions/directory/entries.py", "        self._record(name)\n", ""),
            Edit(
                "store/regions/directory/entries.py",
                "        self._disk.sync_folder_at(str(self._path / ENTRIES))\n",
                "        self._disk.sync_folder_at(str(self._path / ENTRIES))\n        self._record(name)\n",
            ),
        ),
        DIRECTORIES,
    ),
    directory(
        "the record of a removal is not synced",
        "directory/entries.py",
        "            self._disk.sync_folder(gathered)",
        "            pass",
    ),
    directory(
        "the record of a removal is dropped before the new entry is linked",
        "directory/entries.py",
        "        if not version:  # its maker",
        "        with contextlib.suppress(FileNotFoundError):\n"
        "            self._disk.unlink(str(self._directory.path / GATHERED / quoted(name)))\n"
        "        if not version:  # its maker",
    ),
)
