"""Rows as files: routed to members, written and read, and paged while they wait.

Not here: the columns (core/messages), and the commit that makes rows messages (sending)."""
