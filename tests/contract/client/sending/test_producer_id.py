"""Producers with an id: their messages are in the table once, however often they are sent (M1)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_jms import aio, connect
from spark_jms.admin.destinations import pause, resume
from spark_jms.client import Completion, ConnectionFactory, Context, Message, Producer
from spark_jms.client.context.pool import ClientPool
from spark_jms.client.sending import shared_send
from spark_jms.core.destinations.pause import INSERTION
from spark_jms.core.transactions.producers import AlreadySentError, ProducerPosition, app_id_of
from spark_jms.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    InsertionPausedError,
    MessageSizeError,
    OptionError,
    ProducerFencedError,
    SequenceGapError,
    WriteOutcomeUnknownError,
)
from spark_jms.log.sending import send as log_send
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of
from tests.harness.domains.hooked_storage import HookedStorage
from tests.harness.messages.completions import Hold, Outcomes, in_thread

LIMIT_S = 30
FOUR = {"kind": "distributed-queue", "members": 4}


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(
        orders="queue",
        prices="topic",
        spread=FOUR,
        small={"kind": "queue", "max_message_bytes": 10},
        units={"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"},
    ) as where:
        yield where


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with connect(root, housekeeping=False) as opened:
        yield opened


def texts(context: Context, destination: str = "orders") -> list[str | None]:
    return [message.text for message in context.browser(destination)]


def version(context: Context, destination: str = "orders") -> int:
    return domain_of(context).log(destination).refresh().version


def numbered(first: int, end: int) -> list[dict[str, Any]]:
    return [{"text": str(number)} for number in range(first, end)]


@contextmanager
def unknown_commits(context: Context, *, arrives: bool | None) -> Iterator[list[Callable[[], bool]]]:
    """The commits of `orders` fail, and may arrive later. True: each is in the log although it failed; None: the block calls the
    yielded functions, each of which lets one arrive."""
    log = domain_of(context).log("orders")
    storage, late = log.storage, list[Callable[[], bool]]()

    class Unknown(HookedStorage):
        failed_writes_may_arrive = True

        def create(self, path: str, data: bytes, *, durable: bool = False) -> bool:
            write = HookedStorage(storage.uri, lambda *_: None)
            if arrives:
                write.create(path, data)
            late.append(lambda: write.create(path, data))
            raise WriteOutcomeUnknownError("the connection broke")

        def get(self, path: str) -> bytes | None:
            if path.startswith("_delta_log/") and late:
                raise OSError("the connection is broken")
            return super().get(path)

    log.storage = Unknown(storage.uri, lambda *_: None)
    try:
        yield late
    finally:
        log.storage = storage


# -- counting ----------------------------------------------------------------------------------------------------------
def test_producer_counts_its_messages_in_the_table(context: Context) -> None:
    """M1: each way of sending counts; another producer, and another destination, count for themselves."""
    producer, other = context.producer("orders", producer_id="p"), context.producer("orders", producer_id="q")
    assert (producer.producer_id, producer.last_sequence) == ("p", 0)
    producer.send(text="a")
    producer.send_many(numbered(0, 3))
    producer.send_many(numbered(0, 150))
    producer.send_table(pa.table({"text": ["a", "b"]}))
    producer.send(text="c", completion=Outcomes())
    other.send(text="d")
    context.producer("orders").send(text="without an id")
    assert other.last_sequence == 1
    producer.close()
    assert producer.last_sequence == 157
    assert context.producer("spread", producer_id="p").last_sequence == 0
    with connect(context.root, housekeeping=False) as again:
        assert again.producer("orders", producer_id="p").last_sequence == 157


def test_transaction_of_the_table_has_opening_and_last_number(context: Context) -> None:
    """M1: one transaction for each producer id, whatever the number of messages."""
    context.producer("orders", producer_id="p").send_many(numbered(0, 5))
    context.producer("orders", producer_id="p").send(text="a")
    known = domain_of(context).log("orders").refresh().transactions
    assert ProducerPosition.of(known.get(app_id_of("p"))) == ProducerPosition(2, 6)
    assert [app_id for app_id in known if app_id.startswith("producer/")] == [app_id_of("p")]


def test_producer_without_an_id_writes_no_transaction(context: Context) -> None:
    """M1: the feature costs nothing while it is not used."""
    before = version(context)
    producer = context.producer("orders")
    assert version(context) == before
    producer.send(text="a")
    assert not [app_id for app_id in domain_of(context).log("orders").refresh().transactions if "producer" in app_id]
    assert producer.producer_id is None
    for call in (lambda: producer.last_sequence, producer.resume, lambda: producer.send(text="b", sequence=1)):
        with pytest.raises(OptionError, match="producer_id="):
            call()


# -- duplicates --------------------------------------------------------------------------------------------------------
def test_message_with_a_known_number_is_dropped(context: Context) -> None:
    """M1: the message returned has no id, nothing is committed, and the statistics count it."""
    producer = context.producer("orders", producer_id="p")
    first = producer.send(text="a", sequence=1)
    assert first.message_id
    before = version(context)
    again = producer.send(text="a", sequence=1)
    assert (again.text, again.message_id, again.member, again.sequence) == ("a", "", -1, 0)
    assert version(context) == before
    assert texts(context) == ["a"]
    assert (producer.statistics().messages, producer.statistics().duplicates) == (1, 1)


@pytest.mark.parametrize("chunk", [3, 150])
@pytest.mark.parametrize("destination", ["orders", "spread"])
def test_restarted_program_sends_the_rest(root: str, chunk: int, destination: str) -> None:
    """M1: it repeats everything from the first message on, in chunks of another size; shared and own commits."""
    with connect(root, housekeeping=False) as context:
        report = context.producer(destination, producer_id="p").send_many(
            numbered(0, 200), chunk_messages=110, sequence=1
        )
        assert (report.messages, report.duplicates) == (200, 0)
    with connect(root, housekeeping=False) as context:
        producer = context.producer(destination, producer_id="p")
        report = producer.send_many(numbered(0, 400), chunk_messages=chunk, sequence=1)
        assert (report.messages, report.duplicates, producer.last_sequence) == (200, 200, 400)
        assert producer.statistics().duplicates == 200
        assert producer.send_many(numbered(0, 400), sequence=1).duplicates == 400
        assert sorted(int(text or "") for text in texts(context, destination)) == list(range(400))


def test_table_that_overlaps_sends_its_new_rows(context: Context) -> None:
    """M1: the head of the table is dropped, however it is cut into batches."""
    producer = context.producer("orders", producer_id="p")
    table = pa.table({"text": [str(n) for n in range(10)]})
    assert producer.send_table(table.slice(0, 4), sequence=1).messages == 4
    batches = pa.Table.from_batches(table.to_batches(max_chunksize=3))
    report = producer.send_table(batches, sequence=1)
    assert (report.messages, report.commits, report.duplicates) == (6, 1, 4)
    report = producer.send_table(batches, sequence=1)
    assert (report.messages, report.commits, report.duplicates) == (0, 0, 10)
    assert texts(context) == [str(n) for n in range(10)]
    assert producer.statistics().duplicates == 14


def test_unit_of_work_is_sent_once(context: Context) -> None:
    """M1, T12: its messages count; a unit of which only a part is in the table is refused."""
    producer = context.producer("units", producer_id="p")
    for duplicates in (0, 3):
        report = producer.send_unit_of_work(numbered(0, 3), "u", sequence=1)
        assert (report.messages, report.duplicates) == (3 - duplicates, duplicates)
    with pytest.raises(CommitConflictError, match="continue with number 4"):
        producer.send_unit_of_work(numbered(0, 3), "v", sequence=2)
    assert producer.last_sequence == 3


def test_asynchronous_send_of_a_known_number_completes(context: Context) -> None:
    """M1, T11: without an id, and in its turn."""
    outcomes = Outcomes()
    with context.producer("orders", producer_id="p") as producer:
        for number in (1, 2, 1, 2, 3):
            producer.send(text=str(number), sequence=number, completion=outcomes)
    assert outcomes.failed == []
    assert [(message.text, bool(message.message_id)) for message in outcomes.sent] == [
        ("1", True),
        ("2", True),
        ("1", False),
        ("2", False),
        ("3", True),
    ]
    assert texts(context) == ["1", "2", "3"]
    assert producer.statistics().duplicates == 2


def test_duplicates_and_gaps_reach_only_their_own_sender(context: Context) -> None:
    """M1, C11: in one shipment with other producers, whose messages are sent."""
    one, two, three = (context.producer("orders", producer_id=name) for name in ("1", "2", "3"))
    plain = context.producer("orders")
    one.send(text="one", sequence=1)
    hold = Hold(context)
    with ThreadPoolExecutor(5) as threads:
        held = threads.submit(plain.send, text="held")
        hold.wait_until_held()
        sends = [
            threads.submit(one.send, text="one", sequence=1),
            threads.submit(two.send, text="two"),
            threads.submit(three.send, text="three", sequence=5),
            threads.submit(plain.send, text="plain"),
        ]
        hold.open()
        held.result(LIMIT_S)
        again, sent, gap, other = (send.exception(LIMIT_S) or send.result() for send in sends)
    assert isinstance(gap, SequenceGapError)
    assert (again.message_id, bool(sent.message_id), bool(other.message_id)) == ("", True, True)
    assert sorted(text or "" for text in texts(context)) == ["held", "one", "plain", "two"]


# -- gaps --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("send", ["send", "send_many", "send_table", "large"])
def test_gap_is_refused(context: Context, send: str) -> None:
    """M1: nothing is sent, and the error names the number to send first."""
    producer = context.producer("orders", producer_id="p")
    producer.send(text="1")
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send(text="x", sequence=3),
        "send_many": lambda: producer.send_many(numbered(0, 2), sequence=3),
        "send_table": lambda: producer.send_table(pa.table({"text": ["x"]}), sequence=3),
        "large": lambda: producer.send_many(numbered(0, 150), sequence=3),
    }
    with pytest.raises(SequenceGapError, match="send number 2 first"):
        calls[send]()
    producer.send(text="2", sequence=2)
    assert texts(context) == ["1", "2"]


def test_failed_asynchronous_send_stops_those_behind_it(context: Context) -> None:
    """M1, T11: else message 3 would be sent as number 2, and a restarted program would continue at the wrong one."""
    outcomes = Outcomes()
    producer = context.producer("small", producer_id="p")
    for text in ("1", "x" * 11, "3", "4"):
        producer.send(text=text, completion=outcomes)
    wait_until(lambda: producer.statistics().outstanding == 0)
    with pytest.raises(SequenceGapError, match=r"resume\(\)"):
        producer.send(text="5")
    assert outcomes.texts() == ["1"]
    assert [(text, type(error)) for text, error in outcomes.failed] == [
        ("x" * 11, MessageSizeError),
        ("3", SequenceGapError),
        ("4", SequenceGapError),
    ]
    assert producer.resume() == 1
    producer.send(text="2")
    assert texts(context, "small") == ["1", "2"]
    assert producer.last_sequence == 2


def test_failed_send_that_waits_does_not_stop_the_producer(context: Context) -> None:
    """M1: its application has the error before it sends the next message."""
    producer = context.producer("small", producer_id="p")
    with pytest.raises(MessageSizeError):
        producer.send(text="x" * 11)
    assert producer.send(text="1").sequence == 1
    assert producer.last_sequence == 1


@pytest.mark.parametrize("resumed", [True, False])
def test_asynchronous_sends_keep_one_order_over_all_members(
    context: Context, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    """M1, T11: while one waits for a paused member, those behind it for other members wait too, and fail with it."""
    waits, wait_for_change = threading.Event(), log_send.wait_for_change

    def waiting(*arguments: Any) -> bool:
        waits.set()
        return wait_for_change(*arguments)

    monkeypatch.setattr(shared_send, "wait_for_change", waiting)
    plain, outcomes = context.producer("spread"), Outcomes()
    member_of = {unit: plain.send(text="before", group_id=unit).member for unit in map(str, range(20))}
    paused = next(unit for unit in member_of if member_of[unit] == 0)
    open_units = [unit for unit in member_of if member_of[unit] != 0][:5]
    pause(domain_of(context), "spread", [INSERTION], members=[0])
    with context.producer("spread", producer_id="p", send_timeout="20 s" if resumed else 0) as producer:
        for unit in (open_units[0], paused, *open_units[1:]):
            producer.send(text=unit, group_id=unit, completion=outcomes)
        if resumed:
            assert waits.wait(LIMIT_S)
            resume(domain_of(context), "spread", [INSERTION])
    if resumed:
        assert outcomes.texts() == [open_units[0], paused, *open_units[1:]]
    else:
        assert outcomes.texts() == open_units[:1]
        assert [text for text, _ in outcomes.failed] == [paused, *open_units[1:]]
        assert isinstance(outcomes.failed[0][1], InsertionPausedError)
        assert {type(error) for _, error in outcomes.failed} <= {InsertionPausedError, SequenceGapError}
    assert producer.last_sequence == len(outcomes.sent)


# -- outcomes that are unknown -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("arrives", [True, False])
def test_message_of_unknown_outcome_is_repeated_by_its_number(context: Context, arrives: bool) -> None:
    """M1: after a CommitOutcomeUnknownError the same number sends the message once."""
    producer = context.producer("orders", producer_id="p")
    with unknown_commits(context, arrives=arrives), pytest.raises(CommitOutcomeUnknownError):
        producer.send(text="1", sequence=1)
    for _ in range(2):
        producer.send(text="1", sequence=1)
    producer.send(text="2", sequence=2)
    assert texts(context) == ["1", "2"]


@pytest.mark.parametrize("send", ["send", "asynchronous", "send_many", "large"])
@pytest.mark.parametrize("arrives", [True, False])
def test_message_without_a_number_waits_until_the_outcome_is_known(context: Context, arrives: bool, send: str) -> None:
    """M1: a program that repeats the call gets an error instead of a doubled message; `resume` tells it the number."""
    producer, outcomes = context.producer("orders", producer_id="p"), Outcomes()
    count = 150 if send == "large" else 1
    with unknown_commits(context, arrives=arrives):
        if send == "asynchronous":
            producer.send(text="0", completion=outcomes)
            wait_until(lambda: producer.statistics().outstanding == 0)
            assert isinstance(outcomes.failed[0][1], CommitOutcomeUnknownError)
        else:
            with pytest.raises(CommitOutcomeUnknownError):
                producer.send(text="0") if send == "send" else producer.send_many(numbered(0, count))
    for call in (lambda: producer.send(text="0"), lambda: producer.send_many(numbered(0, 150))):
        with pytest.raises(SequenceGapError, match=r"resume\(\)"):
            call()
    assert producer.resume() == (count if arrives else 0)
    producer.send(text="next")
    assert texts(context) == [*([str(n) for n in range(count)] if arrives else []), "next"]


def test_commit_that_arrives_late_is_refused_after_resume(context: Context) -> None:
    """M1: `resume` takes the place in the log for which it was written."""
    producer = context.producer("orders", producer_id="p")
    with unknown_commits(context, arrives=None) as late, pytest.raises(CommitOutcomeUnknownError):
        producer.send(text="late")
    assert producer.resume() == 0
    assert late[0]() is False
    producer.send(text="1")
    assert texts(context) == ["1"]


def test_commit_that_arrives_late_is_not_doubled_by_its_repetition(context: Context) -> None:
    """M1: it arrives between the look at the log and the write of the repeated message."""
    producer = context.producer("orders", producer_id="p")
    with unknown_commits(context, arrives=None) as late, pytest.raises(CommitOutcomeUnknownError):
        producer.send(text="1", sequence=1)
    arrived: list[bool] = []

    def arrive(step: str, path: str) -> None:
        if step == "before create" and path.startswith("_delta_log/") and not arrived:
            arrived.append(late[0]())

    log = domain_of(context).log("orders")
    log.storage = HookedStorage(log.storage.uri, arrive)
    assert producer.send(text="1", sequence=1).message_id == ""
    assert arrived == [True]
    assert texts(context) == ["1"]


def test_interrupted_send_stops_the_producer(context: Context) -> None:
    """M1: Ctrl-C in the middle of a commit; the application does not know what became of the message."""
    producer = context.producer("orders", producer_id="p")
    log = domain_of(context).log("orders")
    storage = log.storage

    def interrupt(step: str, path: str) -> None:
        if step == "after create" and path.startswith("_delta_log/"):
            log.storage = storage
            raise KeyboardInterrupt

    log.storage = HookedStorage(storage.uri, interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.send(text="1")
    with pytest.raises(SequenceGapError):
        producer.send(text="1")
    assert producer.resume() == 1
    assert texts(context) == ["1"]


# -- fencing -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("sequence", [None, 2])
def test_later_producer_fences_the_earlier(root: str, context: Context, sequence: int | None) -> None:
    """M1: from its creation on, the earlier one sends nothing, numbered or not."""
    earlier = context.producer("orders", producer_id="p")
    earlier.send(text="1")
    with connect(root, housekeeping=False) as another:
        later = another.producer("orders", producer_id="p")
        assert later.last_sequence == 1
        for _ in range(2):
            with pytest.raises(ProducerFencedError, match="opened again"):
                earlier.send(text="doubled", sequence=sequence)
        with pytest.raises(ProducerFencedError):
            earlier.send_many(numbered(0, 150))
        with pytest.raises(ProducerFencedError):
            earlier.resume()
        later.send(text="2")
    assert texts(context) == ["1", "2"]


def test_producer_is_fenced_while_its_commit_is_under_way(root: str, context: Context) -> None:
    """M1: the staged message is refused, because its commit decides again on the newer log."""
    earlier, errors = context.producer("orders", producer_id="p"), list[Exception]()
    hold = Hold(context)

    def send() -> None:
        try:
            earlier.send(text="late")
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    thread = in_thread(send)
    hold.wait_until_held()
    with connect(root, housekeeping=False) as another:
        later = another.producer("orders", producer_id="p")
        hold.open()
        thread.join(LIMIT_S)
        later.send(text="1")
    assert [type(error) for error in errors] == [ProducerFencedError]
    assert texts(context) == ["1"]


def test_resume_of_a_stopped_producer_that_was_fenced(root: str, context: Context) -> None:
    """M1: it does not take the id back."""
    earlier = context.producer("orders", producer_id="p")
    with unknown_commits(context, arrives=False), pytest.raises(CommitOutcomeUnknownError):
        earlier.send(text="1")
    with connect(root, housekeeping=False) as another:
        later = another.producer("orders", producer_id="p")
        with pytest.raises(ProducerFencedError):
            earlier.resume()
        assert later.send(text="1").sequence == 1


# -- beside other features ---------------------------------------------------------------------------------------------
def test_threads_share_a_producer(context: Context) -> None:
    """M1, C11: their messages get numbers without gaps."""
    producer = context.producer("spread", producer_id="p")
    with ThreadPoolExecutor(8) as threads:
        sent = list(threads.map(lambda n: producer.send(text=str(n)), range(100)))
    assert len({message.message_id for message in sent}) == 100
    assert producer.last_sequence == 100
    assert producer.statistics().commits == 100


def test_producer_with_an_id_sends_nothing_one_way(root: str) -> None:
    """M1, T11: a one-way send that fails tells no one, and its number would be another message's."""
    factory = ConnectionFactory(one_way_send_mode="enabled", one_way_send_window_size=300)
    with connect(root, housekeeping=False, connection_factory=factory) as context:
        message = context.producer("prices", producer_id="p").send(text="a", delivery_mode="NON_PERSISTENT")
        assert message.message_id
        assert context.producer("prices").send(text="a", delivery_mode="NON_PERSISTENT").message_id == ""


