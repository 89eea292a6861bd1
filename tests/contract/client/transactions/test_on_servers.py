"""Transactions over several servers (T16, M10): messages of two servers and sends to two destinations are one transaction, whatever
step its owner dies in, whichever process completes it, and whichever server is away."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spark_jms
from spark_jms.admin import backup as backups
from spark_jms.admin.backup import back_up, restore
from spark_jms.admin.destinations import pause, resume
from spark_jms.admin.servers import transactions
from spark_jms.claims.batches.acknowledgement import Acknowledger
from spark_jms.claims.transactions.transaction import Coordinator
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.cli.__main__ import cli
from spark_jms.client import TransactedSession
from spark_jms.client.receiving.delivery import TransactedDelivery
from spark_jms.client.transactions import coordinated_commit
from spark_jms.core.destinations.pause import INSERTION
from spark_jms.errors import (
    CommitOutcomeUnknownError,
    ConsumerClosedException,
    JmsqError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import MemoryStore, StoreBusyError
from spark_jms.testing import wait_until
from spark_jms.testing.inside import coordinators_of, domain_of, records_of
from tests.harness.domains.servers import SERVERS, Away

ORDERS = [str(n) for n in range(6)]
DESTINATIONS: dict[str, Any] = {
    "orders": {"kind": "distributed-queue", "servers": ["a", "b"]},
    "audit": {"kind": "queue"},
    "prices": {"kind": "distributed-queue", "servers": ["b"]},
}
NOTHING = (ORDERS, [], [])
EVERYTHING = ([], ["seen"], ["price"])


def shown(root: str) -> tuple[list[str], list[str], list[str]]:
    """The messages of orders, audit and prices that are not acknowledged and not pledged."""
    with spark_jms.connect(root, housekeeping=False) as context:
        found = [sorted(str(m.text) for m in context.browser(name)) for name in DESTINATIONS]
        return found[0], found[1], found[2]


def drained(root: str, destination: str) -> list[Any]:
    """Every message that a new consumer gets, acknowledged."""
    with spark_jms.connect(root, housekeeping=False) as context, context.consumer(destination) as consumer:
        found = []
        while (message := consumer.receive(timeout=0.5)) is not None:
            message.acknowledge()
            found.append(message)
        return found


def sent(root: str) -> None:
    """Three orders for each server: round robin splits a batch."""
    with spark_jms.connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": text} for text in ORDERS)


def worked(session: TransactedSession) -> Any:
    """Take every order, and send to both destinations. Returns the consumer."""
    consumer = session.consumer("orders", prefetch=len(ORDERS))
    for _ in ORDERS:
        assert consumer.receive(timeout=10) is not None
    session.producer("audit").send(text="seen")
    session.producer("prices").send(text="price")
    return consumer


def open_ones(root: str) -> list[Any]:
    with spark_jms.connect(root, housekeeping=False) as context:
        return transactions(domain_of(context), records_of(context))


# -- an owner that dies -------------------------------------------------------------------------------------------------
@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[str]:
    """A domain on servers whose sessions a test can kill."""
    where, stores = str(tmp_path / "root"), {name: f"transactions-{uuid.uuid4().hex}" for name in ("home", "a", "b")}
    servers = {name: {"store": f"memory://{stores[name]}"} for name in ("a", "b")}
    module = {"store": f"memory://{stores['home']}", "servers": servers, "destinations": DESTINATIONS}
    spark_jms.apply(where, module)
    sent(where)
    yield where
    for name in stores.values():
        MemoryStore.forget(name)


def kill_sessions(root: str) -> None:
    """Of every client that is connected now, in all stores."""
    domain = Domain(root)
    for uri in (domain.store_uri, *(domain.server_uri(server) for server in ("a", "b"))):
        store = MemoryStore(uri.removeprefix("memory://"))
        for session_id in store.sessions():
            store.crash(session_id)


@dataclass
class Owner:
    """A thread with a transaction that stops in one of its steps, for good as far as others know: its sessions are dead."""

    root: str
    stopped: threading.Event = field(default_factory=threading.Event)
    woken: threading.Event = field(default_factory=threading.Event)
    outcome: list[object] = field(default_factory=list)

    def run(self) -> None:
        try:
            with spark_jms.connect(self.root, housekeeping=False) as context, context.transacted_session() as session:
                worked(session)
                session.commit()
            self.outcome.append(None)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.outcome.append(error)

    def stop(self) -> None:
        kill_sessions(self.root)
        self.stopped.set()
        assert self.woken.wait(60)


PLACES: dict[str, object] = {
    "begin": Coordinator,
    "end": Coordinator,
    "decide": Coordinator,
    "pledge": Acknowledger,
    "end_pledges": Acknowledger,
    "append_transfer": coordinated_commit,
}
# A step, the how-manieth of its calls, and whether the owner stops before or after it.
POINTS = [
    ("begin", 1, "after"),
    ("pledge", 1, "before"),
    ("pledge", 1, "after"),
    ("pledge", 2, "after"),
    ("decide", 1, "before"),
    ("decide", 1, "after"),
    ("append_transfer", 1, "after"),
    ("append_transfer", 2, "after"),
    ("end_pledges", 1, "after"),
    ("end_pledges", 2, "after"),
    ("end", 1, "before"),
    ("end", 1, "after"),
]
DECIDED = POINTS.index(("decide", 1, "after"))


@contextmanager
def stopped_owner(root: str, point: tuple[str, int, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    """It wakes after the block, when others have completed its transaction, and may change nothing."""
    function, nth, when = point
    owner, calls = Owner(root), [0]
    thread = threading.Thread(target=owner.run, daemon=True)
    original: Callable[..., Any] = getattr(PLACES[function], function)

    def struck(*arguments: Any, **options: Any) -> Any:
        if owner.stopped.is_set():
            return original(*arguments, **options)
        calls[0] += 1
        strikes = calls[0] == nth
        if strikes and when == "before":
            owner.stop()
        result = original(*arguments, **options)
        if strikes and when == "after":
            owner.stop()
        return result

    with monkeypatch.context() as patch:
        patch.setattr(PLACES[function], function, struck)
        thread.start()
        wait_until(lambda: owner.stopped.is_set() or bool(owner.outcome))
        assert owner.stopped.is_set(), owner.outcome
        try:
            yield owner
        finally:
            owner.woken.set()
            thread.join(60)


def by_command(root: str) -> None:
    result = CliRunner().invoke(cli, ["transactions", "--complete", "--root", root])
    assert result.exit_code == 0, result.output


def has_ended(root: str) -> bool:
    """By the command, or by a consumer that lives: it acknowledges with its next plan, and the command waits for none."""
    CliRunner().invoke(cli, ["transactions", "--complete", "--root", root])
    return not open_ones(root)


def by_housekeeping(root: str) -> None:
    with spark_jms.connect(root):
        wait_until(lambda: not open_ones(root))


@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_owner_dead_at_any_step_leaves_all_or_nothing(
    in_memory: str, point: tuple[str, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16, M10: the command completes it. Then the owner wakes: it changes nothing, and learns how its transaction ended."""
    expected = EVERYTHING if POINTS.index(point) >= DECIDED else NOTHING
    with stopped_owner(in_memory, point, monkeypatch) as owner:
        by_command(in_memory)
        assert not open_ones(in_memory)
        assert shown(in_memory) == expected
    error = owner.outcome[0]
    if expected is NOTHING:
        assert isinstance(error, TransactionRolledBackException), error
    assert shown(in_memory) == expected
    assert not open_ones(in_memory)
    assert sorted(str(m.text) for m in drained(in_memory, "orders")) == expected[0]


