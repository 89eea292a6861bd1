"""The directory tree of the WebHDFS namespace (R19): against a plain dictionary, and replay; requests and errors."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spark_jms.store.webhdfs import decisions, errors, wire
from spark_jms.store.webhdfs.decisions import TreeDecision
from spark_jms.store.webhdfs.inode import (
    AttributesSet,
    BlockExtent,
    Content,
    Edit,
    FileWritten,
    InlineExtent,
    Spliced,
    decode_edits,
    encode_edits,
)
from spark_jms.store.webhdfs.tree import DirectoryTree, decode_tree, encode_tree

PURE = ("inode", "tree", "decisions", "wire", "errors")
IMPURE = {"socket", "ssl", "asyncio", "time", "random", "os", "io", "pathlib", "threading", "aiohttp", "secrets"}
PATHS = st.lists(st.sampled_from("abc"), max_size=3).map(lambda names: "/" + "/".join(names))


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_no_ports(name: str) -> None:
    """R19: the modules that decide import no clock, file, socket or source of chance."""
    source = Path(decisions.__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    imported: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert not imported & IMPURE


def described(tree: DirectoryTree) -> dict[str, tuple[object, ...]]:
    return {
        inode.path: (
            inode.number,
            inode.children is not None,
            inode.owner,
            inode.group,
            inode.permission,
            inode.replication,
            inode.block_bytes,
            inode.modified_us,
            inode.accessed_us,
            inode.content,
            tuple(sorted(inode.xattrs.items())),
        )
        for inode in tree.root.walk()
        if not inode.open
    }


class AgainstDictionary(RuleBasedStateMachine):
    """The model: path -> None for a directory, else the content. Every edit is kept, and replayed at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = DirectoryTree(now_us=1)
        self.model: dict[str, bytes | None] = {"/": None}
        self.edits: list[Edit] = []
        self.now_us = 1
        self.blocks: dict[int, bytes] = {}
        self.snapshot = encode_tree(self.tree)

    def apply(self, decision: TreeDecision) -> bool:
        self.now_us += 1
        if decision.edit is not None:
            assert decision.journaled
            self.write(decision.edit)
        return decision.succeeded

    def write(self, edit: Edit) -> None:
        self.now_us += 1
        self.edits.append(edit)
        for handle in self.tree.apply(edit):
            del self.blocks[handle]

    def content(self, data: bytes) -> Content:
        if len(data) < 3:
            return (InlineExtent(data),) if data else ()
        handle = self.now_us
        self.blocks[handle] = data
        return (BlockExtent(handle, len(data)),)

    def data(self, path: str) -> bytes:
        content = self.tree.get_file(path).content
        return b"".join(e.data if isinstance(e, InlineExtent) else self.blocks[e.handle][: e.length] for e in content)

    def under(self, path: str) -> list[str]:
        return [each for each in self.model if each.startswith(path.rstrip("/") + "/") and each != "/"]

    def parent(self, path: str) -> str:
        return path.rpartition("/")[0] or "/"

    def ancestors(self, path: str) -> list[str]:
        names = path.split("/")[1:]
        return ["/" + "/".join(names[:depth]) for depth in range(1, len(names))]

    @rule(path=PATHS)
    def mkdirs(self, path: str) -> None:
        wanted = [each for each in [*self.ancestors(path), path] if each != "/"]
        try:
            self.apply(decisions.mkdirs(self.tree, path, "u", "g", 0o755, self.now_us))
        except (errors.ParentNotDirectoryError, errors.FileExistsAlreadyError):
            assert any(self.model.get(each) is not None for each in wanted)
            return
        assert all(self.model.get(each) is None for each in wanted)
        self.model.update(dict.fromkeys(wanted))

    @rule(path=PATHS, data=st.binary(max_size=8), overwrite=st.booleans())
    def create(self, path: str, data: bytes, overwrite: bool) -> None:
        try:
            decisions.create(self.tree, path, overwrite, False, "c")
        except errors.FileExistsAlreadyError:
            assert path in self.model
            assert not overwrite or self.model[path] is None
            return
        except errors.NoSuchFileError:
            assert self.parent(path) not in self.model
            return
        except errors.ParentNotDirectoryError:
            assert any(self.model.get(each) is not None for each in self.ancestors(path))
            return
        number = self.tree.next_inode
        self.write(FileWritten(path, self.now_us, number, "u", "g", 0o644, 1, 128, self.content(data)))
        self.model[path] = data

    @rule(path=PATHS, data=st.binary(min_size=1, max_size=8))
    def append(self, path: str, data: bytes) -> None:
        if self.model.get(path) is None:
            with pytest.raises(errors.NoSuchFileError):
                self.tree.get_file(path)
            return
        keep = len(self.tree.get_file(path).content)
        self.write(Spliced(path, self.now_us, keep, self.content(data)))
        self.model[path] = (self.model[path] or b"") + data

    @rule(path=PATHS, length=st.integers(0, 20))
    def truncate(self, path: str, length: int) -> None:
        old = self.model.get(path)
        try:
            self.apply(decisions.truncate(self.tree, path, length, self.now_us))
        except errors.NoSuchFileError:
            assert old is None
        except errors.TruncateArgumentError:
            assert old is not None
            assert length > len(old)
        else:
            assert old is not None
            self.model[path] = old[:length]

    @rule(path=PATHS, sources=st.lists(PATHS, min_size=1, max_size=2))
    def concat(self, path: str, sources: list[str]) -> None:
        try:
            self.apply(decisions.concat(self.tree, path, sources, self.now_us))
        except (errors.NoSuchFileError, errors.RemoteIOError):
            return
        joined = self.model[path]
        assert joined is not None
        for source in sources:
            data = self.model.pop(source)
            assert data
            joined += data
        self.model[path] = joined

    @rule(source=PATHS, into=PATHS)
    def rename(self, source: str, into: str) -> None:
        target = into
        if target in self.model and self.model[target] is None:
            target = target.rstrip("/") + "/" + source.rpartition("/")[2]
        possible = (
            source in self.model
            and source != "/"
            and target not in self.model
            and self.parent(target) in self.model
            and self.model[self.parent(target)] is None
            and not target.startswith(source + "/")
        )
        moved = self.apply(decisions.rename(self.tree, source, into, self.now_us))
        assert moved == (possible or (source in self.model and source == target and source != "/"))
        if possible:
            self.move(source, target)

    @rule(source=PATHS, into=PATHS, overwrite=st.booleans())
    def rename_strict(self, source: str, into: str, overwrite: bool) -> None:
        target = into
        try:
            self.apply(decisions.rename_strict(self.tree, source, target, overwrite, self.now_us))
        except errors.FileExistsAlreadyError:
            assert target in self.model
            assert not overwrite or source == target
        except errors.RemoteError:
            return
        else:
            assert overwrite or target not in self.model
            self.model.pop(target, None)
            self.move(source, target)

    def move(self, source: str, target: str) -> None:
        for each in [source, *self.under(source)]:
            self.model[target + each[len(source) :]] = self.model.pop(each)

    @rule(path=PATHS, recursive=st.booleans())
    def delete(self, path: str, recursive: bool) -> None:
        below = self.under(path)
        try:
            done = self.apply(decisions.delete(self.tree, path, recursive, self.now_us))
        except errors.NotEmptyDirectoryError:
            assert below
            assert not recursive
            return
        assert done == (path in self.model and path != "/")
        if done:
            for each in [path, *below]:
                del self.model[each]

    @rule(path=PATHS, permission=st.integers(0, 0o1777), name=st.sampled_from(["user.a", "user.b"]))
    def attributes(self, path: str, permission: int, name: str) -> None:
        if path in self.model:
            self.apply(
                decisions.set_attributes(
                    self.tree, AttributesSet(path, self.now_us, permission, modified_us=self.now_us)
                )
            )
            self.apply(decisions.set_xattr(self.tree, path, name, b"v", True, True, self.now_us))
            assert self.tree.get(path).status().permission == permission

    @rule(path=PATHS)
    def open_and_abandon_a_file(self, path: str) -> None:
        if self.model.get(self.parent(path), b"") is None and path not in self.model:
            inode = self.tree.begin(path, "u", "g", 0o644, self.now_us)
            assert self.tree.get(path).status().length == 0
            assert decode_tree(encode_tree(self.tree)).find(path) is None
            self.tree.abandon(inode)

    @rule()
    def take_snapshot(self) -> None:
        self.snapshot, self.edits = encode_tree(self.tree), []

    @invariant()
    def same_as_model(self) -> None:
        found = {inode.path: inode for inode in self.tree.root.walk()}
        assert set(found) == set(self.model)
        for path, data in self.model.items():
            assert (found[path].children is None) == (data is not None)
            if data is not None:
                assert self.data(path) == data
                assert self.tree.get(path).status().length == len(data)
        assert self.tree.handles() == set(self.blocks), "a block leaked or was freed too early"

    def teardown(self) -> None:
        again = decode_tree(self.snapshot)
        for edit in decode_edits(encode_edits(self.edits)):
            again.apply(edit)
        assert described(again) == described(self.tree)
        assert again.inline_bytes == self.tree.inline_bytes


