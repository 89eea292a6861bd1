"""Record sets with exclusive sessions, atomic commits and epoch fencing, on several backends.

with open_store("file:///path") as store, store.connect("query billing") as session:
    handle = session.open("orders/billing/0", timeout_ms=1000)
    handle.commit([Put("floor", b"17")])
"""

if __name__ == "store":  # two copies of this package would make two FencedErrors
    raise ImportError("this package is spark_jms.store: write `from spark_jms.store import open_store`")

from spark_jms.store.contract import (
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
from spark_jms.store.errors import (
    DatabaseUnreachableError,
    FencedError,
    ForeignOwnerError,
    LockHeldError,
    NameInvalidError,
    OutcomeUnknownError,
    OwnerMissingError,
    RecordCorruptError,
    RecordHeldError,
    RecordOpenError,
    SessionLostError,
    StaleEpochError,
    StoreAbsentError,
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreInUseError,
    StoreNotFoundError,
    StoreRightsError,
    StoreUriError,
    StoreVersionError,
    StoreWriteError,
    TablesIncompleteError,
    TablesMissingError,
    TransactionInDoubtError,
    TransactionUnknownError,
    ValueInvalidError,
)
from spark_jms.store.kinds.opening import open_store
from spark_jms.store.ledger.store import MemoryStore

__all__ = [
    "DatabaseUnreachableError",
    "Delete",
    "FencedError",
    "ForeignOwnerError",
    "Handle",
    "LockHeldError",
    "MemoryStore",
    "NameInvalidError",
    "Operation",
    "OutcomeUnknownError",
    "OwnerMissingError",
    "Put",
    "RecordCorruptError",
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
    "StoreInUseError",
    "StoreAbsentError",
    "StoreNotFoundError",
    "StoreRightsError",
    "StoreStatistics",
    "StoreUriError",
    "StoreVersionError",
    "StoreWriteError",
    "TablesIncompleteError",
    "TablesMissingError",
    "TransactionInDoubtError",
    "TransactionUnknownError",
    "ValueInvalidError",
    "open_store",
]
