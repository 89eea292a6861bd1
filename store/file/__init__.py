"""The store in a directory of one host: a journal, locks of the operating system, session heartbeats.

Read backend.py first, then journal.py, lock.py and session_locks.py.
"""

from spark_jms.store.file.store import FileStore

__all__ = ["FileStore"]