AgainstDictionary.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class TestAgainstDictionary(AgainstDictionary.TestCase):  # type: ignore[misc, name-defined]
    """R19: the tree behaves like a dictionary; replay of snapshot and edits gives the same tree."""


def edit_of(decision: TreeDecision) -> Edit:
    assert decision.edit is not None
    return decision.edit


def test_rename_races_have_one_winner() -> None:
    """R19: two drivers write `.tmp` files and rename them to one name without overwriting: the second is refused."""
    tree = DirectoryTree()
    for number, name in enumerate(["/.1.tmp", "/.2.tmp"]):
        content = (InlineExtent(name.encode()),)
        tree.apply(FileWritten(name, 1, 20_000 + number, "u", "g", 0o644, 1, 1, content))
    tree.apply(edit_of(decisions.rename_strict(tree, "/.1.tmp", "/1", False, 2)))
    with pytest.raises(errors.FileExistsAlreadyError):
        decisions.rename_strict(tree, "/.2.tmp", "/1", False, 3)
    assert tree.get_file("/1").content == (InlineExtent(b"/.1.tmp"),)


def test_listing_continues_after_a_name() -> None:
    """R19: batches of a listing are in the order of bytes and miss nothing."""
    tree = DirectoryTree()
    names = ["b", "a", "Z", "é", "a-b", "aa"]
    for name in names:
        tree.apply(edit_of(decisions.mkdirs(tree, f"/{name}", "u", "g", 0o755, 1)))
    seen: list[str] = []
    remaining = 1
    while remaining:
        found, remaining = tree.listing("/", seen[-1] if seen else "", 2)
        seen += [status.path_suffix for status in found]
    assert seen == sorted(names, key=str.encode)


