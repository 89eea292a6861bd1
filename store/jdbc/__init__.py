"""The data store in a database, SQLite (embedded) or PostgreSQL, which one engine at a time owns.

Read protocol.py first, for who serves the store, then tables.py and persistence.py. Not here: the engine that serves (engine).

Features: S1, S2, S3, S4, S5, S6, S7, S8 (docs/FEATURES.md)
"""

from spark_jms.store.jdbc.store import JdbcStore

__all__ = ["JdbcStore"]
