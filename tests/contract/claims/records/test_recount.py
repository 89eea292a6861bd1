"""The acknowledgement table tells how every message ended: it equals a recount of what was done, and the usage history equals a
recount of the tables (T3, T6, M12)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jms import connect
from spark_jms.admin.purge import drop_backlog
from spark_jms.admin.transfer import MoveOrder, RedriveOrder, move, redrive
from spark_jms.claims.failures.error_destination import SET_ASIDE
from spark_jms.claims.servers.stores import state_of
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client import Context
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION
from spark_jms.core.messages.columns import normalise
from spark_jms.core.messages.properties import TYPES_PROPERTY
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.endings import FORWARDER, counts_apart, kind_of, split_claim
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send as commit_send
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, records_of, subscriber_of
from tests.harness.domains.expirations import Later, Search, send
from tests.harness.domains.usage_recount import check_usage
from tests.harness.messages.shorthands import reject_next, send_texts, texts, texts_now
from tests.harness.processes.killed import killed_client

Account = dict[tuple[str, str, str], int]  # (subscription, kind, detail) -> messages
NO_RETRY: dict[str, Any] = {"kind": "queue", "redelivery_limit": 0}
TOPIC: dict[str, Any] = {"kind": "topic"}
DESTINATIONS: dict[str, Any] = {
    "orders": "queue",
    "plain": "queue",
    "logged": {"kind": "queue", "expiration_policy": "Log"},
    "returned": {"kind": "queue", "expiration_policy": "Redirect", "error_destination": "failed"},
    "dropping": NO_RETRY,
    "failing": {**NO_RETRY, "error_destination": "failed"},
    "failed": "queue",
    "spread": {"kind": "distributed-queue", "members": 3},
    "prices": TOPIC,
    "few": {**TOPIC, "messages_limit_override": 2},
}


@pytest.fixture
def context() -> Iterator[Context]:
    """Behind each test the usage history is that of the tables."""
    with memory_domain("file", **DESTINATIONS) as root, connect(root, housekeeping=False) as made:
        yield made
        assert "sent" in check_usage(domain_of(made), records_of(made))


def housekeeping(context: Context, destination: str, *, clean: bool = False) -> None:
    """What is done where no consumer lives; `clean`: with what is done once a minute."""
    housekeeper = Housekeeper(domain_of(context), records_of(context), destination)
    try:
        if clean:
            housekeeper.rounds.CLEAN_UP_EVERY_S = 0  # type: ignore[misc]
        for _ in range(2):
            assert housekeeper.run()
        assert not housekeeper.health.failures
    finally:
        housekeeper.close()


def rows_of(context: Context, destination: str) -> list[dict[str, Any]]:
    """Of the acknowledgement table, as any program reads it."""
    table = domain_of(context).acknowledgements(destination)
    found = []
    for file in table.refresh().files.values():
        with table.storage.open_input(file.path) as source:
            found += [{**row, "member": file.member} for row in pq.read_table(source).to_pylist()]
    return found


def account(context: Context, destination: str) -> Account:
    found: Counter[tuple[str, str, str]] = Counter()
    for row in rows_of(context, destination):
        detail = split_claim(row["consumer"], row["claim"])[1]
        if detail.startswith("transfer/"):
            detail = "transaction"
        found[row["subscription"], kind_of(row["consumer"]), detail] += row["messages"]
    return dict(found)


def check_balance(context: Context, destination: str, *subscriptions: str) -> None:
    """For each subscription and member: what was sent to it, less what has ended, is what is left; and no message ends twice."""
    snapshot = domain_of(context).log(destination).refresh()
    rows = rows_of(context, destination)
    for name in subscriptions or (QUEUE_SUBSCRIPTION,):
        for member in snapshot.destination.member_ids:
            last = snapshot.last_sequence(member)
            mine = [row for row in rows if (row["subscription"], row["member"]) == (name, member)]
            ended = sum(row["messages"] for row in mine)
            state = state_of(records_of(context), snapshot, name, member)
            start = snapshot.destination.start_floor(name, member)
            assert last - start - ended == state.unfinished(1, last).count
            exact = [Ranges.from_json(json.loads(row["ranges"])) for row in mine if not counts_apart(row["consumer"])]
            assert sum(one.count for one in exact) == Ranges.of(*(pair for one in exact for pair in one)).count


def test_consumers_transactions_and_administrators(context: Context) -> None:
    """T3, M12: acknowledged by a client, in a transaction that commits and one that does not; moved, forwarded, purged."""
    send_texts(context, *map(str, range(12)))
    with context.consumer("orders", acknowledge="individual") as consumer:
        for _ in range(2):
            message = consumer.receive(10)
            assert message is not None
            message.acknowledge()
    with context.transacted_session() as session:
        taken = session.consumer("orders")
        assert taken.receive(10) is not None
        session.rollback()
        assert taken.receive(10) is not None
        assert taken.receive(10) is not None
        session.producer("spread").send(text="in a transaction")
        session.commit()
    domain, store = domain_of(context), records_of(context)
    assert move(domain, store, MoveOrder("orders", "spread", limit=3), wait_s=5).moved == 3
    assert move(domain, store, MoveOrder("orders", "failed", limit=1, actor=FORWARDER), wait_s=5).moved == 1
    assert drop_backlog(domain, store, "orders", None, [0], 5).dropped == 4
    housekeeping(context, "orders")
    assert account(context, "orders") == {
        ("-", "finished", ""): 2,
        ("-", "finished", "transaction"): 2,
        ("-", "moved", "spread"): 3,
        ("-", "moved", "failed"): 1,
        ("-", "purged", ""): 4,
    }
    check_balance(context, "orders")
    housekeeping(context, "spread")
    assert account(context, "spread") == {}
    check_balance(context, "spread")


def test_expirations_of_all_policies(context: Context) -> None:
    """T6: by the plan of a consumer and by the search of a process; no consumer needs to come for the rows."""
    for name in ("plain", "logged", "returned"):
        send(context, name, "1", "2", "3")
        send(context, name, "lasts", time_to_live=None)
    Search(context, "plain").run()
    Search(context, "returned").run()
    later = Later(context, "logged")
    assert later.batch()[1] == [4]
    later.subscriber.close()
    for name, detail in (("plain", "discard"), ("logged", "log"), ("returned", "failed")):
        housekeeping(context, name)
        assert account(context, name) == {("-", "expired", detail): 3}
        check_balance(context, name)
    assert redrive(domain_of(context), records_of(context), RedriveOrder("failed"), wait_s=5).messages == {
        "returned": 3
    }
    housekeeping(context, "failed")
    assert account(context, "failed") == {("-", "moved", "returned"): 3}


def test_failed_messages(context: Context) -> None:
    """C8, M12: delivered too often, discarded or moved; set aside is told from acknowledged."""
    for name in ("dropping", "failing"):
        context.producer(name).send_many({"text": text} for text in ("a", "b"))
        with context.consumer(name) as consumer:
            reject_next(consumer, 1)
            wait_until(lambda consumer=consumer: texts_now(consumer, 1) == ["b"])
        housekeeping(context, name)
        check_balance(context, name)
    assert account(context, "dropping") == {("-", "dropped", ""): 1, ("-", "finished", ""): 1}
    assert account(context, "failing") == {("-", "dropped", "failed"): 1, ("-", "finished", ""): 1}
    plant_undecodable(context, "plain")
    with context.consumer("plain", acknowledge="auto") as consumer:
        assert [m.text for m in consumer.messages(idle_timeout=0.5)] == ["0", "2"]
    housekeeping(context, "plain")
    assert account(context, "plain") == {("-", "finished", ""): 2, ("-", "aside", SET_ASIDE): 1}


def plant_undecodable(context: Context, destination: str) -> None:
    """Three messages, of which the second cannot be decoded."""
    log = domain_of(context).log(destination)
    writer = MessageWriter(log.storage, log.refresh().destination, 0)
    maps = pa.array([[], [(TYPES_PROPERTY, "a:int"), ("a", "x")], []], pa.map_(pa.string(), pa.string()))
    bare = pa.RecordBatch.from_arrays([pa.array(["0", "1", "2"])], ["text"])
    whole = normalise(bare, 1, 10**6)
    writer.write_normalised(whole.set_column(whole.schema.names.index("properties"), "properties", maps))
    commit_send(log, writer.close(), log.snapshot.route_id)


def test_subscriptions_of_a_topic(context: Context) -> None:
    """C10, D6, T4: refused by a selector, over a limit, left by a subscription that was dropped and by one that was not durable."""
    context.consumer("prices", subscription="picky", selector="JMSPriority > 4").close()
    context.consumer("prices", subscription="gone").close()
    context.consumer("few", subscription="s").close()
    with context.consumer("prices") as passing:
        producer = context.producer("prices")
        for n in range(50):
            producer.send(text=str(n), priority=9 if n % 2 else 1)
        assert texts(passing, 1) == ["0"]
        own = subscriber_of(passing).subscription
    with context.consumer("prices", subscription="picky", selector="JMSPriority > 4") as picky:
        assert texts_now(picky, 26) == [*(str(n) for n in range(1, 50, 2)), None]
    rows = views.droppable_subscription(domain_of(context), records_of(context), "prices", "gone")
    views.drop_subscription(domain_of(context), records_of(context), rows, 5)
    context.producer("few").send_many({"text": str(n)} for n in range(7))
    for name in ("prices", "few"):
        housekeeping(context, name, clean=True)
    assert account(context, "prices") == {
        ("picky", "finished", ""): 25,
        ("picky", "skipped", "refused"): 25,
        ("gone", "ended", "dropped"): 50,
        (own, "ended", "over"): 50,
    }
    check_balance(context, "prices", "picky")
    housekeeping(context, "few")
    assert account(context, "few") == {("s", "dropped", ""): 5}
    check_balance(context, "few", "s")


_CLIENT = """
context.producer("spread").send_many({"text": str(n)} for n in range(9))
consumer = context.consumer("spread", acknowledge="individual")
for _ in range(6):
    consumer.receive(20).acknowledge()
"""


def test_outbox_of_a_killed_consumer(context: Context) -> None:
    """C5, M12: its acknowledgements reach their table without any other consumer, each once."""
    with killed_client(domain_of(context).root, _CLIENT):
        pass
    wait_until(lambda: not [one for one in records_of(context).sessions().values() if "spread" in one.label])
    for _ in range(2):
        housekeeping(context, "spread")
        assert account(context, "spread") == {("-", "finished", ""): 6}
        check_balance(context, "spread")
