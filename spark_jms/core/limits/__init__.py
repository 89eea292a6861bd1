"""How much a destination may hold and a sender may send: quotas, thresholds, flow control, usage.

Not here: the files with ledgers and usage (log/limits).
"""