def test_producer_of_a_pool_keeps_its_numbers(root: str) -> None:
    """M1, T17: also when the pool has closed it meanwhile."""
    with ClientPool(lambda: connect(root, housekeeping=False), max_idle=0) as pool:
        for number in range(1, 4):
            with pool.producer("orders", producer_id="p") as producer:
                producer.send(text=str(number))
                assert producer.last_sequence == number


def test_coroutines_send_once(root: str) -> None:
    """M1, M7"""

    async def main() -> None:
        async with aio.connect(root, housekeeping=False) as context:
            async with context.producer("orders", producer_id="p") as producer:
                assert (producer.producer_id, producer.last_sequence) == ("p", 0)
                await asyncio.gather(*(producer.send(text=str(n), sequence=n) for n in range(1, 21)))
                assert (await producer.send(text="5", sequence=5)).message_id == ""
                assert (await producer.send_many(numbered(0, 30), sequence=1)).duplicates == 20
                assert (await producer.send_table(pa.table({"text": ["x"]}), sequence=30)).duplicates == 1
                assert await producer.resume() == 30
            async with context.producer("orders", producer_id="p") as producer:
                assert producer.last_sequence == 30

    asyncio.run(main())


def test_template_is_sent_by_its_number(context: Context) -> None:
    """M1: `sequence` of a received message is that of its member; the argument is that of the producer id."""
    producer = context.producer("orders", producer_id="p")
    template = replace(Message(text="a"), sequence=99)
    assert producer.send(template, sequence=1).sequence == 1
    assert producer.send(template, sequence=1).message_id == ""