@pytest.mark.parametrize("target", ["/x", "/webhdfs/v2/a", "/webhdfs/v1x"])
def test_other_paths_are_not_found(target: str) -> None:
    """R19: the door serves nothing but /webhdfs/v1."""
    with pytest.raises(errors.NoSuchFileError):
        wire.parse("GET", target)


@pytest.mark.parametrize("target", ["/%zz", "/%f", "/%ff%fe", "/a/../b", "/./a", "/a%00b", "/?op=%zz"])
def test_bad_paths_are_refused_by_name(target: str) -> None:
    """R19: a bad escape, bad UTF-8, dots and control characters are refused by name."""
    with pytest.raises(errors.IllegalArgumentError):
        wire.parse("GET", "/webhdfs/v1" + target)


def test_paths_have_limits() -> None:
    """R19: HDFS's limits apply to a path, a name, and the depth."""
    with pytest.raises(errors.PathComponentTooLongError):
        wire.parse("GET", "/webhdfs/v1/" + "a" * 256)
    with pytest.raises(errors.RemoteIOError):
        wire.parse("GET", "/webhdfs/v1" + "/a" * 1001)
    with pytest.raises(errors.RemoteIOError):
        wire.parse("GET", "/webhdfs/v1" + "/aaaaaaaaa" * 900)
    assert wire.parse("get", "/webhdfs/v1//a%20b//c+d/?OP=open&x=a+b%2Bc").path == "/a b/c+d"
    assert wire.parse("get", "/webhdfs/v1/?OP=open&X=a+b%2Bc").text("x") == "a b+c"


def test_error_body_has_hadoop_fields() -> None:
    """R19: clients rebuild the Java exception from these three fields."""
    body = msgspec.json.decode(wire.error(errors.PathComponentTooLongError("why")))
    assert body == {
        "RemoteException": {
            "exception": "PathComponentTooLongException",
            "javaClassName": "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException",
            "message": "why",
        }
    }
