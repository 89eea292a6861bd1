"""The stores of a domain and of its servers: opened, asked within a time, and their leases kept.

Not here: what a lease decides (core/destinations/servers), and its files and tables (log/destinations/servers)."""
