"""Programs on Spark that look after a domain: its services that are streaming queries.

Not here: what a round of a service does (admin/services.py)."""
