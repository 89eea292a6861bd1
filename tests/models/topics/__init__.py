"""A distributed topic on servers that go down, away and back, with subscriptions of every kind (D6, D7, C10, C13).

    world.py            the servers, the senders and the administrator
    life.py             what one subscription must get, and what it has got
    query.py            a Spark query of a durable subscription
    emulated_query.py   the offset log and the commit log of a query
    listener.py         a plain client of a subscription that is not durable
    faults.py           stores that refuse, or write and fail to say so
    in_memory.py        storage in memory, the model's clock, and no threads

A seed is one run on the real layers core, log and claims, with the storage and the stores in memory, on a clock of its own.
"""

from tests.models.topics.world import KINDS, World, run

__all__ = ["KINDS", "World", "run"]
