"""A store that one process, the engine, owns and serves to the sessions of many, wherever its entries are kept.

backend.py shows a commit on its way down. Not here: the rules of records (ledger), and what keeps the entries (jdbc, replicated).
"""

from spark_jms.store.engine.backend import EngineBackend, EngineFinder
from spark_jms.store.engine.connections import Address
from spark_jms.store.engine.entry_log import LedgerBatch, Loaded, OwnershipLostError, Persistence
from spark_jms.store.engine.server import Server

__all__ = [
    "Address",
    "EngineBackend",
    "EngineFinder",
    "LedgerBatch",
    "Loaded",
    "OwnershipLostError",
    "Persistence",
    "Server",
]
