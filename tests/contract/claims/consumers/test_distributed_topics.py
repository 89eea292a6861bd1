"""Distributed topics: partitioned and replicated, on one server and on several (D6, D7, C10, D10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.purge import purge_files
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.records import subscriptions
from spark_jms.claims.records.members import Members
from spark_jms.claims.records.shared import members_kind
from spark_jms.claims.servers.stores import active_subscriptions, read_state
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client import Consumer, Context
from spark_jms.core.destinations.destination import FORMAT_VERSION, Destination
from spark_jms.core.records.batch import Batch, Limits, MemberPick
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import (
    ConsumerClosedException,
    FormatVersionError,
    InvalidDestinationError,
    MemberLostException,
    MemberRemovalError,
    MemberUnavailableError,
    ModuleFileError,
    ServerDownError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.store import OutcomeUnknownError
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.servers import SERVERS, Away, applied
from tests.harness.messages.source_steps import LIMIT, next_offset, texts_of


def module(*servers: str, **more: Any) -> dict[str, Any]:
    prices = {"kind": "distributed-topic", "servers": list(servers), "forwarding": "replicated", **more}
    return {"servers": SERVERS, "destinations": {"prices": prices}}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return applied(tmp_path, module("a", "b", "c"))


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


def send(context: Context, *texts: str, to: str = "prices", **more: Any) -> None:
    with context.producer(to) as producer:
        for text in texts:
            producer.send(text=text, **more)


def received(consumer: Consumer, count: int) -> list[str]:
    """So many texts, sorted and acknowledged; no message is behind them."""
    found = []
    while len(found) < count and (message := consumer.receive(30)) is not None:
        found.append(str(message.text))
        message.acknowledge()
    more = consumer.receive(0)
    assert more is None, f"{more.text} after {found}"
    return sorted(found)


def declared(context: Context) -> Destination:
    return domain_of(context).log("prices").refresh().destination


def uses(context: Context) -> set[str]:
    return set(active_subscriptions(records_of(context), domain_of(context).log("prices").refresh().table_id))


def messages_in_files(context: Context) -> int:
    return sum(file.rows for file in domain_of(context).log("prices").refresh().files.values())


# -- partitioned (D7) --------------------------------------------------------------------------------------------------
def test_topics_are_partitioned_unless_they_say_otherwise(tmp_path: Path) -> None:
    """D7: also tables that do not have the setting. A durable subscription may be made by the topic's name, and has positions
    on every server."""
    where = str(tmp_path / "root")
    spark_jms.apply(
        where, {"servers": SERVERS, "destinations": {"prices": {"kind": "distributed-topic", "servers": ["a", "b"]}}}
    )
    stored = Domain(where).log("prices").refresh().destination.to_configuration()
    assert (stored["jmsq.forwarding"], stored["jmsq.formatVersion"]) == ("partitioned", "2")
    older = {key: value for key, value in stored.items() if key not in ("jmsq.forwarding", "jmsq.storeEnabled")}
    assert not Destination.from_configuration(older, "prices").is_replicated
    with spark_jms.connect(where) as context, context.consumer("prices", subscription="billing") as consumer:
        send(context, *"1234")
        assert received(consumer, 4) == [*"1234"]
        rows = views.subscriptions(domain_of(context), records_of(context), "prices")
        assert [(row.subscription, row.member, row.last_sequence) for row in rows] == [
            ("billing", 0, 2),
            ("billing", 1, 2),
        ]


# -- replicated: declared ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"kind": "distributed-topic", "forwarding": "replicated"}, "forwarding is replicated, but .* with `servers`"),
        ({"kind": "topic", "servers": ["a"], "forwarding": "replicated"}, "forwarding is replicated, but"),
        (
            {"kind": "distributed-queue", "servers": ["a", "b"], "forwarding": "replicated"},
            "forwarding is replicated, but",
        ),
        ({"kind": "distributed-topic", "servers": ["a"], "storeEnabled": False}, "storeEnabled is false, but"),
        (
            {"kind": "distributed-topic", "servers": ["a"], "forwarding": "both"},
            "must be one of partitioned, replicated",
        ),
    ],
)
def test_forwarding_is_for_distributed_topics_on_servers(tmp_path: Path, settings: Any, refusal: str) -> None:
    """D6: refused by name elsewhere."""
    with pytest.raises(ModuleFileError, match=refusal):
        spark_jms.apply(str(tmp_path / "root"), {"servers": SERVERS, "destinations": {"prices": settings}})


def test_forwarding_of_a_topic_stays(root: str) -> None:
    """D6: the positions of its subscriptions are where the forwarding says."""
    with pytest.raises(
        InvalidDestinationError, match="replicated distributed topic and cannot become a partitioned one"
    ):
        spark_jms.apply(root, module("a", "b", "c", forwarding="partitioned"))


def test_replicated_table_has_a_format_of_its_own(root: str) -> None:
    """D6, C16: an earlier spark-jms would look for positions in the wrong place, so it must refuse the table."""
    stored = Domain(root).log("prices").refresh().destination.to_configuration()
    assert stored["jmsq.formatVersion"] == "3"
    with pytest.raises(FormatVersionError):
        Destination.from_configuration({**stored, "jmsq.formatVersion": str(FORMAT_VERSION + 1)}, "prices")


# -- replicated: subscriptions -----------------------------------------------------------------------------------------
def test_every_subscription_on_every_server_gets_every_message(context: Context) -> None:
    """D6, C10: durable and not, on each server; the message is stored once, and the positions are in the server's store."""
    durable = [context.consumer(f"{server}@prices", subscription="billing") for server in "abc"]
    others = [
        context.consumer("prices"),
        context.consumer("b@prices"),
        context.consumer("prices", subscription="s", durable=False),
    ]
    send(context, *"123456")
    send(context, "7", to="c@prices")
    assert messages_in_files(context) == 7
    for consumer in (*durable, *others):
        assert received(consumer, 7) == [*"1234567"]
    rows = views.subscriptions(domain_of(context), records_of(context), "prices")
    assert {row.subscription for row in rows} >= {"a@billing", "b@billing", "c@billing"}
    assert all(row.backlog == 0 for row in rows)
    table_id = domain_of(context).log("prices").snapshot.table_id
    for server in "abc":
        names = records_of(context).names(f"@{server}/members/{table_id}/{server}@billing/")
        assert len(names) == 3, "a record set for each member"
    assert records_of(context).names("members/") == []


