"""Concurrent sends of one process share files and commits: order, errors, interrupts, kills (C4, C5, C11)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms import apply, connect
from spark_jms.client import Context, Message
from spark_jms.client.sending import shared_send
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import (
    CommitOutcomeUnknownError,
    InvalidDestinationError,
    JmsqError,
    MessageFormatError,
    MessageSizeError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.store.ledger import group_commit
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, sends_queued
from tests.harness.domains.hooked_storage import HookedStorage

LIMIT_S = 30


class Killed(BaseException):
    """The process is dead: nothing after this happens."""


def hook_into(context: Context, destination: str, hook: Callable[[str, str], object]) -> HookedStorage:
    log = domain_of(context).log(destination)
    storage = HookedStorage(log.storage.uri, hook)
    log.storage = storage
    return storage


def is_commit(path: str) -> bool:
    return path.startswith("_delta_log/") and path.endswith(".json")


class Gate:
    """Holds the first commit until the others have queued, so that they share the next one."""

    def __init__(self, context: Context, destination: str = "orders") -> None:
        self._held, self._open = threading.Event(), threading.Event()
        self._producer = context.producer(destination)
        self.commits = 0
        self.storage = hook_into(context, destination, self._hook)

    def _hook(self, step: str, path: str) -> None:
        if step == "before create" and is_commit(path):
            self.commits += 1
            if self.commits == 1:
                self._held.set()
                assert self._open.wait(LIMIT_S)

    def wait_until_held(self) -> None:
        assert self._held.wait(LIMIT_S)

    def wait_for_queue(self, count: int) -> None:
        wait_until(lambda: sends_queued(self._producer) == count, LIMIT_S)

    def open(self) -> None:
        self._open.set()


def send_together(context: Context, *messages: Message, to: str = "orders", before: Callable[[], object] = int) -> Any:
    """Send each message from a thread of its own, all in one shared commit behind a first message. Returns what became
    of each: the message as sent, or its error."""
    gate = Gate(context, to)
    producer = context.producer(to)

    def send(message: Message) -> Message | Exception:
        try:
            return producer.send(message)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(len(messages) + 1) as threads:
        first = threads.submit(send, Message(text="first"))
        gate.wait_until_held()
        outcomes = []
        for queued, message in enumerate(messages, 1):
            outcomes.append(threads.submit(send, message))
            gate.wait_for_queue(queued)
        before()
        gate.open()
        assert isinstance(first.result(LIMIT_S), Message)
        return [outcome.result(LIMIT_S) for outcome in outcomes]


@pytest.fixture
def context() -> Iterator[Context]:
    with (
        memory_domain(orders="queue", spread={"kind": "distributed-queue", "members": 4}) as root,
        connect(root, housekeeping=False) as opened,
    ):
        yield opened


def browse(context: Context, destination: str = "orders") -> list[Message]:
    return list(context.browser(destination))


def data_files(context: Context, destination: str = "orders") -> set[str]:
    return {path.name for path in Path(context.root, destination).glob("*.parquet")}


# -- sharing -----------------------------------------------------------------------------------------------------------
def test_concurrent_sends_share_one_file_and_one_commit(context: Context) -> None:
    """C5, C11: each sender gets its own message back, with the position it has in the table."""
    version = domain_of(context).log("orders").refresh().version
    sent = send_together(context, *(Message(text=str(n), properties={"n": n}) for n in range(8)))
    assert domain_of(context).log("orders").refresh().version == version + 2
    assert len(data_files(context)) == 2
    assert [m.sequence for m in sent] == list(range(2, 10)), "in the order in which they were queued"
    there = {m.text: m for m in browse(context)}
    for message in sent:
        found = there[message.text]
        assert (found.message_id, found.member, found.sequence) == (message.message_id, 0, message.sequence)
        assert (found.timestamp_ms, found.delivery_time_ms) == (message.timestamp_ms, message.delivery_time_ms)
        assert found.properties == message.properties


def test_shared_sends_keep_routes_and_units_of_order(context: Context) -> None:
    """C4, D2: single messages go to the members in turn, units of order to their member, as if each was sent alone."""
    sent = send_together(context, *(Message(text=str(n)) for n in range(8)), to="spread")
    assert sorted(m.member for m in sent) == [0, 0, 1, 1, 2, 2, 3, 3]
    alone = context.producer("spread").send(text="alone", group_id="k")
    grouped = [context.producer("spread").send(text="k", group_id="k") for _ in range(3)]
    assert {m.member for m in grouped} == {alone.member}
    by_id = {m.message_id: (m.text, m.member, m.sequence) for m in browse(context, "spread")}
    assert all(by_id[m.message_id] == (m.text, m.member, m.sequence) for m in [*sent, alone, *grouped])


def test_threads_keep_the_order_of_their_own_sends(context: Context) -> None:
    """C4: 8 threads, with a unit of order each; small chunks of send_many share commits as well."""

    def run(thread: int) -> None:
        producer = context.producer("spread")
        for n in range(0, 40, 2):
            producer.send(text=f"{thread} {n}", group_id=f"g{thread}", group_seq=n)
            producer.send_many([{"text": f"{thread} {n + 1}", "group_id": f"g{thread}", "group_seq": n + 1}])

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(run, thread) for thread in range(8)]:
            done.result(LIMIT_S)
    there = sorted(browse(context, "spread"), key=lambda m: (m.member, m.sequence))
    for thread in range(8):
        assert [m.group_seq for m in there if m.group_id == f"g{thread}"] == list(range(40))
    assert len(there) == 320
    assert domain_of(context).log("spread").refresh().version < 320, "some commits were shared"


def test_members_removed_before_a_shared_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """C3, C4: the messages are routed again, and each sender gets the position of its own."""

    def shape(members: int) -> None:
        apply(root, {"destinations": {"spread": {"kind": "distributed-queue", "members": members}}})

    with memory_domain(spread={"kind": "distributed-queue", "members": 2}) as root:
        shape(4)
        with connect(root, housekeeping=False) as context:
            log = domain_of(context).log("spread")
            shipment = shared_send.Shipment(log)
            parts = [shared_send.Part(shared_send.OutgoingMessages([Message(text=str(n))], n, 1)) for n in range(8)]
            for part in parts:
                part.join(shipment)
            shipment.encode([])
            stage = shipment._stage

            def stage_then_shrink(destination: Destination) -> list[StagedFile]:
                files = stage(destination)
                if destination.members == 4:
                    shape(2)
                return files

            monkeypatch.setattr(shipment, "_stage", stage_then_shrink)
            shipment.commit()
            positions = [part.positions()[0] for part in parts]
            assert sorted(p.member for p in positions) == [0, 0, 0, 0, 1, 1, 1, 1]
            there = {m.message_id: (m.text, m.member, m.sequence) for m in browse(context, "spread")}
            assert [there[p.message_id] for p in positions] == [(str(n), *p[:2]) for n, p in enumerate(positions)]
            assert len(data_files(context, "spread")) == 2, "the files of the old route are deleted"


# -- errors ------------------------------------------------------------------------------------------------------------
def test_refused_message_fails_only_its_own_sender(context: Context) -> None:
    """C2, C11: one without Unicode text, one too large, one with a bad property; the others are sent together."""
    too_large = Message(body=b"x" * (domain_of(context).log("orders").snapshot.destination.max_message_bytes + 1))
    outcomes = send_together(
        context,
        Message(text="a"),
        Message(text="\ud800"),
        Message(text="b", properties={"a-b": 1}),
        too_large,
        Message(text="c"),
    )
    assert [type(outcome) for outcome in outcomes] == [
        Message,
        MessageFormatError,
        MessageFormatError,
        MessageSizeError,
        Message,
    ]
    assert "row 0 carries" in str(outcomes[3]), "counted in its sender's messages"
    assert [m.text for m in browse(context)] == ["first", "a", "c"]
    assert len(data_files(context)) == 2


def test_all_messages_of_a_group_refused(context: Context) -> None:
    """C2, C11: nothing is written."""
    outcomes = send_together(context, *(Message(text="\ud800") for _ in range(3)))
    assert all(isinstance(outcome, MessageFormatError) for outcome in outcomes)
    assert [m.text for m in browse(context)] == ["first"]
    assert len(data_files(context)) == 1


@pytest.mark.parametrize("late", [False, True])
def test_failed_commit_reaches_each_sender(context: Context, late: bool) -> None:
    """C5, C11: where a failed write cannot arrive later, the messages are certainly not sent; else it is unknown."""

    def arm() -> None:
        storage = domain_of(context).log("orders").storage
        assert isinstance(storage, HookedStorage)
        storage.failed_writes_may_arrive = late
        held = storage.hook

        def hook(step: str, path: str) -> None:
            held(step, path)
            if step == "before create" and is_commit(path):
                raise OSError("the disk is full")

        storage.hook = hook

    outcomes = send_together(context, Message(text="a"), Message(text="b"), Message(text="c"), before=arm)
    assert all(type(outcome) is (CommitOutcomeUnknownError if late else OSError) for outcome in outcomes)
    assert all("the disk is full" in str(outcome) for outcome in outcomes)
    assert len({id(outcome) for outcome in outcomes}) == 3, "each thread raises an instance of its own"
    assert [m.text for m in browse(context)] == ["first"]
    assert len(data_files(context)) == (2 if late else 1), "the log may still name them" if late else "deleted"


def test_failure_after_the_log_was_written_is_a_success(context: Context) -> None:
    """C5: the storage fails, and the log has the commit: the messages are sent once, and the senders learn it."""

    def arm() -> None:
        storage = domain_of(context).log("orders").storage
        assert isinstance(storage, HookedStorage)

        def hook(step: str, path: str) -> None:
            if step == "after create" and is_commit(path):
                raise OSError("the connection broke")

        storage.hook = hook

    outcomes = send_together(context, Message(text="a"), Message(text="b"), before=arm)
    assert [m.text for m in outcomes] == ["a", "b"]
    assert [m.text for m in browse(context)] == ["first", "a", "b"]


# -- interrupts and kills ----------------------------------------------------------------------------------------------
STEPS = ("encode", "before open_output", "after open_output", "before create", "after create", "sent")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_interrupted_leader_leaves_no_sender_waiting(
    context: Context, step: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11: Ctrl-C in the leader. The other senders are sent exactly once, or get CommitOutcomeUnknownError where a write
    may still arrive."""
    leader: list[int] = []

    def interrupt_once(where: str, path: str = "") -> None:
        if where == step and not leader and (is_commit(path) or "create" not in step):
            leader.append(threading.get_ident())
            raise KeyboardInterrupt

    encode, done = shared_send.Shipment.encode, group_commit.finish

    def encoding(shipment: shared_send.Shipment, *arguments: Any) -> None:
        interrupt_once("encode")
        encode(shipment, *arguments)

    def finishing(*arguments: Any) -> None:
        interrupt_once("sent")
        done(*arguments)

    def arm() -> None:
        """The first sender is in `create` of the log by now."""
        storage = domain_of(context).log("orders").storage
        assert isinstance(storage, HookedStorage)
        storage.failed_writes_may_arrive = late
        held, first = storage.hook, [True]
        monkeypatch.setattr(shared_send.Shipment, "encode", encoding)

        def hook(where: str, path: str) -> None:
            held(where, path)
            if where == "after create" and is_commit(path) and first:
                first.clear()
                monkeypatch.setattr(shared_send, "finish", finishing)
            else:
                interrupt_once(where, path)

        storage.hook = hook

    outcomes: list[Message | BaseException] = []
    gate = Gate(context)
    producer = context.producer("orders")

    def send(text: str) -> None:
        try:
            outcomes.append(producer.send(text=text))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            outcomes.append(error)

    threads = [threading.Thread(target=send, args=(text,)) for text in ("first", *"abcd")]
    threads[0].start()
    gate.wait_until_held()
    for queued, thread in enumerate(threads[1:], 1):
        thread.start()
        gate.wait_for_queue(queued)
    arm()
    gate.open()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    sent = [outcome.text for outcome in outcomes if isinstance(outcome, Message)]
    there = [m.text for m in browse(context)]
    assert leader
    assert len(there) == len(set(there)), "nothing doubled"
    assert set(sent) <= set(there), "nothing lost"
    unknown = [outcome for outcome in outcomes if isinstance(outcome, CommitOutcomeUnknownError)]
    assert sum(isinstance(outcome, KeyboardInterrupt) for outcome in outcomes) == 1
    assert len(sent) + len(unknown) == 4
    assert not unknown or (late and step == "before create")


