"""The port of files, on a directory, an object store and the fake in memory (C5, C17)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jms.log.tables import storage as log_storage
from spark_jms.log.tables.object_store import ObjectStorage
from spark_jms.log.tables.storage import LocalStorage
from spark_jms.testing.memory_storage import MemoryStorage

KINDS: dict[str, Callable[[Path], Any]] = {
    "directory": LocalStorage,
    "object store": lambda path: ObjectStorage(f"memory://{uuid.uuid4().hex}"),
    "memory": lambda path: MemoryStorage(),
}


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return KINDS[request.param](tmp_path)


def test_storage_creates_a_file_once(storage: Any) -> None:
    """C5: the compare-and-swap on which every commit stands."""
    assert storage.get("a/1") is None
    assert storage.create("a/1", b"one", durable=True)
    assert not storage.create("a/1", b"two")
    assert storage.get("a/1") == b"one"
    storage.put("a/1", b"three")
    storage.sync(["a/1"])
    assert storage.get("a/1") == b"three"
    assert storage.exists("a/1")
    assert not storage.exists("a/2")
    assert storage.get("a/1/below-a-file") is None


@pytest.mark.parametrize("unnamed", [True, False])
def test_directory_has_no_other_file_while_one_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """C5: a commit that dies leaves nothing behind where the file system has files without a name; elsewhere the file has a
    temporary name until it has its content."""
    folder, link, names = tmp_path / "_delta_log", os.link, []

    def seen(source: Any, target: Any, **options: int) -> None:
        names.append(sorted(path.name for path in folder.iterdir()))
        link(source, target, **options)

    monkeypatch.setattr(os, "link", seen)
    if not unnamed:
        monkeypatch.setattr(log_storage, "allows_unnamed", lambda folder: False)
    elif not log_storage.allows_unnamed(tmp_path):
        pytest.skip("this file system has no files without a name")
    storage = LocalStorage(tmp_path)
    assert storage.create("_delta_log/0", b"zero")
    assert not storage.create("_delta_log/0", b"other")
    assert [len(found) for found in names] == ([0, 1] if unnamed else [1, 2])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"0": b"zero"}
    assert (folder / "0").stat().st_mode == _usual_mode(folder)


def _usual_mode(folder: Path) -> int:
    (folder / "usual").write_bytes(b"")
    return (folder / "usual").stat().st_mode


def test_storage_lists_and_deletes(storage: Any) -> None:
    """C17: paths are relative to the storage, whichever directory is listed; a missing file is not an error."""
    for path in ("t/_delta_log/0", "t/m0", "tt/m0", "u"):
        storage.put(path, path.encode())
    assert sorted((f.path, f.bytes) for f in storage.list("t")) == [("t/_delta_log/0", 14), ("t/m0", 4)]
    assert sorted(f.path for f in storage.list("")) == ["t/_delta_log/0", "t/m0", "tt/m0", "u"]
    assert list(storage.list("missing")) == []
    storage.delete("t/m0")
    storage.delete("t/m0")
    storage.delete_all("t")
    storage.delete_all("missing")
    assert sorted(f.path for f in storage.list("")) == ["tt/m0", "u"]


def test_list_finds_a_file_or_the_one_that_replaces_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: an empty list of a folder with a file, of which the newest counts, would mean that nothing was ever published."""
    storage, walk, replaced = LocalStorage(tmp_path), os.walk, iter(range(2, 5))
    storage.put("usage/1", b"")

    def walk_slowly(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in walk(folder):
            number = next(replaced, 5)
            storage.put(f"usage/{number}", b"")
            storage.delete(f"usage/{number - 1}")
            yield found

    monkeypatch.setattr(os, "walk", walk_slowly)
    assert [file.path for file in storage.list("usage")] == ["usage/5"]


def test_child_shares_the_files_below_its_prefix(storage: Any) -> None:
    """C17."""
    child = storage.child("orders")
    child.put("_delta_log/0", b"first")
    assert storage.get("orders/_delta_log/0") == b"first"
    assert [f.path for f in child.list("")] == ["_delta_log/0"]
    assert child.get("orders/_delta_log/0") is None


def test_storage_writes_and_reads_streams(storage: Any) -> None:
    """C5: a file has its content when its stream is closed."""
    storage.put("_delta_log/0", b"a table is here")
    with storage.open_output("m0") as sink:
        sink.write(b"0123")
        sink.write(b"456789")
    assert storage.get("m0") == b"0123456789"
    with storage.open_input("m0") as source:
        source.seek(4)
        assert source.read(2) == b"45"
    with pytest.raises(FileNotFoundError):
        storage.open_input("m1")
