"""The client of the region cluster: a store instance owns the regions of a store and keeps objects in them.

Public: `instance.StoreInstance`, `objects.Objects` with its fake `MemoryObjects`, `object_journal.ObjectJournal`,
`thresholds.parse_thresholds`, and `attachment.Attachment` for administration. The other modules are parts of the instance.

Features: R7, R8 (docs/FEATURES.md)
"""