@settings(max_examples=60, deadline=None)
@given(
    kill_at=st.integers(1, 60),
    threads=st.integers(1, 6),
    each=st.integers(1, 4),
    members=st.sampled_from([1, 3]),
)
def test_kill_at_any_step_loses_and_doubles_nothing(kill_at: int, threads: int, each: int, members: int) -> None:
    """C5, C11: the process dies at a random operation on the storage. Another process finds every message whose send has
    returned, each message at most once, dense sequences, and every thread's messages in its order."""
    with memory_domain(orders={"kind": "distributed-queue", "members": members}) as root:
        steps, dead = [0], threading.Event()
        lock = threading.Lock()

        def hook(step: str, path: str) -> None:
            with lock:
                steps[0] += 1
                if steps[0] >= kill_at:
                    dead.set()
            if dead.is_set():
                raise Killed

        context = connect(root, housekeeping=False)
        hook_into(context, "orders", hook)
        returned: list[str] = []

        def run(thread: int) -> None:
            producer = context.producer("orders")
            try:
                for n in range(each):
                    producer.send(text=f"{thread} {n}", group_id=str(thread))
                    if not dead.is_set():  # a dead process returns nothing
                        returned.append(f"{thread} {n}")
            except (Killed, JmsqError):
                pass

        workers = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(LIMIT_S)
            assert not worker.is_alive()
        snapshot = Domain(root).log("orders").refresh()
        with connect(root, housekeeping=False) as after:
            there = browse(after)
        context.close()
    found = [str(m.text) for m in there]
    assert set(returned) <= set(found)
    assert len(found) == len(set(found))
    for member in snapshot.members:
        assert sorted(m.sequence for m in there if m.member == member) == list(
            range(1, snapshot.last_sequence(member) + 1)
        )
    for thread in range(threads):
        own = [text for text in found if text.startswith(f"{thread} ")]
        assert own == [f"{thread} {n}" for n in range(len(own))]


