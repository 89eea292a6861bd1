"""The decisions of the region cluster, as values and state tables: no socket, file, clock or chance inside.

A daemon     daemon (routes events), and its parts:
  shared     clock, outgoing (actions), directory_view and entry_requests (questions, changes), peers, clients, copies
  serving    primaries, primary (one region), replication (its writes), follower (one copy elsewhere), new_region
  following  replica (the copies kept for other daemons), reconciliation (take over, give up, free)
  deciding   opening, placement, heartbeats, leaving (safe shutdown), administration (lists, removal)
Values       directory (entries and their rules), state_table, config (rs_daemons.cfg), protocol (messages), actions
A store      instance (objects in regions), space (the blocks of one region), utilization (lines about memory)
"""