def test_durable_subscription_is_made_on_a_server(context: Context) -> None:
    """D6: refused on the topic's name, allowed on a member; billing of another server is another subscription."""
    with pytest.raises(InvalidDestinationError, match="durable subscription on all its servers: make it on one"):
        context.consumer("prices", subscription="billing")
    with pytest.raises(InvalidDestinationError, match="no member on a server 'x'"):
        context.consumer("x@prices", subscription="billing")
    context.consumer("a@prices", subscription="billing").close()
    send(context, "1")
    context.consumer("b@prices", subscription="billing").close()
    send(context, "2")
    with (
        context.consumer("a@prices", subscription="billing") as on_a,
        context.consumer("b@prices", subscription="billing") as on_b,
    ):
        assert (received(on_a, 2), received(on_b, 1)) == (["1", "2"], ["2"])
    assert [found.name for found in context.subscriptions("prices")] == ["a@billing", "b@billing"]
    context.unsubscribe("a@prices", "billing")
    context.unsubscribe("prices", "b@billing")
    assert context.subscriptions("prices") == []


def test_subscription_of_a_client_id_is_made_on_a_server(root: str) -> None:
    """D6, C10: the server comes before the client id."""
    with spark_jms.connect(root, client_id="app", housekeeping=False) as context:
        with context.consumer("a@prices", subscription="billing") as consumer:
            send(context, "1")
            assert received(consumer, 1) == ["1"]
        assert [found.name for found in context.subscriptions("prices")] == ["a@app:billing"]
        context.unsubscribe("a@prices", "billing")
        assert context.subscriptions("prices") == []


def test_consumers_share_a_subscription_that_is_not_durable(context: Context) -> None:
    """D6, C10: consumers that name it go to the server that has it, and leave nothing behind."""
    first = context.consumer("prices", subscription="s", durable=False, prefetch=1)
    (name,) = uses(context)
    others = [context.consumer("prices", subscription="s", durable=False, prefetch=1) for _ in range(2)]
    assert uses(context) == {name}
    send(context, *"123")
    found: list[str] = []

    def look() -> bool:
        for consumer in (first, *others):
            if (message := consumer.receive(0)) is not None:
                found.append(str(message.text))
                message.acknowledge()
        return len(found) >= 3

    wait_until(look)
    assert sorted(found) == [*"123"]
    for consumer in (first, *others):
        consumer.close()
    assert uses(context) == set()
    server = name[1:].split("@")[0]
    states = [read_state(records_of(context), record) for record in records_of(context).names(f"@{server}/members/")]
    assert all(state == RecordSet(position=state.position) for state in states)


