"""The prepared transactions of a store: what each has promised, and so which keys it locks. Pure.

Features: S2 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_jms.store.ledger.entries import Change


class PreparedTransactions(dict[str, tuple[Change, ...]]):
    """Transaction id -> the changes it promises. A key it names stays locked against other writes until it is resolved."""

    def locked_by(self, changes: Iterable[Change]) -> str | None:
        """The transaction that has locked one of these keys, if there is one."""
        if not self:
            return None
        wanted = {(change.name, operation.key) for change in changes for operation in change.operations}
        for xid, promised in self.items():
            if any((change.name, operation.key) in wanted for change in promised for operation in change.operations):
                return xid
        return None
