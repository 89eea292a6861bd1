"""A store that one process owns and serves to the sessions of many: the engine model, whatever keeps the entries.

Persistence   (port.py)     the place: load, append, ownership; by the store that uses this package
Reach         (backend.py)  who is the engine now; by the same
Server        (server.py)   the engine: threads and sockets around `Book` (book.py) and `Liveness` (liveness.py)
ServedBackend (backend.py)  the client: sessions and group commit behind the store's `Backend` port
Access        (access.py)   its way to the ledger: in the engine's own process, or over sockets with a replica
wire.py                     frames and messages between the two
"""

from spark_jms.store.engine.backend import Reach, ServedBackend
from spark_jms.store.engine.in_memory import MemoryPersistence, MemoryReach
from spark_jms.store.engine.link import Address
from spark_jms.store.engine.port import Batch, Loaded, OwnershipLostError, Persistence
from spark_jms.store.engine.server import Server

__all__ = [
    "Address",
    "Batch",
    "Loaded",
    "MemoryPersistence",
    "MemoryReach",
    "OwnershipLostError",
    "Persistence",
    "Reach",
    "ServedBackend",
    "Server",
]
