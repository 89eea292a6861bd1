"""Which consumer has which messages: batches, claims and transfers, kept in the stores of a domain.

Not here: the pure rules (core), the tables with the messages (log), and what applications call (client, spark)."""
