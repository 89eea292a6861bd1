"""Messages that move all or none: transfers, transactions, and a database that decides them.

Not here: the state tables (core/transactions), and the commit at a target (log/sending)."""
