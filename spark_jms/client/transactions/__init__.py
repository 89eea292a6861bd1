"""Transacted sessions: what they send and receive, from the first message to commit or rollback.

Not here: what becomes of the transaction of a dead process (claims/transactions)."""
