"""One file or directory of the tree, and what is told of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_jms.store.webhdfs.path import join
from spark_jms.store.webhdfs.record import Content


@dataclass(frozen=True)
class Status:
    """What GETFILESTATUS tells. `path_suffix` is the name in a listing, "" for the path that was asked."""

    path_suffix: str
    is_directory: bool
    length: int
    owner: str
    group: str
    permission: int
    replication: int
    block_bytes: int
    modified_us: int
    accessed_us: int
    inode: int
    children: int


@dataclass(frozen=True)
class Summary:
    length: int
    files: int
    directories: int
    space_consumed: int


class Inode:
    """`children` is None for a file. `open` marks a file whose first content is being written: it is seen, but it is in
    no journal and no snapshot, so a crash takes it back. `parent` is None once it was removed (and for the root)."""

    __slots__ = (
        "_names",
        "accessed_us",
        "block_bytes",
        "children",
        "content",
        "group",
        "modified_us",
        "name",
        "number",
        "open",
        "owner",
        "parent",
        "permission",
        "replication",
        "xattrs",
    )  # fmt: skip

    def __init__(
        self, number: int, name: str, owner: str, group: str, permission: int, now_us: int, directory: bool
    ) -> None:
        self.number = number
        self.name = name
        self.parent: Inode | None = None
        self.children: dict[str, Inode] | None = {} if directory else None
        self.owner = owner
        self.group = group
        self.permission = permission
        self.replication = 0
        self.block_bytes = 0
        self.modified_us = now_us
        self.accessed_us = 0 if directory else now_us
        self.content: Content = ()
        self.xattrs: dict[str, bytes] = {}
        self.open = False
        self._names: list[str] | None = None

    @property
    def length(self) -> int:
        return sum(extent.length for extent in self.content)

    @property
    def path(self) -> str:
        names: list[str] = []
        inode = self
        while inode.parent is not None:
            names.append(inode.name)
            inode = inode.parent
        return join(tuple(reversed(names)))

    def attach(self, child: Inode, name: str) -> None:
        assert self.children is not None
        child.name, child.parent = name, self
        self.children[name] = child
        self._names = None

    def detach(self) -> None:
        assert self.parent is not None
        assert self.parent.children is not None
        del self.parent.children[self.name]
        self.parent._names = None
        self.parent = None

    def names(self) -> list[str]:
        """Of the children, sorted by their bytes as HDFS does."""
        if self._names is None:
            self._names = sorted(self.children or (), key=str.encode)
        return self._names

    def walk(self) -> Iterator[Inode]:
        """Itself and all below, parents first. No recursion: a tree may be 1000 deep."""
        stack = [self]
        while stack:
            inode = stack.pop()
            yield inode
            if inode.children:
                stack.extend(inode.children[name] for name in reversed(inode.names()))

    def status(self, path_suffix: str = "") -> Status:
        return Status(
            path_suffix, self.children is not None, self.length, self.owner, self.group, self.permission,
            self.replication, self.block_bytes, self.modified_us, self.accessed_us, self.number,
            len(self.children or ()),
        )  # fmt: skip

    def summary(self) -> Summary:
        length = files = directories = space = 0
        for inode in self.walk():
            if inode.children is None:
                files += 1
                length += inode.length
                space += inode.length * inode.replication
            else:
                directories += 1
        return Summary(length, files, directories, space)
