"""How much destinations may hold and do hold: quotas, their ledgers, and the usage that senders read.

Not here: the arithmetic (core/limits), and who publishes what consumers finish (claims/upkeep/usage)."""
