"""The rules of records, whatever keeps them: entries, their ledger, sessions, the store over any backend.

Not here: how entries are kept (file, jdbc, replicated) and how processes share them (engine). MemoryStore is the fake that ships.
"""
