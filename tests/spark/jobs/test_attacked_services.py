"""The services' queries on a cluster that loses a worker, and with a checkpoint whose door dies (T3, T6, M12)."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

import spark_jms.cli
from spark_jms.admin.services import EXPIRATION, USAGE, ServiceRunner
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.jobs.services import DomainQueries, ServiceQueries
from spark_jms.log.destinations.domain import Domain
from spark_jms.setup import find_java
from spark_jms.testing import wait_until
from tests.harness.project import PROJECT
from tests.harness.scenarios.killed_services import AttackedServices, check_history, expired
from tests.harness.services.daemons import Daemons
from tests.harness.services.doors import nameservice, wait_for_two_copies
from tests.harness.services.standalone import LOOPBACK, StandaloneCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
COMMAND = Path(spark_jms.cli.__file__).parent / "__main__.py"
EACH, KILLS, LIMIT_S = 50, 3, 120
DIES_ONCE = """
import os

try:
    os.unlink({first!r})
except FileNotFoundError:
    pass
else:
    os._exit(9)
"""


@pytest.mark.timeout(600)
def test_services_on_a_cluster_go_on_without_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3, T6, M12: by spark-submit with conf/spark-defaults.conf; a worker and its executors get kill -9 between batches."""
    for name, value in {"JAVA_HOME": find_java().home, "PYSPARK_PYTHON": sys.executable}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("SPARK_LOCAL_IP", LOOPBACK)
    cluster = StandaloneCluster(tmp_path / "cluster")
    try:
        conf = ("--master", cluster.url, "--properties-file", str(PROJECT / "conf" / "spark-defaults.conf"))
        services = AttackedServices(tmp_path, EACH, seed=1, launcher=(str(SUBMIT), *conf, str(COMMAND)))
        services.go_on(lambda: cluster.kill_worker(0))
        with opened_store(Domain(services.root)) as store:
            check_history(services.root, store, services.turns, EACH, services.jobs)
        assert {path.parents[1].name for path in cluster.executors()} == {"work-0", "work-1"}
    finally:
        cluster.close()


@pytest.mark.timeout(600)
def test_a_lookup_that_dies_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3, T6, M12: a session looks once for Python's data sources. The process imports all `pyspark_*`, and dies in one of them."""
    first, folder = tmp_path / "first", tmp_path / "dies"
    first.touch()
    folder.mkdir()
    (folder / "pyspark_dies.py").write_text(DIES_ONCE.format(first=str(first)))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    services = AttackedServices(tmp_path, EACH, seed=1)
    services.go_on(lambda: None)
    assert not first.exists()
    with opened_store(Domain(services.root)) as store:
        check_history(services.root, store, services.turns, EACH, services.jobs)


@pytest.mark.timeout(600)
def test_services_survive_the_door_of_their_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """T3, T6, M12: offsets, state and timers are in a replicated store, whose serving daemon gets kill -9 in the middle of batches;
    a query that ends by that is started again."""
    daemons = Daemons(tmp_path / "global", count=3, memory="1G", environment={"RS_DOOR_REGION_MB": "16"}, doors=True)
    services, chance = AttackedServices(tmp_path, EACH, seed=1), random.Random(1)
    domain, runner = Domain(services.root), ServiceRunner([], others=[EXPIRATION, USAGE])
    try:
        with opened_store(domain) as store:
            made = DomainQueries(spark, domain, store, runner, shortest_s=0.2).made([EXPIRATION, USAGE])
            queries = ServiceQueries(made, f"webhdfs://{nameservice(spark, daemons.doors)}/services")

            def all_expired() -> bool:
                queries.start()  # as the command does now and then
                return expired(domain, store) == (services.turns * EACH,) * 2

            try:
                for _ in range(KILLS):
                    services.send()
                    wait_until(all_expired, LIMIT_S, lambda: f"{expired(domain, store)} {runner.status()}")
                    victim = wait_for_two_copies(daemons)
                    services.send()
                    time.sleep(chance.uniform(0, 1))
                    daemons.signal(victim, signal.SIGKILL)
                    services.send()
                    wait_until(all_expired, LIMIT_S, lambda: f"{expired(domain, store)} {runner.status()}")
                    daemons.start(victim)
            finally:
                queries.stop()
            check_history(services.root, store, services.turns, EACH, services.jobs)
    finally:
        daemons.close()
