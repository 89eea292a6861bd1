"""The Global Directory on disk: the folder that daemons, stores and administrators of one cluster share.

Not here: what an entry may become (protocol/region_entry.py), and a daemon's questions to the directory (core/directory_view.py).
"""
