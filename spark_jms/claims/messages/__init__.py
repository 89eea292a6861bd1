"""Messages that a consumer may have: which may be delivered now, in which order, and their rows.

Not here: what a batch takes of them (batches), and the files themselves (log/messages)."""
