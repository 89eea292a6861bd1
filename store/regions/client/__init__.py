"""The client of the region cluster: a store instance owns the regions of a store and keeps objects in them.

Read instance.py first; objects.py is the port for services, attachment.py serves administration too. Not here: record sets, files.

Features: R7, R8 (docs/FEATURES.md)
"""
