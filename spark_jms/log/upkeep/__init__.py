"""Work that keeps tables small and whole: purge, compaction, clean-up, repair, the usage history.

Not here: who runs the rounds and asks the stores (claims/upkeep)."""
