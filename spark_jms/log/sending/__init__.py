"""How messages enter a table: a send, a transfer at its target, and what units of order note then.

Not here: staging rows as files (messages), and room in quotas (limits)."""
