"""How soon senders see room in a quota, whom they wait for, and which destinations take room (T1, T2)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_jms import apply, connect
from spark_jms.admin.quota import quotas
from spark_jms.claims.upkeep import usage
from spark_jms.claims.upkeep.usage import UsagePublisher
from spark_jms.core.destinations.routing import ANY_MEMBER
from spark_jms.errors import LargerThanQuotaError, QuotaExceededError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.limits.usage import USAGE
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.spark.options import parse_options
from spark_jms.spark.sink import JmsqStreamWriter, StagedMessage
from spark_jms.store import MemoryStore
from spark_jms.testing import wait_until
from spark_jms.testing.inside import domain_of
from tests.harness.domains.quotas import LIMIT_S, QUEUE, made, receive, send_later, state_of, waiting


@pytest.fixture
def root(tmp_path: Any) -> Iterator[str]:
    yield str(tmp_path)
    MemoryStore.forget(f"quotas-{tmp_path.name}")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers publish nothing, as between two of their publications."""
    monkeypatch.setattr(UsagePublisher, "publish", lambda self, paced=True: None)


# -- room is seen at once --------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("send_timeout", [0, "10 ms"])
def test_sender_that_finds_no_room_looks_itself(root: str, send_timeout: Any) -> None:
    """T1, T2: what consumers have finished is room before they publish it, also for a sender that does not wait."""
    made(root, {"messagesMaximum": 3}, more=QUEUE)
    with connect(root, housekeeping=False) as context, connect(root, housekeeping=False) as other:
        producer = context.producer("orders", send_timeout=send_timeout)
        producer.send_many([{"text": "x"}] * 2)
        context.producer("more").send(text="x")
        receive(other, 1, "more")
        producer.send(text="y")
        receive(other, 2)
        producer.send_many([{"text": "z"}] * 2)
        with pytest.raises(QuotaExceededError):
            producer.send(text="no")
        assert state_of(context).requests == ()


@pytest.mark.usefixtures("silent")
def test_waiting_sender_looks_itself(root: str) -> None:
    """T1, T2: as long as it waits."""
    made(root, {"messagesMaximum": 2})
    with connect(root, housekeeping=False) as context, ThreadPoolExecutor(1) as threads:
        context.producer("orders").send_many([{"text": "x"}] * 2)
        late = send_later(threads, context, "late")
        wait_until(waiting(context, 1), LIMIT_S)
        with connect(root, housekeeping=False) as other:
            receive(other, 1)
        late.result(LIMIT_S)


@pytest.mark.usefixtures("silent")
def test_batch_of_a_query_looks_itself(root: str) -> None:
    """T1, T2, C5: the sink has no store; it opens it when it finds no room."""
    made(root, {"messagesMaximum": 2})
    schema = StructType([StructField("text", StringType())])

    def attempt(batch: int) -> None:
        log = Domain(root).log("orders")
        writer = MessageWriter(log.storage, log.refresh().destination, 0)
        writer.write(pa.RecordBatch.from_pydict({"text": ["batch"]}))
        given = parse_options({"root": root, "destination": "orders", "sendTimeout": "0"})
        message = StagedMessage(0, "q", log.snapshot.route_id, writer.close(), ANY_MEMBER)
        JmsqStreamWriter(given, schema, False).commit([message], batch)

    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many([{"text": "x"}] * 2)
        with pytest.raises(QuotaExceededError):
            attempt(1)
        receive(context, 1)
        attempt(1)
        assert state_of(context).used.messages == 2


