"""A region without any copy is told by name in the log of every daemon that runs (R18)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_jms.store.regions.core.actions import AskDirectory
from spark_jms.store.regions.protocol.messages import Open
from spark_jms.store.regions.protocol.region_entry import RegionEntry
from tests.models.regions.stepwise import StepCluster, closed_region


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
    cluster.directory(2).disk.available = False
    for daemon in (0, 1):
        cluster.kill(daemon)
    cluster.run(10_000)
    assert lost(cluster) == []
    cluster.directory(2).disk.available = True
    cluster.run(10_000)
    assert len(lost(cluster)) == 1


def lists(daemon: int) -> Callable[[RegionEntry | None], bool]:
    return lambda new: new is not None and new.secondary is not None and new.secondary.daemon == daemon


def test_entry_read_before_its_daemons_ended_is_not_lost() -> None:
    """R18: the entry on its way to the daemon lists two copies that died one after the other. There was a third one between."""
    cluster = StepCluster(4)
    closed_region(cluster, b"kept")
    client, core, old = cluster.client(3), cluster.core(3), cluster.entry()
    assert client.connection is not None
    now_ms = cluster.sim.daemons[3].clock_ms
    actions = core.from_client(now_ms(), client.connection.number, Open(1, "s.000", 0))
    asked = [action for action in actions if isinstance(action, AskDirectory)]
    cluster.kill(1)
    assert cluster.until(lambda: cluster.where() == (0, 2), 10_000)
    cluster.kill(0)
    assert cluster.until(lambda: cluster.where() == (2, None), 10_000)
    assert not any(map(core.peers.may_run, old.holders()))
    cluster.sim.daemons[3].feed(core, core.directory_answered, asked[0].number, old)
    assert cluster.until(lambda: 1 in client.answers, 3_000)
    assert client.read(client.answer(1)[0], 4) == b"kept"


@pytest.mark.parametrize("told", ["to a client", "in the log"])
def test_daemon_that_ended_lists_no_copy_of_a_lost_region(told: str) -> None:
    """R18: the directory has a change of the last primary still before it, which would list the copy on daemon 2."""
    cluster = StepCluster(4, audit_ms=1_000.0 if told == "in the log" else 600_000.0)
    closed_region(cluster)
    change = cluster.delay_change(0, lists(2), then_unavailable=True)
    cluster.kill(1)
    assert cluster.until(lambda: change.given_up, 10_000)
    cluster.blind(2)  # otherwise it gives up its copy, and makes the change impossible
    cluster.kill(0)
    if told == "in the log":
        assert cluster.until(lambda: bool(lost(cluster)), 10_000)
    else:
        assert cluster.client(3).open(wait_ms=10_000.0) == "RegionLostError"
    assert not change.land()


def test_region_that_no_client_opened_stays_at_its_first_epoch() -> None:
    """R18: otherwise the next client would find it lost, and not create it again."""
    cluster = StepCluster(3)
    cluster.delay_change(0, lambda new: new is not None and new.opener is not None, then_unavailable=True)
    cluster.client(0).open("s.000", wait_ms=200.0)
    assert cluster.entry().epoch == 1
    cluster.kill(0)
    cluster.kill(1)
    assert cluster.until(lambda: bool(lost(cluster)), 10_000)
    assert cluster.entry().epoch == 1
    client = cluster.client(2)
    assert client.open() == "RegionUnavailableError"  # it was removed
    assert isinstance(client.open(), list)