def restored_copy(root: str, where: Path) -> str:
    """A new domain on file stores, from a backup."""
    with opened_store(Domain(root)) as store:
        back_up(Domain(root), store, str(where / "backup"))
    copy = str(where / "restored")
    restore(str(where / "backup"), copy, "file", servers={"a": "file", "b": "file"})
    return copy


@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_backup_beside_an_open_transaction_restores_all_or_nothing(
    in_memory: str, point: tuple[str, int, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C19, T16: what is decided and not complete is completed in the restored domain, each message exactly once."""
    expected = EVERYTHING if POINTS.index(point) >= DECIDED else NOTHING
    with stopped_owner(in_memory, point, monkeypatch):
        copy = restored_copy(in_memory, tmp_path)
        by_command(copy)
        assert not open_ones(copy)
        assert tuple(sorted(str(m.text) for m in drained(copy, name)) for name in DESTINATIONS) == expected


def test_backup_with_a_paused_target_is_made_and_completed_once_it_resumes(
    in_memory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C19, T16: the backup waits for no target."""
    with stopped_owner(in_memory, ("decide", 1, "after"), monkeypatch):
        pause(Domain(in_memory), "audit", [INSERTION])
        copy = restored_copy(in_memory, tmp_path)
        assert not has_ended(copy)
        resume(Domain(copy), "audit", [INSERTION])
        by_command(copy)
        assert tuple(sorted(str(m.text) for m in drained(copy, name)) for name in DESTINATIONS) == EVERYTHING


def test_backup_without_a_staged_file_is_made_and_names_it(
    in_memory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C19, T16: a file that was deleted by hand blocks its transaction in the copy as in the domain, and keeps nothing else back."""
    with stopped_owner(in_memory, ("decide", 1, "after"), monkeypatch):
        (gone,) = Path(in_memory, "audit").glob("m*.parquet")
        gone.unlink()
        copy = restored_copy(in_memory, tmp_path)
        assert gone.name in caplog.text
        assert not has_ended(copy)
        (blocked,) = open_ones(copy)
        assert any("audit: blocked" in text for text in blocked.waits)
        assert [m.text for m in drained(copy, "prices")] == EVERYTHING[2]


def test_transaction_decided_between_two_stores_of_a_backup_is_not_lost(
    in_memory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C19, T16, M10: a server's store that says "acknowledged" has a coordinator that says "committed"."""
    read, done = backups.stored_records, list[str]()

    def then_a_transaction(store: Any, server: str) -> Any:
        found = read(store, server)
        if not done:
            done.append(server)
            with spark_jms.connect(in_memory, housekeeping=False) as context, context.transacted_session() as session:
                worked(session)
                with monkeypatch.context() as patch:
                    patch.setattr(coordinated_commit, "append_transfer", _no_answer)
                    with pytest.raises(TransactionUnfinishedError):
                        session.commit()
        return found

    monkeypatch.setattr(backups, "stored_records", then_a_transaction)
    copy = restored_copy(in_memory, tmp_path)
    by_command(copy)
    assert [[str(m.text) for m in drained(copy, name)] for name in ("audit", "prices")] == [["seen"], ["price"]]


def _no_answer(*_: Any, **__: Any) -> None:
    raise OSError("no answer")


@pytest.mark.parametrize("point", [("pledge", 2, "after"), ("decide", 1, "after"), ("end_pledges", 1, "after")])
def test_housekeeping_completes_transaction_of_several_servers(
    in_memory: str, point: tuple[str, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16, M10: without a command or a consumer."""
    with stopped_owner(in_memory, point, monkeypatch):
        with spark_jms.connect(in_memory) as context:
            context.producer("audit")  # a client keeps house for the destinations that it uses
            wait_until(lambda: not open_ones(in_memory))
        assert shown(in_memory) == (EVERYTHING if POINTS.index(point) >= DECIDED else NOTHING)


@pytest.mark.parametrize("point", [("pledge", 2, "after"), ("decide", 1, "after"), ("append_transfer", 1, "after")])
def test_consumer_of_second_server_ends_its_pledges(
    in_memory: str, point: tuple[str, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16, M10: it asks the coordinator in the home store. Of an undecided transaction it gets the messages, flagged and counted;
    of a decided one it never gets them."""
    decided = POINTS.index(point) >= DECIDED
    with stopped_owner(in_memory, point, monkeypatch):
        with spark_jms.connect(in_memory, housekeeping=False) as context, context.consumer("b@orders") as consumer:
            found = []
            while (message := consumer.receive(timeout=1)) is not None:
                message.acknowledge()
                found.append(message)
        assert all(m.redelivered and m.delivery_count == 2 for m in found)
        taken = {str(m.text) for m in found}
        assert len(taken) == len(found) == (0 if decided else 3)
        by_command(in_memory)
        expected = EVERYTHING if decided else (sorted(set(ORDERS) - taken), [], [])
        assert shown(in_memory) == expected
    assert shown(in_memory) == expected


def test_next_session_completes_transaction_of_several_servers(in_memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16, M10: it takes the coordinator of the dead owner, and first ends what is open there."""
    with stopped_owner(in_memory, ("decide", 1, "after"), monkeypatch):
        with spark_jms.connect(in_memory, housekeeping=False) as context, context.transacted_session() as session:
            session.producer("audit").send(text="seen")
            session.producer("prices").send(text="price")
            session.commit()
        assert not open_ones(in_memory)
    assert shown(in_memory) == ([], ["seen", "seen"], ["price", "price"])


def test_owner_whose_session_was_replaced_cannot_tell_the_outcome(
    in_memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16: the decision is written and its call fails; another process completes the transaction before the owner can ask. The
    owner does not say that it was rolled back."""
    with spark_jms.connect(in_memory, housekeeping=False) as context, context.transacted_session() as session:
        worked(session)
        original = Coordinator.decide

        def failing(self: Coordinator, *arguments: Any) -> None:
            original(self, *arguments)
            kill_sessions(in_memory)
            coordinators_of(context).give_back(coordinators_of(context).take())  # another session of this context
            by_command(in_memory)
            raise StoreBusyError("no answer")

        monkeypatch.setattr(Coordinator, "decide", failing)
        with pytest.raises(CommitOutcomeUnknownError):
            session.commit()
        monkeypatch.undo()
        assert shown(in_memory) == EVERYTHING


# -- a server that is away ----------------------------------------------------------------------------------------------
@pytest.fixture
def on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A domain on servers whose file stores a test can move away."""
    monkeypatch.setattr("spark_jms.client.receiving.receiver.WRITE_TIMEOUT_S", 1.0)
    where = str(tmp_path / "root")
    spark_jms.apply(where, {"servers": {name: SERVERS[name] for name in ("a", "b")}, "destinations": DESTINATIONS})
    sent(where)
    return where


class HomeAway(Away):
    """Of the domain's own store."""

    def __init__(self, root: str) -> None:
        self._here = Path(root) / "_jmsq" / "store"
        self._there = self._here.with_name("store-away")


@contextmanager
def away_from(
    away: Away, place: object, function: str, monkeypatch: pytest.MonkeyPatch, *, when: str
) -> Iterator[None]:
    """The server is away from the first call of this function on, to the end of the block."""
    original: Callable[..., Any] = getattr(place, function)
    calls = [0]

    def called(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1 and when == "before":
            away.__enter__()
        result = original(*arguments, **options)
        if calls[0] == 1 and when == "after":
            away.__enter__()
        return result

    with monkeypatch.context() as patch:
        patch.setattr(place, function, called)
        try:
            yield
        finally:
            if calls[0]:
                away.__exit__()
    assert calls[0]


@pytest.mark.parametrize("server", ["a", "b"])
def test_server_away_at_pledge_rolls_back(on_files: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16, M10: the error has its cause; the other server's messages come again at once, those of the away one when it is back."""
    with spark_jms.connect(on_files, housekeeping=False) as context, context.transacted_session() as session:
        consumer = worked(session)
        with (
            away_from(Away(on_files, server), TransactedDelivery, "pledge", monkeypatch, when="before"),
            pytest.raises(TransactionRolledBackException, match=f"server {server}") as raised,
        ):
            session.commit()
        assert isinstance(raised.value.__cause__, JmsqError)
        with pytest.raises(ConsumerClosedException, match=f"server {server}"):
            consumer.receive(timeout=1)
        consumer.close()
        assert not transactions(domain_of(context), records_of(context))
        assert shown(on_files) == NOTHING
        worked(session)
        session.commit()
    assert shown(on_files) == EVERYTHING


@pytest.mark.parametrize("server", ["a", "b"])
def test_server_away_after_decision_acknowledges_when_it_is_back(
    on_files: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16, M10: the commit returns, or says that it is committed and not finished; nothing is delivered again, and the transaction
    ends when the server is back."""
    with spark_jms.connect(on_files, housekeeping=False) as context, context.transacted_session() as session:
        worked(session)
        with away_from(Away(on_files, server), Coordinator, "decide", monkeypatch, when="after"):
            session.commit()
            (row,) = transactions(domain_of(context), records_of(context))
            assert row.state == "committed"
        wait_until(lambda: has_ended(on_files))
    assert drained(on_files, "orders") == []
    assert shown(on_files) == EVERYTHING


@pytest.mark.parametrize("when", ["before", "after"])
def test_home_store_away_at_decision(on_files: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16, M10: before it, the owner cannot tell the outcome; after it, the commit is complete. When the store is back, any other
    process ends the transaction, although its owner lives."""
    with spark_jms.connect(on_files, housekeeping=False) as context, context.transacted_session() as session:
        consumer = worked(session)
        with away_from(HomeAway(on_files), Coordinator, "decide", monkeypatch, when=when):
            if when == "before":
                with pytest.raises(CommitOutcomeUnknownError):
                    session.commit()
            else:
                session.commit()

        wait_until(lambda: has_ended(on_files))
        if when == "before":
            again = [consumer.receive(timeout=10) for _ in ORDERS]
            assert all(message is not None and message.delivery_count == 2 for message in again)
        else:
            assert shown(on_files) == EVERYTHING
            session.producer("audit").send(text="more")
            session.producer("prices").send(text="more")
            session.commit()
            assert shown(on_files) == ([], ["more", "seen"], ["more", "price"])
    assert not open_ones(on_files)
    if when == "before":
        assert shown(on_files) == NOTHING
