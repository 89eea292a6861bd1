"""The region cluster: daemons that keep regions of bytes in two memories, their clients and administration.

Not here: record sets on regions (replicated), and the services that a daemon may host (webhdfs; kinds/daemon.py brings them).
"""
