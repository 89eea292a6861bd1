"""The demo on a Spark standalone cluster: drivers, executors and the master are processes of their own (M10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo_run import demo, expected_account, kept_account, processes_in
from tests.standalone import StandaloneCluster

ROWS = 2000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    started = StandaloneCluster(tmp_path / "cluster", environment={"TMPDIR": str(tmp_path)})
    yield started
    started.close()
    assert processes_in(tmp_path) == []


@pytest.mark.timeout(600)
def test_demo_on_a_standalone_cluster_has_the_same_account(cluster: StandaloneCluster, tmp_path: Path) -> None:
    """M10, C5: the same job with another master. Two applications have executors on both workers, one driver gets kill -9
    and starts again, and the account is the one that local mode has."""
    run = demo("--rows", str(ROWS), "--keep", "kept", "--master", cluster.url, cwd=tmp_path)
    said, _ = run.communicate(timeout=580)
    assert run.returncode == 0, said
    assert kept_account(tmp_path / "kept") == expected_account(ROWS)
    ran = {(path.parents[1].name, path.parent.name) for path in cluster.executors()}
    applications = {application for _, application in ran}
    assert len(applications) == 3, "the demo's, the receiver's, and the receiver's after kill -9"
    assert ran == {(worker, application) for worker in ("work-0", "work-1") for application in applications}