def test_consumers_of_their_own_are_spread_over_the_servers(context: Context) -> None:
    """D6: a new one goes to the server with the fewest."""
    consumers = [context.consumer("prices") for _ in range(6)]
    assert sorted(uses(context)) == [f"~~{server}@{number}" for server in "abc" for number in (1, 2)]
    for consumer in consumers:
        consumer.close()


def test_topic_without_stores_has_no_durable_subscriptions(tmp_path: Path) -> None:
    """D6: storeEnabled: false; and it cannot be set while there are some."""
    where = applied(tmp_path, module("a", "b"))
    with spark_jms.connect(where, housekeeping=False) as context:
        context.consumer("a@prices", subscription="billing").close()
        with pytest.raises(InvalidDestinationError, match="storeEnabled: false, so its subscriptions are not durable"):
            spark_jms.apply(where, module("a", "b", storeEnabled=False))
        context.unsubscribe("a@prices", "billing")
        spark_jms.apply(where, module("a", "b", storeEnabled=False))
        with pytest.raises(InvalidDestinationError, match="storeEnabled: false, so its subscriptions are not durable"):
            context.consumer("a@prices", subscription="billing")


# -- replicated: servers that are down ---------------------------------------------------------------------------------
def test_down_server_gets_the_persistent_messages_of_its_absence(context: Context) -> None:
    """D6: when it is back its subscriptions get them, and skip the others; the subscriptions of other servers get all."""
    there = context.consumer("b@prices", subscription="billing")
    context.consumer("a@prices", subscription="billing").close()
    send(context, "before", delivery_mode="NON_PERSISTENT")
    stop_server(domain_of(context), "a")
    send(context, "kept 1", "kept 2", "kept 3")
    send(context, "lost 1", "lost 2", "lost 3", delivery_mode="NON_PERSISTENT")
    start_server(domain_of(context), "a")
    send(context, "after", delivery_mode="NON_PERSISTENT")
    back = context.consumer("a@prices", subscription="billing")
    assert received(back, 5) == ["after", "before", "kept 1", "kept 2", "kept 3"]
    assert received(there, 8) == ["after", "before", "kept 1", "kept 2", "kept 3", "lost 1", "lost 2", "lost 3"]
    assert [row.backlog for row in views.subscriptions(domain_of(context), records_of(context), "prices")] == [0] * 6


def test_browser_and_move_leave_out_what_a_server_has_missed(context: Context) -> None:
    """D6: they show and take what the subscription would get."""
    context.consumer("a@prices", subscription="billing").close()
    stop_server(domain_of(context), "a")
    send(context, "kept")
    send(context, "lost", delivery_mode="NON_PERSISTENT")
    start_server(domain_of(context), "a")
    assert [message.text for message in context.browser("prices", subscription="a@billing")] == ["kept"]
    assert [message.text for message in context.browser("a@prices", subscription="billing")] == ["kept"]
    assert sorted(str(message.text) for message in context.browser("prices")) == ["kept", "lost"]


def test_outages_outlive_the_commits_that_wrote_them(context: Context) -> None:
    """D6: they are in the table's metadata, and end when their messages are removed."""
    context.consumer("a@prices", subscription="billing").close()
    stop_server(domain_of(context), "a")
    send(context, "1", "2", "3", delivery_mode="NON_PERSISTENT")
    start_server(domain_of(context), "a")
    configuration = domain_of(context).log("prices").refresh().metadata["configuration"]
    assert configuration["jmsq.outages"] == '[["a", 0, 1, 1], ["a", 1, 1, 1], ["a", 2, 1, 1]]'
    with context.consumer("a@prices", subscription="billing") as consumer:
        assert received(consumer, 0) == []
    assert purge_files(domain_of(context), records_of(context), "prices").purged_messages == 3
    stop_server(domain_of(context), "b")
    assert [row[0] for row in declared(context).outages.to_json()] == ["b"] * 3


