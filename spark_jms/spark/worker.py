"""Python worker processes of Spark, which outlive their tasks.

After each task PySpark's daemon collects all garbage of the worker before it takes the next one. With pyspark, pandas and
pyarrow loaded that looks at some hundred thousand objects which stay for life, and takes longer than to read a small
batch: it was the larger part of a small micro-batch's work. Frozen, those objects are not looked at any more; what later
tasks leave behind is collected as before.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def freeze_loaded() -> None:
    """At the end of the first task, when all modules are loaded; later calls do nothing."""
    gc.freeze()
