"""The store in a directory of one host: journal, locks of the operating system, heartbeats."""

from store.file.store import FileStore

__all__ = ["FileStore"]
