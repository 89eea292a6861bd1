"""All or none, once: transfers, transactions, and the numbers of idempotent producers.

Not here: the tables and stores that they are written to (log/sending, claims/transactions).
"""
