"""Quotas as senders and transfers meet them (T1, T2)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_jms import connect
from spark_jms.admin.quota import quotas
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.upkeep.usage import UsagePublisher
from spark_jms.core.destinations.routing import ANY_MEMBER
from spark_jms.core.limits import quota as core_quota
from spark_jms.core.limits.quota import Grant, MessageUsage
from spark_jms.core.transactions import transfer
from spark_jms.errors import JmsqError, LargerThanQuotaError, QuotaExceededError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.limits import quota as quotas_module
from spark_jms.log.limits.quota import QuotaLook, QuotaObserver
from spark_jms.log.limits.quota_ledger import QuotaLedger
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending import send
from spark_jms.log.tables.storage import now_ms
from spark_jms.spark.options import parse_options
from spark_jms.spark.sink import JmsqStreamWriter, StagedMessage
from spark_jms.store import MemoryStore
from spark_jms.store.errors import ResourceAllocationException
from spark_jms.testing import wait_until
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.quotas import LIMIT_S, QUEUE, let_pass, made, receive, send_later, state_of, waiting


@pytest.fixture
def root(tmp_path: Any) -> Iterator[str]:
    yield str(tmp_path)
    MemoryStore.forget(f"quotas-{tmp_path.name}")


# -- the maximum -------------------------------------------------------------------------------------------------------------
def test_full_quota_refuses_every_way_to_send(root: str) -> None:
    """T1, T2: at once without a time-out, by JMS's name; nothing is left behind, and what was finished makes room."""
    made(root, {"messagesMaximum": 10})
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send_many({"text": str(n)} for n in range(8))
        assert [producer.send(text="9").text, producer.send(text="10").text] == ["9", "10"]
        for refused in (
            lambda: producer.send(text="x"),
            lambda: producer.send_many([{"text": "x"}]),
            lambda: producer.send_table(pa.table({"text": ["x"]})),
        ):
            with pytest.raises(
                ResourceAllocationException,
                match=r"quota small has no room.*maximum is 10 message\(s\) \(10 message.*used\)",
            ):
                refused()
            with pytest.raises(JmsqError):
                refused()
        assert len(list(Path(root, "orders").glob("*.parquet"))) == 3, "refused files are deleted"
        assert state_of(context).requests == ()
        receive(context, 3)
        wait_until(lambda: domain_of(context).usage_of("orders").messages == 7, LIMIT_S)
        producer.send_many([{"text": "a"}, {"text": "b"}, {"text": "c"}])
        with pytest.raises(QuotaExceededError):
            producer.send(text="x")


def test_batch_above_the_maximum_fails_at_once(root: str) -> None:
    """T1: by name, although its sender would wait; parts of other senders in the same commit are sent."""
    made(root, {"messagesMaximum": 5})
    with connect(root) as context:
        with pytest.raises(LargerThanQuotaError, match="more than the maximum of quota small"):
            context.producer("orders", send_timeout="1h").send_many([{"text": "x"}] * 6)
        assert domain_of(context).usage_of("orders") == MessageUsage()


def test_refusal_says_each_thing_once(root: str) -> None:
    """T1: the reason, that nothing was sent, and what to do."""
    made(root, {"messagesMaximum": 2})
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send_many([{"text": "x"}] * 2)
        for count in (1, 3):
            with pytest.raises(QuotaExceededError) as raised:
                producer.send_many([{"text": "x"}] * count)
            told = str(raised.value).lower()
            assert (told.count("nothing was sent"), told.count("no room") + told.count("more than")) == (1, 1), told


def test_bytes_count_as_they_were_sent(root: str) -> None:
    """T1: whatever Parquet makes of them, and until their message is finished."""
    made(root, {"bytesMaximum": "20000"})
    with connect(root, housekeeping=False) as context:
        producer, domain = context.producer("orders", send_timeout=0), domain_of(context)
        with pytest.raises(LargerThanQuotaError):
            producer.send(body=b"x" * 100_000)
        producer.send_many([{"body": bytes([n]) * 10, "properties": {"a": "bc"}} for n in range(10)])
        assert domain.usage_of("orders") == MessageUsage(10, 10 * (512 + 10 + 3))
        receive(context, 9)
        assert domain.usage_of("orders") == MessageUsage(1, 525)
        producer.send(body=b"x" * 18_000)
        with pytest.raises(QuotaExceededError, match="quota"):
            producer.send(body=b"x" * 1000)
        receive(context, 2)
        assert domain.usage_of("orders") == MessageUsage()


