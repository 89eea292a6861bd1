"""A region without any copy is told by name in the log of every daemon that runs (R18)."""

from __future__ import annotations

from tests.simulator.stepwise import StepCluster


def lost(cluster: StepCluster) -> list[str]:
    return [line for line in cluster.log if "is LOST" in line]


def test_survivors_name_each_lost_region_once() -> None:
    """R18: those with a copy are not named; another life of a survivor names them again."""
    cluster = StepCluster(4)
    for name, daemon in (("s.000", 0), ("t.000", 1), ("u.000", 2)):
        cluster.client(daemon).open(name)
    cluster.run(1_000)
    cluster.kill(0)
    cluster.kill(1)
    cluster.run(10_000)
    text = "region s.000 is LOST: the lives of daemon 0 and daemon 1 that had its copies have ended"
    assert lost(cluster) == [f"{daemon}: {text}" for daemon in (2, 3)]
    cluster.kill(3)
    cluster.start(3)
    cluster.run(10_000)
    assert lost(cluster)[2:] == [f"3: {text}"]


def test_region_is_not_lost_before_the_directory_says_so() -> None:
    """R18: not while daemons only stand still, and not while the directory does not answer."""
    cluster = StepCluster(3)
    cluster.client(0).open("s.000")
    cluster.run(1_000)
    for daemon in (0, 1):
        cluster.freeze(daemon)
    cluster.run(10_000)
    assert lost(cluster) == []
    cluster.directory(2).available = False
    for daemon in (0, 1):
        cluster.kill(daemon)
    cluster.run(10_000)
    assert lost(cluster) == []
    cluster.directory(2).available = True
    cluster.run(10_000)
    assert len(lost(cluster)) == 1