def test_sender_does_not_wait_for_a_store_that_hangs(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T1, T2: it goes by what is published then, and the log says so once."""
    made(root, {"messagesMaximum": 1})
    hung, answered = threading.Event(), threading.Event()
    state_of_member = usage.state_of

    def hangs(*arguments: Any) -> Any:
        hung.set()
        assert answered.wait(LIMIT_S)
        return state_of_member(*arguments)

    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send(text="x")
        monkeypatch.setattr(usage, "state_of", hangs)
        for _ in range(2):
            with pytest.raises(QuotaExceededError):
                producer.send(text="no")
        assert hung.is_set()
        assert caplog.text.count("go by what is published: a store does not answer") == 1
        answered.set()
        receive(context, 1)
        wait_until(lambda: domain_of(context).usage_of("orders").messages == 0, LIMIT_S)
        producer.send(text="y")


# -- the order of those that wait ---------------------------------------------------------------------------------------------------
def test_large_send_does_not_block_other_destinations_of_the_quota(root: str) -> None:
    """T1, T2: FIFO holds among the sends to one destination, as the texts have it."""
    made(root, {"messagesMaximum": 4}, more=QUEUE)
    with connect(root) as context, ThreadPoolExecutor(2) as threads:
        context.producer("orders").send_many([{"text": "old"}] * 3)
        large = send_later(threads, context, "large", 4)
        wait_until(waiting(context, 1), LIMIT_S)
        with pytest.raises(QuotaExceededError, match="other send"):
            context.producer("orders", send_timeout=0).send(text="no")
        context.producer("more", send_timeout=0).send(text="small")
        assert not large.done()
        receive(context, 3)
        receive(context, 1, "more")
        large.result(LIMIT_S)
        assert [m.text for m in context.browser("orders")] == ["large"] * 4


# -- a maximum for each member ---------------------------------------------------------------------------------------------------
MEMBERS = {"kind": "distributed-queue", "members": 2, "quota": "small"}


def test_quota_that_is_not_shared_is_of_each_member(root: str) -> None:
    """T1, D1: each has the maximum for itself; a batch for both needs room in both, or nothing of it is sent."""
    made(root, {"messagesMaximum": 3, "shared": False}, orders=MEMBERS)
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send_many([{"text": "x"}] * 4)
        producer.send_many([{"text": "x"}] * 2)
        for count in (1, 2):
            with pytest.raises(QuotaExceededError, match=r"member [01] of orders: quota small has no room"):
                producer.send_many([{"text": "no"}] * count)
        with pytest.raises(LargerThanQuotaError):
            producer.send_many([{"text": "no"}] * 8)
        rows = quotas(domain_of(context), ["small"])
        assert [(row.destinations, row.messages_used, row.messages_maximum) for row in rows] == [
            (("member 0 of orders",), 3, 3),
            (("member 1 of orders",), 3, 3),
        ]
        with context.consumer("orders", members=1) as consumer:
            message = consumer.receive(timeout=LIMIT_S)
            assert message is not None
            message.acknowledge()
        with pytest.raises(QuotaExceededError, match="member 0 of orders"):
            producer.send_many([{"text": "no"}] * 2)
        assert domain_of(context).usage_of("orders").messages == 5
        for row in quotas(domain_of(context), ["small"]):
            assert (row.messages_reserved, row.waiting) == (0, 0)


def test_sender_waits_for_the_member_that_is_full(root: str) -> None:
    """T1, T2, D1: and has room in the others meanwhile."""
    made(root, {"messagesMaximum": 2, "shared": False}, orders=MEMBERS)
    with connect(root) as context, ThreadPoolExecutor(1) as threads:
        context.producer("orders").send_many([{"text": "x"}] * 4)
        both = send_later(threads, context, "late", 2)
        wait_until(lambda: sum(row.waiting for row in quotas(domain_of(context), ["small"])) == 1, LIMIT_S)
        receive(context, 4)
        both.result(LIMIT_S)
        wait_until(lambda: {row.messages_used for row in quotas(domain_of(context), ["small"])} == {1}, LIMIT_S)


def test_quota_changes_between_shared_and_not(root: str) -> None:
    """T1, D1: what the members hold counts at once, for running producers too."""
    made(root, {"messagesMaximum": 4}, orders=MEMBERS)
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send_many([{"text": "x"}] * 4)
        made(root, {"messagesMaximum": 4, "shared": False}, orders=MEMBERS)
        producer.send_many([{"text": "y"}] * 4)
        with pytest.raises(QuotaExceededError):
            producer.send(text="no")
        made(root, {"messagesMaximum": 9}, orders=MEMBERS)
        producer.send(text="z")
        with pytest.raises(QuotaExceededError):
            producer.send(text="no")


def test_members_that_come_have_room_of_their_own(root: str) -> None:
    """T1, D1: a destination with one member gets a second."""
    made(root, {"messagesMaximum": 2, "shared": False}, orders={**MEMBERS, "members": 1})
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send_many([{"text": "x"}] * 2)
        made(root, {"messagesMaximum": 2, "shared": False}, orders=MEMBERS)
        with context.consumer("orders", members=0) as consumer:
            for _ in range(2):
                message = consumer.receive(timeout=LIMIT_S)
                assert message is not None
                message.acknowledge()
        producer.send_many([{"text": "x"}] * 4)
        with pytest.raises(QuotaExceededError):
            producer.send(text="no")


# -- temporary destinations ---------------------------------------------------------------------------------------------------------
def of_home(root: str, maximum: int | None) -> None:
    limit = {} if maximum is None else {"messagesMaximum": maximum}
    apply(
        root,
        {
            "store": f"memory://quotas-{root.rsplit('/', 1)[1]}",
            "servers": {"home": limit},
            "destinations": {"plain": {"kind": "queue"}},
        },
    )


def test_temporary_destinations_count_in_the_quota_of_home(root: str) -> None:
    """T1, C15: they share it with the destinations that have no quota of their own, whichever context sends to them."""
    of_home(root, 3)
    with connect(root, housekeeping=False) as owner, connect(root, housekeeping=False) as other:
        inbox = owner.create_temporary_queue()
        owner.producer(inbox.name, send_timeout=0).send(text="1")
        other.producer(inbox.name, send_timeout=0).send(text="2")
        other.producer("plain", send_timeout=0).send(text="3")
        for context, name in ((owner, inbox.name), (other, inbox.name), (owner, "plain"), (other, "plain")):
            with pytest.raises(QuotaExceededError, match=r"server\+home has no room"):
                context.producer(name, send_timeout=0).send(text="no")
        (row,) = quotas(domain_of(other), [])
        assert (row.messages_used, set(row.destinations)) == (3, {inbox.name, "plain"})
        receive(owner, 1, inbox.name)
        other.producer("plain", send_timeout=0).send(text="4")
        table = domain_of(owner).log(inbox.name).snapshot.table_id
        inbox.delete()
        other.producer("plain", send_timeout=0).send(text="5")
        assert not list(domain_of(owner).storage.list(f"{USAGE}/{table}")), "its usage goes with it"


def test_temporary_destination_follows_a_changed_quota(root: str) -> None:
    """T1, C15: one that was made before it, with the messages that it has; and it is free when the maximum is removed."""
    of_home(root, None)
    with connect(root, housekeeping=False) as owner:
        inbox = owner.create_temporary_queue()
        producer = owner.producer(inbox.name, send_timeout=0)
        producer.send_many([{"text": "x"}] * 2)
        of_home(root, 2)
        with pytest.raises(QuotaExceededError):
            producer.send(text="no")
        of_home(root, None)
        producer.send_many([{"text": "x"}] * 2)


def test_temporary_destination_of_a_dead_context_gives_its_room_back(root: str) -> None:
    """T1, C15: as soon as housekeeping has deleted it."""
    of_home(root, 1)
    with connect(root, housekeeping=False) as owner:
        inbox = owner.create_temporary_queue()
        owner.producer(inbox.name).send(text="x")
        with connect(root, housekeeping=False) as other:
            producer = other.producer("plain", send_timeout=0)
            with pytest.raises(QuotaExceededError):
                producer.send(text="no")
            domain_of(other).temporary.delete_abandoned(dict)
            producer.send(text="y")
