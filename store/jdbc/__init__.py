"""The data store in a database, SQLite (embedded) or PostgreSQL, under the lock protocol of the texts.

states.py       the model: who serves the store, what becomes of an engine
finder.py       how a process finds the engine, or becomes it; published.py, retry.py
engine.py       the engine; protocol.py is its lock, persistence.py how it keeps the ledger
tables.py       the seven tables; schema.py creates them
rows.py         rows of record sets; row_changes.py writes them, restoration.py reads them, ids.py numbers them
outcomes.py     rows of commits and prepared transactions
content.py      all of it, as the engine and the administration (admin.py, salvage.py) read it; writing.py writes it
database.py     connections; settings.py parses the URI

Features: S1, S2, S3, S4, S5, S6, S7, S8 (docs/FEATURES.md)
"""

from spark_jms.store.jdbc.store import JdbcStore

__all__ = ["JdbcStore"]