def test_sends_fail_only_when_all_servers_are_down(context: Context) -> None:
    """D6: one server that is up is enough, also for a unit of order and for a member of a server that is down."""
    consumer = context.consumer("c@prices", subscription="billing")
    for server in "ab":
        stop_server(domain_of(context), server)
    for n in range(4):
        send(context, f"unit {n}", group_id=str(n))
    send(context, "to a", to="a@prices")
    assert received(consumer, 5) == ["to a", "unit 0", "unit 1", "unit 2", "unit 3"]
    stop_server(domain_of(context), "c")
    with pytest.raises(ServerDownError):
        send(context, "nobody")
    start_server(domain_of(context), "b")
    send(context, "again")


def test_topic_without_stores_loses_what_was_sent_meanwhile(tmp_path: Path) -> None:
    """D6: with storeEnabled: false, whatever the delivery mode."""
    where = applied(tmp_path, module("a", "b", storeEnabled=False))
    with spark_jms.connect(where, housekeeping=False) as context:
        consumer = context.consumer("a@prices")  # it does not look while the server is down
        send(context, "before")
        stop_server(domain_of(context), "a")
        send(context, "meanwhile")
        start_server(domain_of(context), "a")
        send(context, "after")
        assert received(consumer, 2) == ["after", "before"]


# -- replicated: loss of the server ------------------------------------------------------------------------------------
def test_subscriber_that_loses_its_server_is_made_again_elsewhere(context: Context) -> None:
    """D6, D3: the error reaches the caller, and the new one is on a server that is up."""
    consumer = context.consumer("prices")
    (name,) = uses(context)
    server = name[2:].split("@")[0]
    stop_server(domain_of(context), server)
    with pytest.raises(MemberLostException, match=f"lost {server}@prices"):
        consumer.receive(5)
    consumer.close()
    again = context.consumer("prices")
    assert {found[2:].split("@")[0] for found in uses(context)} <= set("abc") - {server}
    send(context, "1")
    assert received(again, 1) == ["1"]


def test_lost_server_closes_a_listener(context: Context) -> None:
    """D6, D3: ConsumerClosedException reaches the exception listener."""
    errors: list[Exception] = []
    context.consumer("a@prices", listener=print, exception_listener=errors.append)
    stop_server(domain_of(context), "a")
    wait_until(lambda: bool(errors))
    assert isinstance(errors[0], ConsumerClosedException)


def test_no_subscription_while_no_server_answers(context: Context, root: str) -> None:
    """D6: creation fails by name, and leaves no use behind."""
    with Away(root, "a"), Away(root, "b"):
        stop_server(domain_of(context), "c")
        with spark_jms.connect(root, housekeeping=False) as other:
            with pytest.raises(MemberUnavailableError, match="no server can take the subscription .*c: it is stopped"):
                other.consumer("prices")
            with pytest.raises(MemberUnavailableError, match="no server can take the subscription .a: "):
                other.consumer("a@prices")
    assert uses(context) == set()


# -- replicated: purge and servers that leave --------------------------------------------------------------------------
def test_purge_waits_for_a_server_that_cannot_be_reached(context: Context, root: str) -> None:
    """D6: its subscriptions count as unfinished; when it is back the purge goes on."""
    consumers = [context.consumer(f"{server}@prices", subscription="billing") for server in "ab"]
    send(context, *"123")
    for consumer in consumers:
        assert received(consumer, 3) == [*"123"]
    with Away(root, "b"), spark_jms.connect(root, housekeeping=False) as other:
        assert purge_files(domain_of(other), records_of(other), "prices").purged_messages == 0
        assert messages_in_files(context) == 3
        housekeeper = Housekeeper(domain_of(other), records_of(other), "prices")
        wait_until(housekeeper.run)
        assert any("server b" in failure.what for failure in housekeeper.health.failures.values())
        housekeeper.close()
    assert purge_files(domain_of(context), records_of(context), "prices").purged_messages == 3


