"""Fakes and helpers for your own tests: no Spark, no disk store, no sleeping.

Not for applications: inside.py, which the tests of this project use.
"""

from spark_jms.testing.domain import memory_domain, wait_until

__all__ = ["memory_domain", "wait_until"]


def __dir__() -> list[str]:
    return __all__
