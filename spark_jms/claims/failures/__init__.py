"""Messages that cannot be delivered: expired, delivered too often, refused, undecodable or poison.

Not here: the rules (core/records), and how a transfer moves messages (transactions)."""
