"""The store in a directory of one host: journal, locks of the operating system, heartbeats."""

from spark_jms.store.file.store import FileStore

__all__ = ["FileStore"]
