"""Messages as Python values and as Arrow columns, and what all classes of the client share.

Not here: sending and receiving, and the columns of the tables (core/messages)."""
