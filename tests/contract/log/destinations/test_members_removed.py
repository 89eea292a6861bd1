"""`apply` removes and adds members beside subscriptions and senders (C3, C10)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from spark_jms import apply, connect
from spark_jms.claims.records.subscriptions import start_floors
from spark_jms.core.destinations.destination import Destination, Subscription
from spark_jms.core.destinations.routing import route_of
from spark_jms.errors import MemberRemovalError
from spark_jms.log.destinations.declarations import create_subscription, decide_change, drop_subscription
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.commit import metadata_action
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot, TableMetadata
from spark_jms.log.upkeep.purge import purge
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of


def shape(root: str, members: int) -> None:
    apply(root, {"destinations": {"prices": {"kind": "distributed-topic", "members": members}}})


def before_the_commit(monkeypatch: pytest.MonkeyPatch, root: str, act: Callable[[Domain], object]) -> list[int]:
    """Let another process act once, after `apply` has decided and before it commits. Returns the attempts' versions."""
    append = DeltaLog.append
    attempts: list[int] = []

    def appending(log: DeltaLog, snapshot: Snapshot, *arguments: Any) -> bool:
        attempts.append(snapshot.version)
        if len(attempts) == 1:
            monkeypatch.setattr(DeltaLog, "append", append)
            act(Domain(root))
            log.refresh()  # another thread of this process follows the log meanwhile
            monkeypatch.setattr(DeltaLog, "append", appending)
        return append(log, snapshot, *arguments)

    monkeypatch.setattr(DeltaLog, "append", appending)
    return attempts


def send(root: str, *texts: str) -> None:
    with connect(root, housekeeping=False) as context:
        context.producer("prices").send_many({"text": text} for text in texts)


def receive(root: str, subscription: str, **options: Any) -> list[str | None]:
    with (
        connect(root, housekeeping=False) as context,
        context.consumer("prices", subscription=subscription, acknowledge="auto", **options) as consumer,
    ):
        got = []
        while (message := consumer.receive(timeout=0.3)) is not None:
            got.append(message.text)
        return sorted(got, key=str)


def test_a_subscription_made_before_the_commit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """C10: the change loses against the subscription's commit and decides again on the declaration with it."""
    with memory_domain(prices={"kind": "distributed-topic", "members": 2}) as root:
        shape(root, 3)
        attempts = before_the_commit(
            monkeypatch, root, lambda other: create_subscription(other.log("prices"), "late", lambda snapshot: {})
        )
        shape(root, 2)
        declared = Domain(root).log("prices").refresh().destination
        assert declared.members == 2
        assert set(declared.subscriptions) == {"late"}
        assert len(attempts) == 2


def test_a_message_sent_before_the_commit_keeps_its_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """C4: the member is no longer empty, so it is not removed, and the message is received."""
    with memory_domain(prices={"kind": "distributed-topic", "members": 2}) as root:
        shape(root, 3)
        assert receive(root, "s") == []
        before_the_commit(monkeypatch, root, lambda other: send(root, *"abc"))
        with pytest.raises(MemberRemovalError, match="member 2 still holds messages"):
            shape(root, 2)
        assert Domain(root).log("prices").refresh().destination.members == 3
        assert receive(root, "s") == list("abc")


def test_a_subscription_dropped_at_once_is_returned() -> None:
    """C10: the caller gets the subscription that its commit made, whatever others do afterwards."""
    with memory_domain(prices="topic") as root:
        log = Domain(root).log("prices")
        refresh = DeltaLog.refresh

        class Follower(DeltaLog):
            @property
            def snapshot(self) -> Snapshot:
                drop_subscription(Domain(root).log("prices"), "s")
                return refresh(self)

        log.__class__ = Follower
        assert create_subscription(log, "s", lambda snapshot: {0: 7}).floors == {0: 7}


