"""Delta tables as queues: destinations, what is sent to them, and the upkeep of their tables.

Not here: the pure rules (core), and which consumer has which messages (claims)."""