@pytest.mark.parametrize("transacted", [False, True])
def test_refusal_is_decided_by_the_newest_declaration(tmp_path: Path, transacted: bool) -> None:
    """T2, C16: a context that has not looked since sends by a limit that was raised, and to a server that was added again."""
    root = str(tmp_path / "root")

    def declare(*on: str, limit: str = "1 KiB") -> None:
        servers = {name: {"store": "file"} for name in ("a", "b")}
        orders = {"kind": "distributed-queue", "servers": list(on), "maxMessageSize": limit}
        apply(root, {"servers": servers, "destinations": {"orders": orders}})

    declare("a", "b")
    with connect(root, housekeeping=False) as context, context.transacted_session() as session:
        maker = session if transacted else context
        producer, other = maker.producer("b@orders"), maker.producer("orders")
        declare("a")
        if not transacted:  # a session routes when it commits
            with pytest.raises(InvalidDestinationError, match=r"it is on: a\)"):
                producer.send(text="1")
        declare("a", "b", limit="100 KiB")
        producer.send(text="2")
        other.send(text="x" * 5_000)
        if transacted:
            session.commit()
        assert sorted(len(message.text or "") for message in context.browser("orders")) == [1, 5_000]
        declare("a", "b", limit="50 KiB")
        with pytest.raises(MessageSizeError, match="51200"):
            maker.producer("orders").send_many([{"text": "y" * 60_000}])
