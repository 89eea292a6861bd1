"""Every kind of store, for the tests of one contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.stores.kits import KITS, Kit


@pytest.fixture(params=KITS)
def kit(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    made = KITS[request.param](tmp_path / "s", request)
    yield made
    made.close()
