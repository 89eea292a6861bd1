from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = "/dev/shm"


@pytest.fixture
def path_in_memory() -> Iterator[Path]:
    """For thousands of small files, which would wait for the disk of the machine."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.path.isdir(MEMORY) else None) as path:
        yield Path(path)


@pytest.fixture
def quiet_model() -> Iterator[None]:
    """The model's faults are logged as they should be, thousands of times."""
    log = logging.getLogger("spark_jms")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