def test_large_file_frees_its_bytes_in_parts(root: str) -> None:
    """T1: of 300 messages in one file 299 are finished: the rest counts as one part of 64, five messages at most."""
    made(root, {"bytesMaximum": "1 MiB"})
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": "x" * 100} for _ in range(300))
        assert len(domain_of(context).log("orders").refresh().files) == 1
        assert domain_of(context).usage_of("orders") == MessageUsage(300, 300 * 612)
        receive(context, 299)
        assert domain_of(context).usage_of("orders") == MessageUsage(1, 5 * 612)


def test_delayed_and_claimed_messages_count(root: str) -> None:
    """T1: whatever is not finished does."""
    made(root, {"messagesMaximum": 2})
    with connect(root) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send(text="delayed", delay="1h")
        producer.send(text="claimed")
        with context.consumer("orders") as consumer:
            message = consumer.receive(timeout=LIMIT_S)
            assert message is not None
            with pytest.raises(QuotaExceededError):
                producer.send(text="x")
            message.acknowledge()
            wait_until(lambda: domain_of(context).usage_of("orders").messages == 1, LIMIT_S)
            producer.send(text="y")


def test_message_of_a_topic_counts_once_until_all_have_finished_it(root: str) -> None:
    """T1: two subscriptions, one of which has finished it."""
    made(root, {"messagesMaximum": 2}, prices={"kind": "topic", "quota": "small"})
    with connect(root) as context:
        first = context.consumer("prices", subscription="one", starting_position="latest")
        second = context.consumer("prices", subscription="two", starting_position="latest")
        producer = context.producer("prices", send_timeout=0)
        producer.send_many([{"text": "1"}, {"text": "2"}])
        for _ in range(2):
            message = first.receive(timeout=LIMIT_S)
            assert message is not None
            message.acknowledge()
        UsagePublisher(domain_of(context), records_of(context), "prices").publish(paced=False)
        assert domain_of(context).usage_of("prices").messages == 2
        with pytest.raises(QuotaExceededError):
            producer.send(text="x")
        message = second.receive(timeout=LIMIT_S)
        assert message is not None
        message.acknowledge()
        wait_until(lambda: domain_of(context).usage_of("prices").messages == 1, LIMIT_S)
        producer.send(text="3")


def test_shared_quota_counts_all_its_destinations(root: str) -> None:
    """T1: and one that is not shared counts each alone; destinations without a quota are not concerned."""
    for shared, room in ((True, 1), (False, 3)):
        made(root, {"messagesMaximum": 4, "shared": shared}, more=QUEUE)
        with connect(root) as context:
            context.producer("orders", send_timeout=0).send_many([{"text": "x"}] * 3)
            second = context.producer("more", send_timeout=0)
            second.send_many([{"text": "x"}] * room)
            if shared:
                with pytest.raises(QuotaExceededError):
                    second.send(text="x")
            context.producer("free").send_many([{"text": "x"}] * 20)
            receive(context, 3)
            receive(context, room, "more")
            wait_until(lambda: state_of(context).used.messages == 0, LIMIT_S)


