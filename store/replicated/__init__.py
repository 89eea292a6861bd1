"""`replicated:///`: record sets on regions; the engine of a store is the process that opened its regions.

Not here: the rules of records (ledger), the engine that serves them (engine), the regions themselves (regions).
"""
