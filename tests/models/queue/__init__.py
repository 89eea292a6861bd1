"""A random model of a queue and everything that may happen to it (C5, C8, C9, C13, C18), on the real layers core, log and
claims, with the storage and the store in memory.

A seed is one run: queries and clients share a queue while they crash, stall, return and hand records over, while messages
are sent, purged and compacted, moved to other queues and back, while members are added, while checkpoints are copied, and
while the queue is renamed, or dropped and created again. Senders, movers and administrators die at any of their writes.
A queue may limit redeliveries, have an error destination, sort by priority and forward; its messages may expire; it is paused
and resumed (C8, C12, D5, T6, T14).
Then the faults end, and the consumers must drain the queue.

    rules.py           what the queue of a seed is declared with
    clock.py           one clock for all processes
    parsing.py         pure parsers run once for the same bytes
    tables.py          the destinations, each life of them, and which message is where
    senders.py         sends, and files staged and committed later
    consumers.py       one query or client in one process
    crowd.py           all consumers: start, crash, stall, replace, copy
    administration.py  moves, housekeeping, members, drop and rename
    conservation.py    every message is in one place, and leaves it for one reason
    revocations.py     which claims were revoked
    account.py         what else must hold
    world.py           composes them, and runs a seed
"""

from tests.models.queue.world import QueueWorld, often_of, run

__all__ = ["QueueWorld", "often_of", "run"]
