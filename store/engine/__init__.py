"""A store that one process owns and serves to the sessions of many: the engine model, whatever keeps the entries.

Persistence   (persistence.py)     the place: load, append, ownership; by the store that uses this package
EngineFinder         (backend.py)  who is the engine now; by the same
Server        (server.py)   the engine: threads and sockets around `EntryLog` (entry_log.py) and `Liveness` (liveness.py)
EngineBackend (backend.py)  the client: sessions and group commit behind the store's `Backend` port
Access        (access.py)   its way to the ledger: in the engine's own process, or over sockets with a replica
wire.py                     frames and messages between the two
"""

from spark_jms.store.engine.backend import EngineBackend, EngineFinder
from spark_jms.store.engine.link import Address
from spark_jms.store.engine.persistence import LedgerBatch, Loaded, OwnershipLostError, Persistence
from spark_jms.store.engine.server import Server
from spark_jms.store.engine.testing import MemoryFinder, MemoryPersistence

__all__ = [
    "Address",
    "LedgerBatch",
    "Loaded",
    "MemoryPersistence",
    "MemoryFinder",
    "OwnershipLostError",
    "Persistence",
    "EngineFinder",
    "EngineBackend",
    "Server",
]
