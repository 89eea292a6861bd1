"""One file or directory of the tree, and what clients are told of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_jms.store.webhdfs.edits import Content
from spark_jms.store.webhdfs.path import join


@dataclass(frozen=True)
class FileStatus:
    """The answer to GETFILESTATUS. `path_suffix` is the name in a listing, "" for the path that was asked."""

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
class ContentSummary:
    """The answer to GETCONTENTSUMMARY; lengths in bytes."""

    length: int
    files: int
    directories: int
    space_consumed: int


class Inode:
    """`children` is None for a file. `parent` is None for the root and once the inode was removed.

    `open` marks a file whose first content is being written: clients see it, but no edit and no snapshot has it, so a
    crash removes it."""

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
    )

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
        """The names of the children, sorted by their bytes as HDFS does."""
        if self._names is None:
            self._names = sorted(self.children or (), key=str.encode)
        return self._names

    def walk(self) -> Iterator[Inode]:
        """This inode and all below it, parents first. Without recursion: a tree may be 1000 levels deep."""
        stack = [self]
        while stack:
            inode = stack.pop()
            yield inode
            if inode.children:
                stack.extend(inode.children[name] for name in reversed(inode.names()))

    def status(self, path_suffix: str = "") -> FileStatus:
        return FileStatus(
            path_suffix=path_suffix,
            is_directory=self.children is not None,
            length=self.length,
            owner=self.owner,
            group=self.group,
            permission=self.permission,
            replication=self.replication,
            block_bytes=self.block_bytes,
            modified_us=self.modified_us,
            accessed_us=self.accessed_us,
            inode=self.number,
            children=len(self.children or ()),
        )

    def summary(self) -> ContentSummary:
        length = files = directories = space = 0
        for inode in self.walk():
            if inode.children is None:
                files += 1
                length += inode.length
                space += inode.length * inode.replication
            else:
                directories += 1
        return ContentSummary(length, files, directories, space)
