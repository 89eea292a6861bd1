"""On a Spark standalone cluster drivers, executors and the master are processes of their own: the demo, and a program (M10)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark_jms.setup import find_java
from tests.harness.project import PROJECT
from tests.harness.services.standalone import LOOPBACK, StandaloneCluster
from tests.harness.users.demo_run import demo, expected_account, kept_account, processes_in
from tests.harness.users.pages import lines, says_it_prints

ROWS = 2000
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    started = StandaloneCluster(directory / "processes", environment={"TMPDIR": str(directory)})
    yield started
    started.close()
    assert processes_in(directory) == []


@pytest.mark.timeout(450)
def test_example_of_several_queries(
    cluster: StandaloneCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M10, C1: by spark-submit."""
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", LOOPBACK)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    example = PROJECT / "examples" / "spark_cluster.py"
    done = subprocess.run(
        [str(SUBMIT), "--master", cluster.url, str(example)], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert lines(done.stdout) == says_it_prints(example)


@pytest.mark.timeout(600)
def test_demo_on_a_standalone_cluster_has_the_same_account(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """M10, C5: the same job with another master. Two applications have executors on both workers, one driver gets kill -9
    and starts again, and the account is the one that local mode has."""
    before = cluster.executors()
    run = demo("--rows", str(ROWS), "--keep", "kept", "--master", cluster.url, cwd=tmp_path)
    said, _ = run.communicate(timeout=580)
    assert run.returncode == 0, said
    assert kept_account(tmp_path / "kept") == expected_account(ROWS)
    ran = {(path.parents[1].name, path.parent.name) for path in cluster.executors() - before}
    applications = {application for _, application in ran}
    assert len(applications) == 3, "the demo's, the receiver's, and the receiver's after kill -9"
    assert ran == {(worker, application) for worker in ("work-0", "work-1") for application in applications}
