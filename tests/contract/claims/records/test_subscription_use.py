"""Durable, non-durable, shared and exclusive subscriptions of a topic, on each store (C10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.admin.purge import plan_purge, purge_files
from spark_jms.claims.records import subscriptions
from spark_jms.claims.records.subscriptions import clear_leftovers
from spark_jms.claims.servers.stores import active_subscriptions, read_state
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client import Consumer, Context
from spark_jms.errors import ConsumerClosedException, InvalidClientIDException, OptionError, SubscriptionInUseError
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.purge import TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS, purge
from spark_jms.store import MemoryStore
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, members_of, records_of, subscriber_of, use_of
from tests.harness.messages.shorthands import texts_now
from tests.harness.processes.killed import killed_client

LIMIT_S = 30.0
LATER_MS = TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS + 3_600_000


@pytest.fixture(params=["memory", "file"])
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    with (
        memory_domain(
            request.param, orders="queue", prices="topic", spread={"kind": "distributed-topic", "members": 2}
        ) as root,
        connect(root, housekeeping=False) as opened,
    ):
        yield opened


def send(context: Context, *given: str, topic: str = "prices") -> None:
    for text in given:
        context.producer(topic).send(text=text)


def uses(context: Context) -> set[str]:
    return set(active_subscriptions(records_of(context), domain_of(context).log("prices").refresh().table_id))


def filled_records(context: Context) -> list[str]:
    """Record sets that are not cleared."""
    return [
        name
        for name in records_of(context).names("members/")
        if (state := read_state(records_of(context), name)) != state.cleared()
    ]


# -- what a consumer gets ----------------------------------------------------------------------------------------------
def test_consumer_without_a_name_gets_what_is_sent_from_now_on(context: Context) -> None:
    """C10: each has a subscription of its own, on every member; nothing of it is in the table's metadata."""
    send(context, "before", topic="spread")
    version = domain_of(context).log("spread").refresh().version
    with context.consumer("spread") as one, context.consumer("spread", selector="JMSPriority > 6") as picky:
        send(context, "a", "b", "c", topic="spread")
        context.producer("spread").send(text="d", priority=9)
        assert sorted(map(str, texts_now(one, 5))) == ["None", "a", "b", "c", "d"]
        assert texts_now(picky, 2) == ["d", None]
        assert context.subscriptions("spread") == []
        assert domain_of(context).log("spread").refresh().version == version + 4  # the sends
    assert filled_records(context) == []
    assert not [name for name in records_of(context).names("subscribers/") if records_of(context).peek(name)]


def test_shared_subscription_that_is_not_durable_ends_with_its_last_consumer(context: Context) -> None:
    """C10: consumers share it by its name; a later one starts with messages sent from then on."""
    first = context.consumer("prices", subscription="s", durable=False, prefetch=1)
    second = context.consumer("prices", subscription="s", durable=False, prefetch=1)
    durable = context.consumer("prices", subscription="s")
    send(context, "1", "2", "3")
    assert texts_now(first, 1) == ["1"]
    first.close()
    wait_until(lambda: texts_now(second, 1) == ["2"], LIMIT_S)
    assert uses(context) == {"~s", "s"}
    second.close()
    assert uses(context) == {"s"}
    send(context, "4")
    with context.consumer("prices", subscription="s", durable=False) as third:
        send(context, "5")
        assert texts_now(third, 2) == ["5", None]
    assert texts_now(durable, 6) == ["1", "2", "3", "4", "5", None]


def test_unacknowledged_messages_end_with_the_subscription(context: Context) -> None:
    """C10: a claim of an earlier one of this name delivers nothing to the next."""
    with context.consumer("prices", subscription="s", durable=False) as first:
        send(context, "1", "2")
        assert first.receive(timeout=5) is not None
    assert filled_records(context) == []
    with context.consumer("prices", subscription="s", durable=False) as next_one:
        assert texts_now(next_one, 1) == [None]


# -- sharing -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("durable", [True, False])
def test_exclusive_consumer_excludes_others(context: Context, durable: bool) -> None:
    """C10: one exclusive consumer, or several that share; a refused one changes nothing."""

    def consumer(sharing: Any) -> Consumer:
        return context.consumer("prices", subscription="s", durable=durable, sharing=sharing)

    with consumer("exclusive"):
        for sharing in ("exclusive", "sharable"):
            with pytest.raises(SubscriptionInUseError, match="an exclusive consumer already"):
                consumer(sharing)
    with (
        consumer("sharable"),
        consumer("sharable"),
        pytest.raises(SubscriptionInUseError, match=r"2 consumer\(s\) already, and this consumer would be exclusive"),
    ):
        consumer("exclusive")
    with consumer("exclusive") as last:
        send(context, "x")
        assert texts_now(last, 2) == ["x", None]


