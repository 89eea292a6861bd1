"""The only room that knows every kind of store: from a URI to a store, to its administration, to its daemon.

Not here: any rule of a store; each kind has a room of its own (file, jdbc, replicated), and all share ledger and engine.
"""
