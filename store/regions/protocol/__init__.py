"""What all processes of a region cluster agree on: messages, connections, entries of regions, rs_daemons.cfg.

Not here: the decisions of a daemon (core), and where the entries are kept (directory).
"""
