"""Paths of the namespace: absolute, with names between single slashes. Pure."""

from __future__ import annotations

from functools import lru_cache

from spark_jms.store.webhdfs.errors import IllegalArgumentError, PathComponentTooLongError, RemoteIOError

MAX_PATH_CHARACTERS = 8000  # HDFS's own limits
MAX_PATH_LEVELS = 1000
MAX_NAME_BYTES = 255


@lru_cache(256)  # an operation takes the same path apart several times
def parts_of(path: str) -> tuple[str, ...]:
    """The names of a path. `//` and a slash at the end do not count; `.`, `..` and control characters are refused."""
    if not path.startswith("/"):
        raise IllegalArgumentError(f'Invalid value: "{shown(path)}" is not an absolute path')
    if len(path) > MAX_PATH_CHARACTERS or path.count("/") > MAX_PATH_LEVELS:
        raise RemoteIOError(
            f"Pathname too long.  Limit {MAX_PATH_CHARACTERS} characters, {MAX_PATH_LEVELS} levels: {shown(path)}"
        )
    names = tuple(name for name in path.split("/") if name)
    for name in names:
        _check(name, path)
    return names


def join(names: tuple[str, ...]) -> str:
    return "/" + "/".join(names)


def shown(text: str) -> str:
    """`text` for a message, shortened: a client may send a very long one."""
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def _check(name: str, path: str) -> None:
    if name in (".", "..") or any(character < " " or character == "\x7f" for character in name):
        raise IllegalArgumentError(f"Invalid path name Invalid file name: {shown(path)!a}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise IllegalArgumentError(f"Invalid path name {shown(path)!a}: not Unicode") from None
    if size > MAX_NAME_BYTES:
        raise PathComponentTooLongError(
            f"The maximum path component name limit of {shown(name)} in directory {shown(path)} is exceeded: "
            f"limit={MAX_NAME_BYTES} length={size}"
        )
