"""The data store in a database, SQLite (embedded) or PostgreSQL, under the lock protocol of the texts (S1 to S8).

states.py       the model: who serves the store, what becomes of an engine
finder.py       how a process finds the engine, or becomes it; published.py, retry.py
engine.py       the engine; protocol.py is its lock, persistence.py how it keeps the ledger
tables.py       the seven tables; schema.py creates them
rows.py         rows of record sets; row_changes.py writes them, restoration.py reads them, ids.py numbers them
outcomes.py     rows of commits and prepared transactions
content.py      all of it, as the engine and the administration (admin.py, salvage.py) read it; writing.py writes it
database.py     connections; settings.py parses the URI
"""

from spark_jms.store.jdbc.store import JdbcStore

__all__ = ["JdbcStore"]
