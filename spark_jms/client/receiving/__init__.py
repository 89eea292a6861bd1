"""How a client receives: consumers and listeners, browsers, requests and replies.

Not here: which consumer may have which messages (claims)."""