def test_wrong_requests_are_refused(context: Context) -> None:
    """C10"""
    context.consumer("prices", subscription="s", durable=False, selector="a = 1")
    for named, text in (
        ({"destination": "orders", "durable": False}, "for a topic's subscription"),
        ({"destination": "orders", "sharing": "exclusive"}, "for a topic's subscription"),
        ({"destination": "prices", "sharing": "all"}, "sharing is 'all'"),
        ({"destination": "prices", "durable": True}, "needs `subscription`"),
        ({"destination": "prices", "starting_position": "earliest"}, "not durable starts with"),
        ({"destination": "prices", "subscription": "~s", "durable": False}, "subscription"),
        ({"destination": "prices", "subscription": "~s"}, "subscription"),
        ({"destination": "prices", "subscription": "s", "durable": False}, "with the selector 'a = 1', not without"),
    ):
        with pytest.raises(OptionError, match=text):
            context.consumer(**named)  # type: ignore[arg-type]
    assert uses(context) == {"~s"}


# -- client ids --------------------------------------------------------------------------------------------------------
def test_restricted_client_id_belongs_to_one_connection(context: Context) -> None:
    """C10: until it is closed; unrestricted ones are not in its way."""
    with connect(context.root, housekeeping=False, client_id="app"):
        with pytest.raises(InvalidClientIDException, match="'app' is in use by another connection"):
            connect(context.root, client_id="app")
        for _ in range(2):
            connect(context.root, housekeeping=False, client_id="app", client_id_policy="unrestricted")
        connect(context.root, housekeeping=False, client_id="other").close()
    connect(context.root, housekeeping=False, client_id="app").close()
    with pytest.raises(OptionError, match="client id"):
        connect(context.root, client_id="a b")


def test_subscription_belongs_to_the_client_id_and_its_policy(context: Context) -> None:
    """C10: durable or not, the same name of another client is another subscription; so it is for unsubscribe and browse."""
    makers = [
        context,
        connect(context.root, housekeeping=False, client_id="app"),
        connect(context.root, housekeeping=False, client_id="app", client_id_policy="unrestricted"),
        connect(context.root, housekeeping=False, client_id="app", client_id_policy="unrestricted"),
    ]
    durable = [one.consumer("prices", subscription="s") for one in makers]
    passing = [one.consumer("prices", subscription="s", durable=False) for one in makers]
    send(context, "x")
    assert [one.name for one in context.subscriptions("prices")] == ["app::s", "app:s", "s"]
    for consumers in (durable, passing):
        assert [texts_now(one, 1) for one in consumers[:2]] == [["x"], ["x"]]
        shared = consumers[2:]
        assert sorted(str(texts_now(one, 1)[0]) for one in shared) == ["None", "x"]
    for one in durable:
        one.close()
    send(context, "y")
    assert [message.text for message in makers[1].browser("prices", subscription="s")] == ["y"]
    makers[1].unsubscribe("prices", "s")
    assert [one.name for one in context.subscriptions("prices")] == ["app::s", "s"]
    for maker in makers[1:]:
        maker.close()


# -- purge and housekeeping --------------------------------------------------------------------------------------------
def test_purge_waits_for_subscriptions_that_are_not_durable(context: Context) -> None:
    """C10, C13: their messages stay until they are finished, also where the table has no subscription."""
    housekeeper = Housekeeper(domain_of(context), records_of(context), "prices")
    log = domain_of(context).log("prices")

    def purged() -> int:
        housekeeper.begin_round()
        report = purge(log, housekeeper.is_done, now=now_ms() + LATER_MS, live_names=housekeeper.live_names)
        return report.purged_messages

    send(context, "before")
    with context.consumer("prices") as alone:
        send(context, "1", "2")
        assert purged() == 1
        assert texts_now(alone, 1) == ["1"]
        assert purged() == 1
        assert plan_purge(domain_of(context), records_of(context), "prices", None, ()).deleted_files == 0
    assert purged() == 1
    housekeeper.close()


