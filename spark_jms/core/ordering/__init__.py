"""Which message is delivered before which: units of order, units of work, destination keys.

Not here: which messages a consumer gets at all (records).
"""
