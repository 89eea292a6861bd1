"""An application's connection to a domain: it opens, runs and counts its producers and consumers; the pool.

Not here: what a producer or a consumer does (sending, receiving)."""
