"""Delta's mechanics: the storage, a table's log, its snapshots, commits, checkpoints and files.

Not here: what the rows mean (messages), and what a commit is for (sending, destinations, upkeep)."""
