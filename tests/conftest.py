"""Shared by every layer: the layer of a test is its folder; it gives the marker, the order, and the time limit."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.harness.processes.sessions import java_environment, small_session
from tests.harness.users.installation import DIRECTORY_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jms.testing.postgresql import PrivatePostgresql
    from tests.harness.services.daemons import Daemons

# No deadline: the time of an example depends on the machine. A failing example prints how to repeat it.
# The same examples on every run, so that a red run means a change; JMSQ_SEARCH=1 looks for new ones.
settings.register_profile("spark-jms", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("search" if os.environ.get("JMSQ_SEARCH") else "spark-jms")

# Of this process, before it imports `wait_until`, and of those that it starts.
os.environ.setdefault("JMSQ_PATIENCE", "4")
os.environ.update(java_environment())  # of every JVM that a test starts, itself or by an application
# NumPy, which pyarrow imports, would start a thread for each core that nothing here uses: a tenth of a second of CPU time for each of
# the processes that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

HERE = Path(__file__).parent
# Folder -> seconds a test may take before it counts as hung, on the busiest machine, in the order in which the layers run: fast ones
# first. Simulations take seconds by themselves; in `make test` they wait for a processor that no other test wants.
LAYERS = {"unit": 300, "contract": 300, "simulation": 3600, "process": 900, "spark": 900, "soak": 14400}

# Thousands of tests and the modules of Spark, pyarrow and SQLAlchemy are objects that live as long as the run. With Python's own
# thresholds the collector, which walks them, takes a seventh of the CPU time of the tests.
COLLECTOR_THRESHOLDS = (50_000, 50, 50)


@cache
def layer_of(path: Path) -> str | None:
    """The layer of a test file: the folder under tests/ that it lies in."""
    parts = path.relative_to(HERE).parts if path.is_relative_to(HERE) else ()
    return parts[0] if parts and parts[0] in LAYERS else None


def pytest_configure(config: pytest.Config) -> None:
    """A directory that the processes of one run share, for environments with the wheel (tests/harness/users/installation.py).
    And SIGINT as a terminal sends it: a run that a script has started in the background ignores it, and hands that down to
    its processes."""
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        os.environ[DIRECTORY_VARIABLE] = tempfile.mkdtemp(prefix="jmsq-installations-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """An environment with Spark takes 1 GB, and pytest would keep three. What was frozen is collected at the end of the process
    again: else libraries in C++, such as DuckDB, report their modules as leaked."""
    gc.unfreeze()
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(DIRECTORY_VARIABLE), ignore_errors=True)


def pytest_collection_finish() -> None:
    """What is loaded now lives as long as the run: the collector need not walk it."""
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Polars, which some modules of tests import, puts a handler of its own before Python's: behind it an interrupt ends no wait."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {layer: position for position, layer in enumerate(LAYERS)}
    for item in items:
        layer = layer_of(item.path)
        if layer is None:
            continue
        item.add_marker(layer)
        if item.get_closest_marker("timeout") is None:
            limit = "soak" if item.get_closest_marker("soak") else layer
            item.add_marker(pytest.mark.timeout(LAYERS[limit]))
    items.sort(key=lambda item: order.get(layer_of(item.path) or "", len(order)))


@pytest.fixture
def root(tmp_path: Path) -> str:
    """The root of an empty domain, as options take it."""
    directory = tmp_path / "domain"
    directory.mkdir()
    return str(directory)


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivatePostgresql]:
    """One server of our own for the whole run, on a port of its own; a test takes a schema of its own (`uri`)."""
    from tests.harness.services.databases import private_postgresql

    with private_postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    """Two daemons for the whole run; a test takes a store of its own (`uri`)."""
    from tests.harness.services.daemons import Daemons

    daemons = Daemons(tmp_path_factory.mktemp("replicated") / "global")
    yield daemons
    daemons.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for the whole run (for each worker of pytest-xdist)."""
    from tests.harness.processes.crash import PLUGIN

    with pytest.MonkeyPatch.context() as environment:  # of the JVM, which passes it on to Python workers
        environment.setenv("PYTHONPATH", str(PLUGIN), prepend=os.pathsep)
        # A test that checks every entry of a quota's ledger has time to copy it.
        environment.setenv("JMSQ_TUNE", json.dumps({"spark_jms.log.limits.quota_ledger": {"KEPT": 1_000}}))
        session = small_session("spark-jms tests", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