def test_arguments_that_do_not_go_with_a_producer_id(context: Context) -> None:
    """M1: each error names the argument."""
    producer = context.producer("orders", producer_id="p")
    temporary = context.create_temporary_queue()
    for call, words in [
        (lambda: context.producer("orders", producer_id=""), "producer_id is ''"),
        (lambda: context.producer(temporary.name, producer_id="p"), "producer_id has no purpose"),
        (lambda: producer.send(text="a", sequence=0), "sequence is 0"),
        (lambda: producer.send_many([], transaction=("a", 1)), "transaction is"),
        (lambda: producer.send_table(pa.table({"text": ["a"]}), transaction=("a", 1)), "transaction is"),
    ]:
        with pytest.raises(OptionError, match=words):
            call()
    assert producer.last_sequence == 0


def test_error_of_a_known_number_stays_inside(context: Context) -> None:
    """M1: the application sees a message without an id, never the error by which the commit was left."""
    producer = context.producer("orders", producer_id="p")
    producer.send(text="a")
    failures: list[Exception] = []
    listener = Completion(lambda message: None, lambda message, error: failures.append(error))
    producer.send(text="a", sequence=1, completion=listener)
    producer.close()
    assert not any(isinstance(error, AlreadySentError) for error in failures)
    assert not failures


def test_closing_waits_for_sends_with_numbers(context: Context) -> None:
    """M1, T11"""
    outcomes, done = Outcomes(), threading.Event()
    producer: Producer = context.producer("orders", producer_id="p")
    for number in range(1, 51):
        producer.send(text=str(number), sequence=number, completion=outcomes)
    producer.close()
    done.set()
    assert len(outcomes.sent) == producer.last_sequence == 50