@pytest.mark.parametrize("purged", [False, True], ids=["old files there", "old files purged"])
@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_member_added_again_brings_no_old_messages(purged: bool, start: str) -> None:
    """C6, C10: a subscription made while the member was removed gets what is sent after it was added again, without a
    DataLossError for what was purged."""
    with memory_domain(prices={"kind": "distributed-topic", "members": 2}) as root:
        shape(root, 3)
        send(root, *(f"old {n}" for n in range(9)))
        shape(root, 2)
        log = Domain(root).log("prices")
        assert log.refresh().last_sequence(2) == 3
        first = receive(root, "s", starting_position=start)
        assert len(first) == (0 if start == "latest" else 6)
        if purged:
            purge(log, lambda name, member, sequences: member == 2, now=2**50)
            assert not log.refresh().member_files(2).files
        shape(root, 3)
        send(root, *(f"new {n}" for n in range(9)))
        assert receive(root, "s", starting_position=start) == [f"new {n}" for n in range(9)]


def test_a_removed_member_is_purged_beside_a_later_subscription() -> None:
    """C13: the subscription has nothing to finish there."""
    with memory_domain(prices={"kind": "distributed-topic", "members": 2}) as root:
        shape(root, 3)
        send(root, *"abcdef")
        shape(root, 2)
        with connect(root, housekeeping=False) as context:
            snapshot = domain_of(context).log("prices").refresh()
            assert start_floors(snapshot, "latest") == {0: 2, 1: 2, 2: 2}
            assert start_floors(snapshot, "earliest") == {0: 0, 1: 0, 2: 2}
            assert start_floors(snapshot, '{"sequence": 1}') == {0: 0, 1: 0, 2: 2}


def test_growing_sets_the_floor_of_older_subscriptions() -> None:
    """C10: also of one that an earlier spark-jms made without a floor for the removed member; known floors stay."""
    topic = attrs.evolve(
        Destination("prices", "distributed-topic", 2, slot_members=2),
        subscriptions={"s": Subscription("s", {0: 4}, 1), "t": Subscription("t", {0: 1, 2: 3}, 1)},
    )
    action = metadata_action(Snapshot("prices"), topic)["metaData"]
    snapshot = Snapshot("prices", 1, TableMetadata(action, "prices"), {"seq/0": 9, "seq/2": 5})
    decision = decide_change(attrs.evolve(topic, members=4), snapshot, None)
    assert decision is not None
    changed = TableMetadata(decision.actions[0]["metaData"], "prices").destination
    assert {name: dict(s.floors) for name, s in changed.subscriptions.items()} == {"s": {0: 4, 2: 5}, "t": {0: 1, 2: 5}}
    assert changed.start_floor("s", 3) == 0


def test_refused_removal_changes_nothing(tmp_path: Path) -> None:
    """C3: units of order are bound to the first members, so the removal can never succeed: it must not leave members on their
    way out."""
    root = str(tmp_path / "root")
    apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 4}}})
    with pytest.raises(MemberRemovalError, match="was made with 4 members"):
        apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 2}}})
    declared = Domain(root).log("orders").refresh().destination
    assert declared.leaving == frozenset()
    assert route_of(declared).open_members() == [0, 1, 2, 3]


def test_servers_that_return_leave_nothing_in_later_subscriptions(tmp_path: Path) -> None:
    """D1, C10: each time the server gets a member with a new id. A subscription that begins later has floors for the members of now,
    and the recovery of transfers looks at no others."""
    root = str(tmp_path / "root")
    for _ in range(5):
        on_servers(root, "a", "b")
        send(root, *"abcd")
        on_servers(root, "a")
    on_servers(root, "a", "b")
    send(root, *"abcd")
    snapshot = Domain(root).log("prices").refresh()
    assert len(snapshot.numbered_members()) == 7
    assert snapshot.lasting_members() == set(snapshot.destination.member_ids) == {0, 6}
    for position in ("latest", "earliest", '{"sequence": 1}'):
        assert start_floors(snapshot, position).keys() == {0, 6}
    got = receive(root, "late", starting_position="earliest")
    assert set(got) == set("abcd")


def on_servers(root: str, *servers: str) -> None:
    module = {"destinations": {"prices": {"kind": "distributed-topic", "servers": list(servers)}}}
    apply(root, {"servers": {name: {"store": "file"} for name in "ab"}, **module})