def test_server_with_a_durable_subscription_is_not_removed(context: Context, root: str) -> None:
    """D6, D1: it is named; without the subscription the server leaves, and a server that joins has the next messages."""
    context.consumer("a@prices", subscription="billing").close()
    with pytest.raises(MemberRemovalError, match="durable subscription a@billing on server a"):
        spark_jms.apply(root, module("b", "c"))
    context.unsubscribe("a@prices", "billing")
    with context.consumer("b@prices", subscription="billing") as consumer:
        spark_jms.apply(root, module("b", "c"))
        send(context, *"12")
        spark_jms.apply(root, module("b", "c", "a"))
        with context.consumer("a@prices", subscription="billing") as joined:
            send(context, *"345")
            assert received(joined, 3) == [*"345"]
        assert received(consumer, 5) == [*"12345"]


# -- replicated: Spark -------------------------------------------------------------------------------------------------
def reader(root: str, **more: str) -> JmsqStreamReader:
    given = {"root": root, "destination": "a@prices", "subscription": "billing", **more}
    return JmsqStreamReader(parse_options(given))


def test_query_on_a_server_waits_for_it(root: str, context: Context) -> None:
    """D6, C5: its batches have the messages of all members; while its server is away it waits, and goes on with what was sent
    meanwhile. A query on the topic's name, which needs a durable subscription, is refused."""
    with pytest.raises(InvalidDestinationError, match="durable subscription on all its servers"):
        reader(root, destination="prices").initialOffset()
    source = reader(root)
    start = source.initialOffset()
    assert source.latestOffset(start, LIMIT) == start, "the first offset only names the consumer"
    send(context, *"123")
    first = next_offset(source, start)
    assert texts_of(source, start, first) == [*"123"]
    with Away(root, "a"):
        send(context, *"456")
        wait_until(lambda: source.latestOffset(first, LIMIT) == first and bool(source._subscriber.away()))  # type: ignore[union-attr]
    second = next_offset(source, first)
    assert texts_of(source, first, second) == [*"456"]
    source.stop()
    again = reader(root)
    assert texts_of(again, first, second) == [*"456"], "the same batch after a restart"
    send(context, "7")
    third = next_offset(again, second)
    assert texts_of(again, second, third) == ["7"]
    again.stop()


# -- lost answers, and members that are removed ------------------------------------------------------------------------
def test_claim_whose_answer_is_lost_comes_again(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4, D6, C9: the server has the claim of a client that never heard of it; the client gets its messages in its next
    session there, flagged."""
    kind = members_kind()
    commit, failed = kind.commit, list[bool]()

    def forgetful(self: Members, changed: Any, progress: Any = None) -> None:
        claims = any(state.claims for state in changed.values())
        commit(self, changed, progress)
        if claims and not failed:
            failed.append(True)
            raise OutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(kind, "commit", forgetful)
    context.consumer("a@prices", subscription="billing").close()
    with spark_jms.connect(context.root, housekeeping=False) as other:
        consumer = Subscriber(
            domain_of(other), records_of(other), "prices", "a@billing", "client", ConsumerSettings(replayable=False)
        )
        send(context, "1")
        found: list[MemberPick] = []

        def look() -> bool:
            batch = consumer.next_batch(Batch("client"), Limits())
            found.extend(batch.members.values() if batch else ())
            return bool(found)

        wait_until(look)
        assert failed
        assert [(pick.picks.count, list(pick.redelivered)) for pick in found] == [(1, [2])]
        consumer.close()


def test_messages_of_a_removed_member_are_purged(tmp_path: Path) -> None:
    """D1, C13: it was finished for all subscriptions when it was removed, so its files go like others; also of a partitioned
    topic, whose record sets on the removed server are not looked at any more."""
    where = applied(tmp_path, module("a", "b", "c", forwarding="partitioned"))
    with spark_jms.connect(where, housekeeping=False) as context:
        with context.consumer("prices", subscription="billing") as consumer:
            send(context, *"123")
            assert received(consumer, 3) == [*"123"]
        spark_jms.apply(where, module("b", "c", forwarding="partitioned"))
        assert messages_in_files(context) == 3
        assert purge_files(domain_of(context), records_of(context), "prices").purged_messages == 3


def test_store_that_fails_at_the_end_is_left_to_housekeeping(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10, D6: closing a consumer raises nothing of the store's, and its subscription has ended."""

    def fails(*_: Any) -> None:
        raise OutcomeUnknownError("the answer was lost")

    consumer = context.consumer("prices")
    send(context, "1", "2", "3")
    assert received(consumer, 3) == ["1", "2", "3"]
    monkeypatch.setattr(subscriptions, "_clear", fails)
    consumer.close()
    assert uses(context) == set()
