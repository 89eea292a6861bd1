"""The process of a daemon: the core with clock, connections, shared memory, log files and directory workers.

Not here: what it decides (core), and how it is started (kinds/daemon.py) and stopped (admin/cluster.py).

Features: R3, R4 (docs/FEATURES.md)
"""