def test_long_look_at_other_destinations_does_not_lose_the_room(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: another process writes an entry during each look at all destinations, as on a slow storage."""
    made(root, {"messagesMaximum": 2}, more=QUEUE)
    with connect(root, housekeeping=False) as context:
        context.producer("more").send_many([{"text": "x"}] * 2)
        receive(context, 2, "more")
        wait_until(lambda: domain_of(context).usage_of("more").messages == 0, LIMIT_S)
        look, other, looks = QuotaObserver.look_at_all, Domain(root), []

        def overtaken(self: QuotaObserver, ledger: QuotaLedger, *rest: Any) -> QuotaLook:
            found = look(self, ledger, *rest)
            looks.append(ledger.name)
            assert len(looks) < 20, "each look is lost"
            same = other.quotas.ledger("small", other.quotas.limit("small"), "orders")
            entry = same.read()
            assert same.append(entry, entry.state.successor(), 0, "another process") is not None
            return found

        monkeypatch.setattr(QuotaObserver, "look_at_all", overtaken)
        context.producer("orders", send_timeout=LIMIT_S).send_many([{"text": "x"}] * 2)
        assert state_of(context).used.messages == 2


# -- waiting ------------------------------------------------------------------------------------------------------------------
def test_senders_are_let_through_in_the_order_of_their_registration(root: str) -> None:
    """T1, T2: FIFO across contexts: a small send that would fit waits behind a large one."""
    made(root, {"messagesMaximum": 4})
    with connect(root) as context, connect(root) as other, ThreadPoolExecutor(3) as threads:
        context.producer("orders").send_many([{"text": "old"}] * 4)
        large = send_later(threads, context, "large", 4)
        wait_until(waiting(context, 1), LIMIT_S)
        small = send_later(threads, other, "small")
        wait_until(waiting(context, 2), LIMIT_S)
        receive(context, 2)
        with pytest.raises(QuotaExceededError, match=r"2 other send\(s\) wait"):
            context.producer("orders", send_timeout=0).send(text="no")
        assert not small.done()
        receive(context, 2)
        large.result(LIMIT_S)
        assert [m.text for m in context.browser("orders")] == ["large"] * 4
        receive(context, 1)
        small.result(LIMIT_S)
        assert state_of(context).requests == ()


def test_preemptive_policy_lets_a_small_send_through(root: str) -> None:
    """T1: although a large one waits."""
    made(root, {"messagesMaximum": 4, "policy": "Preemptive"})
    with connect(root) as context, ThreadPoolExecutor(2) as threads:
        context.producer("orders").send_many([{"text": "old"}] * 3)
        large = send_later(threads, context, "large", 3)
        wait_until(waiting(context, 1), LIMIT_S)
        context.producer("orders", send_timeout=0).send(text="small")
        receive(context, 3)
        large.result(LIMIT_S)


def test_send_gives_up_after_its_timeout_and_leaves_the_queue(root: str) -> None:
    """T2: with ResourceAllocationException; the next sender is not held up."""
    made(root, {"messagesMaximum": 1})
    with connect(root) as context:
        context.producer("orders").send(text="old")
        with pytest.raises(ResourceAllocationException):
            context.producer("orders", send_timeout="50 ms").send(text="late")
        assert state_of(context).requests == ()
        receive(context, 1)
        wait_until(lambda: domain_of(context).usage_of("orders").messages == 0, LIMIT_S)
        context.producer("orders", send_timeout=0).send(text="new")


def test_dead_waiting_sender_lapses(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: a sender that does not renew its request does not hold up the others for ever."""
    made(root, {"messagesMaximum": 1})
    with connect(root) as context:
        context.producer("orders").send(text="old")

        def die(*_: object) -> float:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(quotas_module._Attempt, "pause", die)
            patch.setattr(quotas_module.Quotas, "_withdraw", lambda *_: None)
            with pytest.raises(KeyboardInterrupt):
                context.producer("orders", send_timeout=LIMIT_S).send(text="dead")
        assert len(state_of(context).waiting) == 1
        receive(context, 1)
        wait_until(lambda: domain_of(context).usage_of("orders").messages == 0, LIMIT_S)
        producer = context.producer("orders", send_timeout=0)
        with pytest.raises(QuotaExceededError):
            producer.send(text="behind it")
        let_pass(context, monkeypatch, core_quota.WAITING_S)
        producer.send(text="new")


def test_reservation_of_a_dead_sender_is_voided(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: behind a fence in the log: a sender that only slept reserves again before it commits."""
    made(root, {"messagesMaximum": 2})
    with connect(root) as context:
        grants: list[Grant] = []
        reserve = quotas_module.Quotas.reserve

        def dying(self: Any, *arguments: Any, **named: Any) -> Grant | None:
            found = reserve(self, *arguments, **named)
            assert found is not None
            grants.append(found)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(quotas_module.Quotas, "reserve", dying)
            with pytest.raises(KeyboardInterrupt):
                context.producer("orders", send_timeout=0).send_table(pa.table({"text": ["x"] * 2}))
        assert state_of(context).reserved.messages == 2
        producer = context.producer("orders", send_timeout=0)
        with pytest.raises(QuotaExceededError):
            producer.send(text="no room beside the reservation")
        let_pass(context, monkeypatch, core_quota.RESERVED_S)
        producer.send_many([{"text": "y"}] * 2)
        with pytest.raises(send.QuotaNeeded):  # the sleeper wakes
            send.spent(domain_of(context).log("orders").refresh(), [file_of(2)], grants, now_ms())
        assert state_of(context).requests == ()


def test_reservation_ends_with_its_commit(root: str) -> None:
    """T1: one entry for each send; a sender that is killed after its commit leaves nothing that counts twice."""
    made(root, {"messagesMaximum": 10})
    with connect(root) as context:
        producer = context.producer("orders")
        found = domain_of(context).quotas
        before = found.ledger("small", found.limit("small"), "orders").read().number
        for text in "abc":
            producer.send(text=text)
        entry = found.ledger("small", found.limit("small"), "orders").read()
        assert entry.number == before + 3
        assert (entry.state.used.messages, entry.state.reserved.messages) == (2, 1)
        assert (state_of(context).used.messages, state_of(context).requests) == (3, ())
        newest = domain_of(context).log("orders").snapshot.transactions.get("quota/small/0")
        assert newest == entry.state.base + entry.number


def test_ledger_that_was_deleted_begins_again(root: str) -> None:
    """T1: also when a backup is restored, which has no ledgers: what is in the tables counts, and senders continue."""
    made(root, {"messagesMaximum": 5})
    with connect(root) as context:
        context.producer("orders").send_many([{"text": "x"}] * 3)
        context.producer("orders").send(text="x")
    Domain(root).storage.delete_all("_jmsq/quota-ledgers")
    with connect(root) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send(text="x")
        found = domain_of(context).quotas
        assert found.ledger("small", found.limit("small"), "orders").read().number == 1, "its first reservation is good"
        with pytest.raises(QuotaExceededError):
            producer.send(text="x")


def file_of(rows: int) -> Any:
    return transfer.StagedFile("m0-xxxxxxxx.parquet", 0, rows, 1, 0, "{}")


def test_batch_of_a_query_waits_and_is_sent_once(root: str) -> None:
    """T1, T2, C5: the sink as Spark drives it: `jmsq quota` names query and batch, a repeated attempt takes over the place of the
    first, and after a time-out the batch is sent by the next attempt."""
    made(root, {"messagesMaximum": 2})
    schema = StructType([StructField("text", StringType())])

    def attempt(**options: str) -> None:
        log = Domain(root).log("orders")
        writer = MessageWriter(log.storage, log.refresh().destination, 0)
        writer.write(pa.RecordBatch.from_pydict({"text": ["batch"]}))
        given = parse_options({"root": root, "destination": "orders", **options})
        message = StagedMessage(0, "q", log.snapshot.route_id, writer.close(), ANY_MEMBER)
        JmsqStreamWriter(given, schema, False).commit([message], 7)

    with connect(root) as context, ThreadPoolExecutor(2) as threads:
        context.producer("orders").send_many([{"text": "old"}] * 2)
        with pytest.raises(QuotaExceededError):
            attempt(sendTimeout="0")
        first = threads.submit(attempt)
        wait_until(waiting(context, 1), LIMIT_S)
        (request,) = quotas(domain_of(context), ["small"])[0].requests
        assert (request.state, request.by) == ("waiting", "query q, batch 7")
        second = threads.submit(attempt)
        receive(context, 2)
        first.result(LIMIT_S)
        second.result(LIMIT_S)
        attempt()
        assert [m.text for m in context.browser("orders")] == ["batch"]
        assert state_of(context).requests == ()


# -- transfers -----------------------------------------------------------------------------------------------------------------
def test_transfer_waits_for_room_and_loses_nothing(root: str) -> None:
    """T1, C18: a move into a full quota stays open and ends when there is room."""
    made(root, {"messagesMaximum": 3})
    with connect(root) as context:
        context.producer("orders").send_many([{"text": "old"}] * 2)
        context.producer("free").send_many([{"text": "moved"}] * 2)
        with pytest.raises(JmsqError, match="waits: orders: quota small has no room"):
            move(domain_of(context), records_of(context), MoveOrder("free", "orders"), LIMIT_S)
        assert domain_of(context).usage_of("orders").messages == 2
        receive(context, 2)
        wait_until(lambda: domain_of(context).usage_of("orders").messages == 0, LIMIT_S)
        move(domain_of(context), records_of(context), MoveOrder("free", "orders"), LIMIT_S)
        assert [m.text for m in context.browser("orders")] == ["moved"] * 2
        assert not list(context.browser("free"))
        assert state_of(context).requests == ()


def test_move_makes_batches_that_the_quota_can_take(root: str) -> None:
    """T1, C18: more messages than the maximum are moved part by part."""
    made(root, {"messagesMaximum": 3})
    with connect(root) as context:
        context.producer("free").send_many([{"text": str(n)} for n in range(5)])
        with pytest.raises(JmsqError, match="waits"):
            move(domain_of(context), records_of(context), MoveOrder("free", "orders"), LIMIT_S)
        assert [m.text for m in context.browser("orders")] == ["0", "1", "2"]


def test_move_within_a_destination_needs_no_room(root: str) -> None:
    """T1, D5: between its members, although the quota is full."""
    made(root, {"messagesMaximum": 4}, orders={"kind": "distributed-queue", "members": 2, "quota": "small"})
    with connect(root) as context:
        context.producer("orders").send_many([{"text": "x"}] * 4)
        move(
            domain_of(context),
            records_of(context),
            MoveOrder("orders", "orders", members=(0,), target_member=1),
            LIMIT_S,
        )
        assert {m.member for m in context.browser("orders")} == {1}
