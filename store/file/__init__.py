"""The store in a directory of one host: a journal, locks of the operating system, session heartbeats.

Read store.py first, then journal.py and locks.py. Not here: the rules of records, and entries as bytes (ledger).
"""

from spark_jms.store.file.store import FileStore

__all__ = ["FileStore"]
