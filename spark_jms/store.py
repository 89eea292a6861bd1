"""Stands in for `store/`, which is imported as spark_jms.store: a top-level package `store` would shadow a user's own `store.py`, or
be shadowed by it. An installed spark-jms has the folder here instead of this file.
"""

import importlib.util
import sys
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "store"
if not (_FOLDER / "__init__.py").is_file():
    raise ImportError(
        f"{_FOLDER} is not there: a copy of spark_jms alone is not whole. Build and install the wheel instead"
    )
_SPEC = importlib.util.spec_from_file_location(
    __name__, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = sys.modules[__name__] = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
