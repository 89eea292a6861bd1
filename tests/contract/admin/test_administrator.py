"""spark_jms.admin: what people who administer a domain see and change from Python (C14)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms import admin as administration
from spark_jms.admin import Administrator, Moved, Purged
from spark_jms.claims.records.members import session_label
from spark_jms.claims.servers.stores import open_stores, store_of
from spark_jms.client import Context
from spark_jms.errors import (
    ClosedError,
    DestinationInUseError,
    DomainError,
    InvalidDestinationError,
    JmsqError,
    MemberUnavailableError,
    OptionError,
    ProductionPausedError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.settings.environment import ROOT_VARIABLE
from spark_jms.testing import wait_until

MODULE = {
    "quotas": {"small": {"messagesMaximum": 40}},
    "servers": {"east": {"store": "file"}, "west": {"store": "file"}},
    "destinations": {
        "orders": {"kind": "distributed-queue", "members": 2, "redeliveryLimit": 0, "errorDestination": "errors"},
        "errors": {"kind": "queue"},
        "limited": {"kind": "queue", "quota": "small"},
        "prices": {"kind": "topic"},
        "told": {"kind": "queue", "messageLoggingEnabled": True},
        "spread": {"kind": "distributed-queue", "servers": ["east", "west"]},
    },
}


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    spark_jms.apply(root, MODULE)
    with spark_jms.connect(root, housekeeping=False) as made:
        yield made


@pytest.fixture
def admin(context: Context) -> Iterator[Administrator]:
    with administration.connect(context.root) as made:
        yield made


def send(context: Context, destination: str, count: int) -> None:
    context.producer(destination).send_many({"text": str(n), "properties": {"n": n}} for n in range(count))


def finish(context: Context, destination: str, count: int) -> None:
    with context.consumer(destination, acknowledge="auto") as consumer:
        assert all(consumer.receive(10) for _ in range(count))


def failed(context: Context, count: int) -> None:
    """So many messages of orders go to its error destination."""
    send(context, "orders", count)
    for _ in range(count):
        with context.consumer("orders") as consumer:
            assert consumer.receive(10) is not None
    with context.consumer("orders") as consumer:
        assert consumer.receive(0.5) is None


def test_backlog_and_members_count_messages(context: Context, admin: Administrator) -> None:
    """C14, C10: by subscription and member; `statistics` has their sums; `server@destination` is one member."""
    context.consumer("prices", subscription="billing").close()
    send(context, "orders", 8)
    send(context, "prices", 3)
    send(context, "spread", 4)
    with context.consumer("orders", acknowledge="client", prefetch=1) as consumer:
        message = consumer.receive(10)
        assert message is not None
        message.acknowledge()
        wait_until(lambda: sum(row.backlog for row in admin.backlog("orders")) == 7)
    assert admin.destinations() == ["errors", "limited", "orders", "prices", "spread", "told"]
    assert [(row.subscription, row.member, row.last_sequence) for row in admin.backlog("orders")] == [
        ("-", 0, 4),
        ("-", 1, 4),
    ]
    assert [(row.subscription, row.backlog) for row in admin.backlog("prices")] == [("billing", 3)]
    assert [row.backlog for row in admin.backlog("prices", subscription="billing")] == [3]
    assert [(row.member, row.server, row.stored_messages, row.backlog) for row in admin.members("spread")] == [
        (0, "east", 2, 2),
        (1, "west", 2, 2),
    ]
    assert [row.server for row in admin.members("west@spread")] == ["west"]
    assert [row.member for row in admin.backlog("west@spread")] == [1]
    whole = admin.statistics("orders")
    assert (whole.sent, whole.backlog, whole.claimed, len(whole.members)) == (8, 7, 0, 2)
    with pytest.raises(InvalidDestinationError, match="nothing"):
        admin.backlog("nothing")
    with pytest.raises(InvalidDestinationError, match="has no subscription 'x'"):
        admin.backlog("prices", subscription="x")


def test_consumers_and_claims_name_who_has_messages(context: Context, admin: Administrator) -> None:
    """C14, C16: one that has nothing yet is a consumer too; a claim is released, and its messages come again."""
    assert (admin.consumers("orders"), admin.claims()) == ([], [])
    send(context, "limited", 5)
    with (
        context.consumer("limited", acknowledge="client") as busy,
        context.consumer("orders") as idle,
        context.consumer("prices", subscription="billing"),
    ):
        assert busy.receive(10) is not None
        (claim,) = admin.claims("limited")
        (consumer,) = admin.consumers("limited")
        assert (consumer.subscription, consumer.members, consumer.claimed) == ("-", (0,), 5)
        assert (claim.consumer, claim.messages, claim.ranges, claim.live) == (consumer.consumer, 5, "1-5", True)
        assert admin.claims() == [claim]
        assert admin.claims("orders") == []
        assert idle.receive(0) is None
        (other,) = admin.consumers("orders")
        assert (other.claimed, other.process) == (0, "")
        assert [row.subscription for row in admin.consumers("prices")] == ["billing"]
        assert [row.messages for row in admin.release_claim(claim.claim, dry_run=True)] == [5]
        assert admin.claims() == [claim]
        assert [row.messages for row in admin.release_claim(claim.claim, "limited")] == [5]
        with pytest.raises(JmsqError, match="there is no open claim"):
            admin.release_claim(claim.claim)
    with context.consumer("limited") as consumer_again:
        again = consumer_again.receive(10)
        assert again is not None
        assert again.redelivered


def test_consumer_of_several_servers_is_one(context: Context, admin: Administrator) -> None:
    """C14, M10"""
    send(context, "spread", 4)
    with context.consumer("spread", acknowledge="client") as consumer:
        assert consumer.receive(10) is not None
        (row,) = admin.consumers("spread")
        assert (row.members, row.claimed) == ((0, 1), 4)


def test_query_of_several_servers_is_one(context: Context, admin: Administrator) -> None:
    """C14, M10: its sessions were opened in two different seconds, which their labels name."""
    stores = open_stores(Domain(context.root))
    sessions = [
        store_of(stores, server).connect(session_label("spread", "-", "query-1") + f", process 7 of vm, since {second}")
        for server, second in (("east", 1), ("west", 2))
    ]
    (row,) = admin.consumers("spread")
    assert (row.consumer, row.process, row.members) == ("query-1", "process 7 of vm, since 1", ())
    for session in sessions:
        session.close()
    stores.close()


def test_events_tell_what_became_of_messages(context: Context, admin: Administrator) -> None:
    """C14, T6: and where their table is."""
    send(context, "told", 3)
    finish(context, "told", 3)
    assert [row.event for row in admin.events("told") if row.names(2)] == ["sent", "claimed", "acknowledged"]
    assert (Path(admin.life_cycle_table("told").removeprefix("file://")) / "_delta_log").is_dir()
    with pytest.raises(InvalidDestinationError, match="life-cycle"):
        admin.life_cycle_table("orders")


def test_servers_stop_and_start(context: Context, admin: Administrator) -> None:
    """C14, D4"""
    assert [(row.server, row.members, row.state) for row in admin.servers()] == [
        ("home", ("errors/0", "limited/0", "orders/0", "orders/1", "prices/0", "told/0"), "up"),
        ("east", ("spread/0",), "up"),
        ("west", ("spread/1",), "up"),
    ]
    assert admin.stop_server("west") == ["spread"]
    assert [row.state for row in admin.servers()] == ["up", "up", "down"]
    send(context, "spread", 4)
    assert [row.backlog for row in admin.members("spread")] == [4, 0]
    assert admin.start_server("west") == ["spread"]
    with pytest.raises(DomainError, match="own store"):
        admin.stop_server("home")


def test_figures_without_a_server_are_an_error(context: Context, admin: Administrator) -> None:
    """C14, D4: what was finished on a server that is away would count as backlog, and a claim there would be no claim."""
    send(context, "spread", 10)
    with context.consumer("spread", acknowledge="client") as consumer:
        received = [consumer.receive(10) for _ in range(6)]
        assert received[-1] is not None
        received[-1].acknowledge()
        claims = {row.member: row.claim for row in admin.claims("spread")}
    stores = Path(context.root, "_jmsq", "stores")
    (stores / "west").rename(stores / "away")
    try:
        with administration.connect(context.root) as fresh:
            for asked in (admin, fresh):
                for call in (asked.statistics, asked.backlog, asked.members, asked.consumers, asked.claims):
                    with pytest.raises(MemberUnavailableError, match="server west is away"):
                        call("spread")
                with pytest.raises(MemberUnavailableError, match="server west is away"):
                    asked.backlog("west@spread")
                with pytest.raises(MemberUnavailableError, match="server west is away"):
                    asked.release_claim(claims.get(1, "c1"))
                assert [row.server for row in asked.members("east@spread")] == ["east"]
                assert [row.destination for row in asked.backlog("orders")]
    finally:
        (stores / "away").rename(stores / "west")
    assert sum(row.backlog for row in admin.backlog("spread")) == 4


def test_usage_of_quotas(context: Context, admin: Administrator) -> None:
    """C14, T1"""
    send(context, "limited", 5)
    (row,) = admin.usage()
    assert (row.quota, row.destinations, row.messages_maximum, row.messages_used) == ("small", ("limited",), 40, 5)
    assert admin.usage("small") == [row]
    entries = admin.quota_entries("small")
    assert [entry.number for entry in entries] == sorted(entry.number for entry in entries)
    assert entries[-1].messages_used + entries[-1].messages_reserved == 5
    with pytest.raises(DomainError, match="nothing"):
        admin.usage("nothing")


def test_pause_and_resume(context: Context, admin: Administrator) -> None:
    """C14, T14: all operations by default; an empty list of members is not all of them."""
    paused = admin.pause("orders")
    assert [(row.operation, row.member) for row in paused.pauses] == [
        ("production", None),
        ("insertion", None),
        ("consumption", None),
    ]
    with pytest.raises(ProductionPausedError):
        send(context, "orders", 1)
    assert admin.resume("orders").pauses == ()
    changed = admin.pause("orders", "consumption", members=[1])
    assert [(row.operation, row.member) for row in changed.pauses] == [("consumption", 1)]
    assert not admin.pause("orders", "consumption", members=[1]).changed
    assert [row.member for row in admin.pause("west@spread", "production").pauses] == [1]
    for wrong in (lambda: admin.resume("orders", members=[]), lambda: admin.pause("orders", "everything")):
        with pytest.raises(OptionError):
            wrong()
    assert [row.member for row in admin.statistics("orders").paused] == [1]


def test_purge_drops_a_backlog(context: Context, admin: Administrator) -> None:
    """C14, C13: claimed messages stay; `dry_run` promises what is done then."""
    send(context, "orders", 8)
    with pytest.raises(OptionError, match="members is empty"):
        admin.purge("orders", members=[])
    assert admin.purge("orders", members=[1], dry_run=True).dropped == 4
    assert admin.purge("orders", members=[1]) == Purged(4, 0, 4, 1)
    assert [row.backlog for row in admin.members("orders")] == [4, 0]
    with context.consumer("orders", acknowledge="client", prefetch=1) as consumer:
        assert consumer.receive(10) is not None
        claimed = sum(claim.messages for claim in admin.claims("orders"))
        promised = admin.purge("orders", dry_run=True)
        assert (promised.dropped, promised.claimed) == (4 - claimed, claimed)
        done = admin.purge("orders")
        assert (done.dropped, done.claimed) == (4 - claimed, claimed)


def test_purge_of_finished_files_drops_nothing(context: Context, admin: Administrator) -> None:
    """C14, C13"""
    for name in ("errors", "limited"):
        send(context, name, 2)
    finish(context, "errors", 2)
    assert admin.purge_finished("errors", dry_run=True) == Purged(0, 0, 2, 1)
    assert admin.purge_finished("errors") == Purged(0, 0, 2, 1)
    assert admin.purge_finished("limited") == Purged(0, 0)
    assert sum(row.backlog for row in admin.backlog("limited")) == 2


def test_move_to_another_destination_and_member(context: Context, admin: Administrator) -> None:
    """C14, C18"""
    send(context, "limited", 10)
    assert admin.move("limited", "errors", selector="n >= 6", dry_run=True) == Moved(4, 0)
    assert admin.move("limited", "errors", selector="n >= 6", limit=3) == Moved(3, 0)
    assert [sum(row.backlog for row in admin.backlog(name)) for name in ("limited", "errors")] == [7, 3]
    assert admin.move("errors", "orders", to_member=1).moved == 3
    assert admin.move("orders", "orders", members=[1], to_member=0).moved == 3
    assert admin.move("limited", "west@spread").moved == 7
    assert [row.backlog for row in admin.members("spread")] == [0, 7]
    assert admin.move("west@spread", "errors").moved == 7
    with pytest.raises(OptionError, match="members is empty"):
        admin.move("orders", "errors", members=[])


def test_redrive_brings_messages_back(context: Context, admin: Administrator) -> None:
    """C14, C8: to where they failed; those that failed earlier or later stay."""
    failed(context, 2)
    assert sum(row.backlog for row in admin.backlog("errors")) == 2
    now = datetime.now(timezone.utc)
    assert admin.redrive("errors", until=now - timedelta(hours=1)).messages == {}
    with pytest.raises(OptionError, match="no time zone"):
        admin.redrive("errors", since=datetime(2026, 1, 1))  # noqa: DTZ001
    assert admin.redrive("errors", dry_run=True).messages == {"orders": 2}
    assert admin.redrive("errors", limit=1).messages == {"orders": 1}
    assert admin.redrive("errors", to="limited", since=now - timedelta(hours=1)).messages == {"orders": 1}
    assert [sum(row.backlog for row in admin.backlog(name)) for name in ("errors", "orders", "limited")] == [0, 1, 1]


NO_NAMES = [None, 5, b"orders", ["orders"], {}]


@pytest.mark.parametrize("given", NO_NAMES, ids=str)
def test_what_is_not_a_name_names_nothing(admin: Administrator, given: Any) -> None:
    """C14: every call refuses it as it refuses an unknown name."""
    for call in (
        *(admin.statistics, admin.backlog, admin.members, admin.consumers, admin.claims, admin.events, admin.housekeep),
        *(
            admin.life_cycle_table,
            admin.pause,
            admin.resume,
            admin.purge,
            admin.purge_finished,
            admin.drop,
            admin.redrive,
        ),
    ):
        with pytest.raises(InvalidDestinationError, match=re.escape(repr(given))):
            call(given)
    with pytest.raises(InvalidDestinationError):
        admin.move("orders", given)
    with pytest.raises(InvalidDestinationError):
        admin.rename(given, "new")
    for call in (admin.stop_server, admin.start_server, admin.quota_entries, admin.usage):
        with pytest.raises(DomainError, match=re.escape(repr(given))):
            call(given)


def test_arguments_of_another_type_are_named(admin: Administrator) -> None:
    """C14"""
    limits: list[Any] = [0, -1, 1.5, "2", True]
    for limit in limits:
        with pytest.raises(OptionError, match="limit is .* 1 or more"):
            admin.move("orders", "errors", limit=limit)
        with pytest.raises(OptionError, match="limit is .* 1 or more"):
            admin.redrive("errors", limit=limit)
    times: list[Any] = [5, "2 h", timedelta(hours=1), datetime.now(timezone.utc).date()]
    for time in times:
        with pytest.raises(OptionError, match="since: .* datetime with a time zone"):
            admin.redrive("errors", since=time)
    number: Any = 1
    with pytest.raises(OptionError, match="members is 1, but"):
        admin.purge("orders", members=number)


def test_drop_and_rename(context: Context, admin: Administrator) -> None:
    """C14, C18"""
    send(context, "limited", 5)
    renamed = admin.rename("errors", "failures", force=True)
    assert (renamed.old, renamed.new) == ("errors", "failures")
    assert (plan := admin.drop("limited", dry_run=True)).unfinished == plan.stored_messages == 5
    with pytest.raises(DestinationInUseError, match="5 unfinished"):
        admin.drop("limited")
    assert admin.drop("limited", force=True).unfinished == 5
    assert admin.destinations() == ["failures", "orders", "prices", "spread", "told"]


def test_drop_of_a_table_that_was_deleted_by_hand(context: Context, admin: Administrator) -> None:
    """C14, C18: the plan of a forced drop, and the way out of one that is not."""
    for file in sorted(Path(context.root, "limited").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    with administration.connect(context.root) as anew:
        with pytest.raises(InvalidDestinationError, match="jmsq drop --force limited"):
            anew.drop("limited", dry_run=True)
        assert anew.drop("limited", force=True, dry_run=True).begun
        assert anew.drop("limited", force=True).begun
        assert "limited" not in anew.destinations()


def test_housekeeping_of_one_round(context: Context, admin: Administrator) -> None:
    """C14, C13"""
    send(context, "errors", 3)
    finish(context, "errors", 3)
    (done,) = admin.housekeep("errors")
    assert (done.destination, done.busy, done.failures, done.purged_messages) == ("errors", False, (), 3)
    assert [row.destination for row in admin.housekeep()] == admin.destinations()


def test_connect_and_close(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C14"""
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    with pytest.raises(DomainError, match="no root"):
        administration.connect()
    monkeypatch.setenv(ROOT_VARIABLE, context.root)
    with administration.connect() as made:
        assert made.destinations()
    made.close()
    for use in (made.destinations, made.servers, lambda: made.backlog("orders")):
        with pytest.raises(ClosedError):
            use()