def test_purge_between_registration_and_floor_keeps_everything(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10, C13: a subscription is entered before it reads its floor; a purge fixes its snapshot before it reads the store.
    In each interleaving no message of the subscription is removed."""
    log = domain_of(context).log("prices")
    housekeeper = Housekeeper(domain_of(context), records_of(context), "prices")
    start_floors, later = subscriptions.start_floors, now_ms() + LATER_MS
    found: list[str | None] = []

    def beside(snapshot: Any, position: Any) -> Any:
        """The floor is being read while messages arrive and a purge runs."""
        floors = start_floors(snapshot, position)
        send(context, "after the floor")
        purge(log, housekeeper.is_done, now=later, live_names=housekeeper.live_names)
        return floors

    monkeypatch.setattr(subscriptions, "start_floors", beside)
    send(context, "before the floor")
    with context.consumer("prices") as consumer:
        found = texts_now(consumer, 2)
    assert found == ["after the floor", None]
    monkeypatch.undo()

    opened: list[Consumer] = []

    def live_names() -> list[str]:
        """The purge has fixed its snapshot: a subscription begins now, and more arrives."""
        names = housekeeper.live_names()
        if not opened:
            opened.append(context.consumer("prices"))
            send(context, "after the snapshot")
        return names

    purge(log, housekeeper.is_done, now=later, live_names=live_names)
    assert texts_now(opened[0], 2) == ["after the snapshot", None]
    housekeeper.close()


def test_housekeeping_clears_what_a_killed_consumer_leaves(context: Context) -> None:
    """C10: its subscription, the claims in it and its entry are removed; live ones stay."""
    if not isinstance(records_of(context), MemoryStore):
        pytest.skip("test_killed_process_leaves_nothing_behind does this with a process")
    dead, alive = context.consumer("prices"), context.consumer("prices", subscription="t", durable=False)
    send(context, "1", "2")
    assert texts_now(dead, 1) == ["1"]
    assert texts_now(alive, 1) == ["1"]
    for session in (members_of(subscriber_of(dead)).session, use_of(dead).session):  # type: ignore[union-attr]
        records_of(context).crash(session)
    assert uses(context) == {"~t"}
    with records_of(context).connect("housekeeping") as session:
        clear_leftovers(records_of(context), session, domain_of(context).log("prices"))
    assert [name.split("/")[2] for name in filled_records(context)] == ["~t"]
    assert set(records_of(context).peek(records_of(context).names("subscribers/")[0])) == {"~t"}
    with pytest.raises(ConsumerClosedException):
        texts_now(dead, 2)  # it may have fetched the second message before


def test_consumer_whose_subscription_has_ended_fails(context: Context) -> None:
    """C10: the process stood still, its subscription ended, and messages may be gone; it must not skip them silently."""
    if not isinstance(records_of(context), MemoryStore):
        pytest.skip("in memory a session can be ended alone")
    consumer = context.consumer("prices")
    records_of(context).crash(use_of(consumer).session)  # type: ignore[union-attr]
    with pytest.raises(ConsumerClosedException, match="ended while this process stood still"):
        consumer.receive(timeout=0)


_CLIENT = """
alone = context.consumer("prices")
shared = context.consumer("prices", subscription="s", durable=False, sharing="exclusive")
context.producer("prices").send(text="x")
assert alone.receive(timeout=20) and shared.receive(timeout=20)
"""


def test_killed_process_leaves_nothing_behind() -> None:
    """C10: after kill -9 the next housekeeping clears its subscriptions, and an exclusive one can be used again."""
    with memory_domain("file", prices="topic") as root, connect(root, housekeeping=False) as context:
        with killed_client(root, _CLIENT):
            assert uses(context) == {"~~1", "~s"}
            with pytest.raises(SubscriptionInUseError):
                context.consumer("prices", subscription="s", durable=False)
        wait_until(lambda: uses(context) == set(), LIMIT_S)
        assert filled_records(context) != []
        with records_of(context).connect("housekeeping") as session:
            clear_leftovers(records_of(context), session, domain_of(context).log("prices"))
        assert filled_records(context) == []
        assert records_of(context).peek(records_of(context).names("subscribers/")[0]) == {}
        context.consumer("prices", subscription="s", durable=False).close()


# -- what people see ---------------------------------------------------------------------------------------------------
def test_views_show_subscriptions_that_are_not_durable(context: Context) -> None:
    """C10, C14: with position and backlog while they live."""
    alone = context.consumer("prices")
    send(context, "1", "2")
    assert texts_now(alone, 1) == ["1"]
    (row,) = views.subscriptions(domain_of(context), records_of(context), "prices")
    assert (row.subscription, row.backlog) == ("~~1", 1)
    alone.close()
    assert views.subscriptions(domain_of(context), records_of(context), "prices") == []
    assert purge_files(domain_of(context), records_of(context), "prices").purged_files == 0
