"""PostgreSQL servers of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spark_jms.setup.machine import PostgresqlNotFoundError
from spark_jms.testing.postgresql import PrivatePostgresql


@contextmanager
def private_postgresql() -> Iterator[PrivatePostgresql]:
    """A server on a port of its own. Without PostgreSQL the test is skipped."""
    try:
        server = PrivatePostgresql()
    except PostgresqlNotFoundError as error:
        pytest.skip(f"no PostgreSQL server: {error}")
    yield server
    server.close()
