"""The decisions of a daemon, as values and state tables: no socket, file, clock or chance inside.

daemon.py lists the parts of a daemon. Not here: the process that carries the decisions out (daemon), and a store's side (client).
"""
