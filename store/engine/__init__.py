"""A store that one process, the engine, owns and serves to the sessions of many, wherever its entries are kept.

A commit on its way down:

    EngineBackend      backend.py             the client; keeps its writes exactly once across engines
    EngineRoute        route.py               the way to the current engine, and to the next when it is lost
    Access             access.py              local_access.py: the plan runs inside the engine's write
                                              remote_access.py: the plan runs on a replica, its entries are sent
    Server             server.py              the engine; one group commit for all writes
    SharedWrite        shared_write.py        one physical write in the making
    EntryLog           entry_log.py           decides what fits; remembers outcomes
    ReadLease          read_lease.py          what proves that an answer from memory is not out of date
    Persistence        persistence.py         the port to the disk, the database or the regions

Beside it: EngineFinder (finder.py) is the port that finds the engine; ClientConnections (client_connections.py), link.py
and wire.py carry the messages between processes; Liveness (liveness.py) and SessionHeartbeat (session_heartbeat.py) keep
sessions alive; testing.py has the fakes.
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
