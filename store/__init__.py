"""Record sets with exclusive sessions, atomic commits and epoch fencing, on several backends with one contract.

with open_store("file:///path") as store, store.connect("query billing") as session:
    handle = session.open("orders/billing/0", timeout_ms=1000)
    handle.commit([Put("floor", b"17")])
"""

from store.contract import (
    Delete,
    Handle,
    Operation,
    Put,
    RecordInfo,
    Session,
    SessionInfo,
    SessionStatistics,
    Store,
    StoreStatistics,
)
from store.errors import (
    FencedError,
    NameInvalidError,
    OutcomeUnknownError,
    RecordHeldError,
    RecordOpenError,
    SessionLostError,
    StaleEpochError,
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreNotFoundError,
    StoreUriError,
    StoreVersionError,
    StoreWriteError,
    TransactionInDoubtError,
    TransactionUnknownError,
    ValueInvalidError,
)
from store.memory import MemoryStore
from store.uri import open_store

__all__ = [
    "Delete",
    "FencedError",
    "Handle",
    "MemoryStore",
    "NameInvalidError",
    "Operation",
    "OutcomeUnknownError",
    "Put",
    "RecordHeldError",
    "RecordInfo",
    "RecordOpenError",
    "Session",
    "SessionInfo",
    "SessionLostError",
    "SessionStatistics",
    "StaleEpochError",
    "Store",
    "StoreBusyError",
    "StoreClosedError",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreNotFoundError",
    "StoreStatistics",
    "StoreUriError",
    "StoreVersionError",
    "StoreWriteError",
    "TransactionInDoubtError",
    "TransactionUnknownError",
    "ValueInvalidError",
    "open_store",
]
