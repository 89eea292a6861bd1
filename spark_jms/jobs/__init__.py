"""Programs on Spark that look after a domain: its services as streaming queries, and counts of expired messages.

Not here: what a round of a service does (admin/services.py)."""
