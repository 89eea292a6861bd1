"""Bugs to plant in the Global Directory, whose files the simulator keeps on a disk in memory (in_regions.py)."""

from __future__ import annotations

from tests.models.planted.bug import LOSS, by_test, elsewhere

IN_DIRECTORY = (
    elsewhere(
        "a change does not look at the epoch of the entry",
        "regions/directory/entries.py",
        "LAWFUL|ONE_EPOCH|ONE_OPENER|" + LOSS,
        "        if (current.tag if isinstance(current, RegionEntry) else None) != (old.tag if old else None):\n",
        "        if isinstance(current, RegionEntry) != (old is not None):\n",
    ),
    elsewhere(
        "a link without an answer counts as refused",
        "regions/directory/global_directory.py",
        "LAWFUL|ONE_EPOCH|ONE_OPENER|LISTED|NO_OTHERS|LOST|CONTINUES|" + LOSS,
        "        except FileExistsError:\n            return False\n    disk.sync_folder(folder)\n    return True",
        "        except OSError:\n            return False\n    disk.sync_folder(folder)\n    return True",
    ),
    elsewhere(
        "a folder of versions that is not seen has no versions",
        "regions/directory/entries.py",
        "LISTED|KEPT|CONTINUES|FENCED|LAWFUL|" + LOSS,
        "            if not self._directory.is_seen(root, self._identity):\n                return Absent.UNSEEN\n",
        "            if not self._directory.is_seen(root, self._identity):\n                return Absent.REMOVED\n",
    ),
    by_test(
        "a torn entry is read as it is",
        "directory/entries.py",
        "tests/unit/store/regions/directory/test_files.py",
        "if len(lines) < 2 or hashlib.sha256(lines[0].encode()).hexdigest() != lines[1]:",
        "if len(lines) < 2:",
    ),
    by_test(
        "a change counts although another one was built on it",
        "directory/entries.py",
        "tests/unit/store/regions/directory/test_files.py",
        "if max(versions, default=0) > version + 1 or not self._disk.is_at(folder, self.folder_of(name)):",
        "if not self._disk.is_at(folder, self.folder_of(name)):",
    ),
    by_test(
        "a region is created in a folder that is being gathered up",
        "directory/entries.py",
        "tests/unit/store/regions/directory/test_entry_gathering.py",
        "if isinstance(current, GatheredBy) and self.running(current.daemon):",
        "if False:",
    ),
)
