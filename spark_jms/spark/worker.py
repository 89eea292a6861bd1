"""Python worker processes of Spark, which outlive their tasks.

PySpark's daemon runs a full garbage collection after each task. With pyspark, pandas and pyarrow loaded, the collector
walks some hundred thousand objects that live as long as the worker, which takes longer than reading a small batch.
Freezing those objects exempts them; the collector still handles whatever later tasks leave behind.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def freeze_loaded() -> None:
    """Call at the end of a task. The first call, when all modules are loaded, freezes; later calls do nothing."""
    gc.freeze()
