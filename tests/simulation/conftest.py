from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet_model() -> Iterator[None]:
    """The model's faults are logged as they should be, thousands of times."""
    log = logging.getLogger("spark_jms")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
