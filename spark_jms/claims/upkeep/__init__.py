"""What runs in the background or looks on: housekeeping, published usage, repairs, and rows for people.

Not here: the work on the tables alone (log/upkeep), and the commands that show the rows (admin, cli)."""
