"""The decisions of the replicated store, as values and state tables: no socket, file, clock or chance inside.

space       what is where inside a region          placement   which daemon holds which copy
directory   what the Global Directory says          protocol    bytes to messages and back
daemon      one daemon: peers, clients, time        primary     a region served here, and who follows it
replica     a copy kept for another daemon          opening     opening and moving regions
shutdown    draining, administration                instance    a store's objects in regions
"""
