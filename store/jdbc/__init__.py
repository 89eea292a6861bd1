"""The data store in a database: SQLite (embedded) or PostgreSQL, under the lock protocol of the texts (S1 to S8).

Begin with engine.py (the model), then protocol.py (the lock), tables.py, persistence.py.
"""

from spark_jms.store.jdbc.store import JdbcStore

__all__ = ["JdbcStore"]
