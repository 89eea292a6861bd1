"""The domain: which destinations, servers and connection factories it has, and changes of their declarations.

Not here: what a declaration means (core/destinations), and the stores of servers (claims/servers)."""
