"""The rules of a message queue, as functions over values: what is in order, finished, allowed and next.

Not here: a clock, a file, chance; the caller has them.
"""
