"""The uses of format("jmsq"), by the names that Spark gives them.

Features: C6 (docs/FEATURES.md)
"""

from __future__ import annotations

from enum import Enum


class Use(Enum):
    READ = "read"
    READ_STREAM = "readStream"
    WRITE = "write"
    WRITE_STREAM = "writeStream"


READS = (Use.READ, Use.READ_STREAM)
WRITES = (Use.WRITE, Use.WRITE_STREAM)
ALL = READS + WRITES
