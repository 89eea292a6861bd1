"""Messages move between destinations and members exactly once, whatever dies in between (C18)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.admin.backup import back_up
from spark_jms.admin.backup import restore as restore_backup
from spark_jms.admin.destinations import drop_destination, rename_destination
from spark_jms.admin.transfer import Moved, MoveOrder, move, plan_move
from spark_jms.claims.servers import stores
from spark_jms.claims.servers.stores import state_of, timed_stores
from spark_jms.claims.transactions import transfer as claims_transfer
from spark_jms.claims.upkeep import move as upkeep_move
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client.context.context import Context
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.records.stored_form import member_record
from spark_jms.core.selector import Selector
from spark_jms.errors import DestinationReplacedError, InvalidDestinationError, MessageSizeError, TransferError
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.sending import transfer as log_transfer
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.upkeep import clean_up as cleaning
from spark_jms.log.upkeep.clean_up import clean_up
from spark_jms.store import Session
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of


class Killed(BaseException):
    """As kill -9: nothing behind it runs."""


@pytest.fixture
def context() -> Iterator[Context]:
    queues: dict[str, Any] = {
        "orders": {"kind": "distributed-queue", "members": 2},
        "errors": {"kind": "distributed-queue", "members": 2},
        "small": {"kind": "queue", "max_message_bytes": 10},
        "news": {"kind": "topic"},
    }
    with memory_domain(**queues) as root, connect(root, housekeeping=False) as made:
        yield made


def send(context: Context, count: int, to: str = "orders") -> None:
    context.producer(to).send_many(
        {"text": f"{to}-{n}", "priority": n % 10, "properties": {"n": n, "half": n / 2}, "correlation_id": f"c{n}"}
        for n in range(count)
    )


def everything(context: Context, destination: str) -> dict[str, tuple[Any, ...]]:
    """message id -> what must stay the same, of the unfinished messages."""
    browser = context.browser(destination)
    found = [(m.message_id, (m.text, m.priority, m.properties, m.correlation_id, m.timestamp_ms)) for m in browser]
    assert len(dict(found)) == len(found), "a message is there twice"
    return dict(found)


def run(context: Context, request: MoveOrder) -> Moved:
    return move(domain_of(context), records_of(context), request, wait_s=5)


def test_moved_messages_keep_everything(context: Context) -> None:
    """C18: id, headers, typed properties, body and sending time; the origin acknowledges them."""
    send(context, 30)
    before = everything(context, "orders")
    assert plan_move(domain_of(context), records_of(context), MoveOrder("orders", "errors")) == Moved(30, 0)
    assert run(context, MoveOrder("orders", "errors")) == Moved(30, 0)
    assert everything(context, "errors") == before
    assert everything(context, "orders") == {}
    rows = views.acknowledgements(domain_of(context), records_of(context), "orders")
    assert {row.consumer for row in rows} == {"jmsq move"}
    assert sum(row.messages for row in rows) == 30


def test_selector_member_and_limit_narrow_a_move(context: Context) -> None:
    """C18, C7: in order of the sequences; a member of the target can be named."""
    send(context, 40)
    request = MoveOrder(
        "orders", "errors", selector=Selector.parse("JMSPriority > 4"), members=(1,), target_member=0, limit=3
    )
    assert run(context, request) == Moved(3, 0)
    browser = context.browser("errors")
    got = [(int(m.text.removeprefix("orders-")), m.member) for m in browser if m.text]
    assert [member for _, member in got] == [0, 0, 0]
    assert [n for n, _ in got] == sorted(n for n, _ in got)
    assert all(n % 10 > 4 for n, _ in got)
    assert run(context, MoveOrder("orders", "orders", members=(0,), target_member=1)) == Moved(20, 0)
    browser = context.browser("orders")
    assert {m.member for m in browser} == {1}


def test_consumers_claims_stay_and_are_counted(context: Context) -> None:
    """C18, C9: a claimed message belongs to its consumer."""
    send(context, 10)
    with context.consumer("orders", prefetch=4) as consumer:
        held = consumer.receive(timeout=5)
        assert held is not None
        moved = run(context, MoveOrder("orders", "errors"))
        assert (moved.moved, moved.claimed) == (6, 4)
        held.acknowledge()


def test_moves_from_and_to_a_topic(context: Context) -> None:
    """C18, C10: for the named subscription only; a topic's subscriptions all get what moves to it."""
    for name in ("a", "b"):
        context.consumer("news", subscription=name, starting_position="earliest").close()
    send(context, 5, to="news")
    with pytest.raises(InvalidDestinationError, match="name the subscription"):
        run(context, MoveOrder("news", "errors"))
    assert run(context, MoveOrder("news", "errors", subscription="a")).moved == 5
    assert run(context, MoveOrder("errors", "news")).moved == 5
    backlog = {
        row.subscription: row.backlog for row in views.subscriptions(domain_of(context), records_of(context), "news")
    }
    assert backlog == {"a": 5, "b": 10}


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (MoveOrder("orders", "orders"), "are there already"),
        (MoveOrder("orders", "errors", members=(7,)), "members 0 to 1, not 7"),
        (MoveOrder("orders", "errors", target_member=2), "members 0 to 1, not 2"),
        (MoveOrder("orders", "nowhere"), "no destination 'nowhere'"),
        (MoveOrder("orders", "errors", subscription="x"), "has no subscription 'x'"),
    ],
)
def test_impossible_moves_are_refused_by_name(context: Context, request_: MoveOrder, said: str) -> None:
    """C18: before anything changes."""
    with pytest.raises(InvalidDestinationError, match=said):
        run(context, request_)


def test_message_too_large_for_the_target_stays(context: Context) -> None:
    """C18: nothing is staged, claimed or moved."""
    send(context, 3)
    with pytest.raises(MessageSizeError):
        run(context, MoveOrder("orders", "small"))
    assert len(everything(context, "orders")) == 3
    assert not views.transfers(domain_of(context), records_of(context), "orders")
    assert not list(Path(domain_of(context).root, "small").glob("m0-*.parquet"))


# -- crashes ------------------------------------------------------------------------------------------------------------
STEPS = {
    "before the intent": (claims_transfer, "stage_transfer"),
    "after the intent": (claims_transfer, "append_transfer"),
    "before the end": (claims_transfer.Transfers, "finish"),
}


def killed_move(context: Context, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, *, after: bool) -> None:
    real = getattr(where, name)

    def die(*args: Any, **named: Any) -> Any:
        if after:
            real(*args, **named)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(where, name, die)
        with pytest.raises(Killed):
            run(context, MoveOrder("orders", "errors"))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", STEPS)
@pytest.mark.parametrize("recovery", ["move", "consumer", "housekeeping", "two at once"])
def test_killed_move_is_finished_by_the_next_process(
    context: Context, monkeypatch: pytest.MonkeyPatch, where: str, after: bool, recovery: str
) -> None:
    """C18: killed before and after each step, each message is in exactly one of the two destinations in the end."""
    send(context, 30)
    before = everything(context, "orders")
    killed_move(context, monkeypatch, *STEPS[where], after=after)
    if recovery == "two at once":  # the sleeping mover wakes and appends beside the recoverer
        snapshot = domain_of(context).log("orders").snapshot
        for member in range(2):
            state = state_of(records_of(context), snapshot, "-", member)
            for intent in state.intents.values():
                for other in (Domain(domain_of(context).root), Domain(domain_of(context).root)):
                    log_transfer.append_transfer(other.log("errors"), intent.targets[0], intent.ticket)
    if recovery in ("move", "two at once"):
        run(context, MoveOrder("orders", "errors"))
    elif recovery == "consumer":
        with context.consumer("orders", members=0) as zero, context.consumer("orders", members=1) as one:
            for consumer in (zero, one):
                consumer.receive(timeout=0.2)
    else:
        housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
        housekeeper.run()
        housekeeper.close()
    here, there = everything(context, "orders"), everything(context, "errors")
    assert not here.keys() & there.keys()
    assert {**here, **there} == before
    assert not views.transfers(domain_of(context), records_of(context), "orders")
    if recovery in ("move", "two at once"):
        assert not here


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", STEPS)
def test_backup_of_an_open_transfer_restores_each_message_once(
    context: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str, after: bool
) -> None:
    """C19, C18: the mover died before or after each step, and the backup is of that moment; the next move finishes."""
    send(context, 10)
    before = everything(context, "orders")
    killed_move(context, monkeypatch, *STEPS[where], after=after)
    back_up(domain_of(context), records_of(context), str(tmp_path / "backup"))
    restore_backup(str(tmp_path / "backup"), str(tmp_path / "restored"), "file")
    with connect(tmp_path / "restored", housekeeping=False) as restored:
        steps = [
            [row.next for row in views.transfers(domain_of(c), records_of(c), "orders")] for c in (context, restored)
        ]
        assert steps[0] == steps[1]  # the files that it has staged are there
        run(restored, MoveOrder("orders", "errors"))
        assert everything(restored, "orders") == {}
        assert everything(restored, "errors") == before
        assert not views.transfers(domain_of(restored), records_of(restored), "orders")


def test_move_interrupted_between_intent_and_acknowledgement_is_visible(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: `jmsq stat` names it; purge, drop and clean-up spare it."""
    send(context, 30)
    killed_move(context, monkeypatch, *STEPS["after the intent"], after=False)
    (row,) = views.transfers(domain_of(context), records_of(context), "orders")
    assert (row.targets, row.messages, row.next, row.reason) == (("errors",), 15, "append", "moved from orders")
    errors = domain_of(context).log("errors")
    monkeypatch.setattr(cleaning, "staged_grace_ms", lambda destination: -1_000_000)
    clean_up(errors)
    assert views.transfers(domain_of(context), records_of(context), "orders")[0].next == "append"
    run(context, MoveOrder("orders", "errors"))
    assert len(everything(context, "errors")) == 30
    clean_up(errors)
    assert len(everything(context, "errors")) == 30


def test_lost_staged_files_return_the_messages(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: the abort is a commit of the target, so a mover that sleeps can append nothing later."""
    send(context, 30)
    killed_move(context, monkeypatch, *STEPS["after the intent"], after=False)
    snapshot = domain_of(context).log("orders").snapshot
    (intent,) = state_of(records_of(context), snapshot, "-", 0).intents.values()
    for path in Path(domain_of(context).root, "errors").glob("m*-t*.parquet"):
        path.unlink()
    housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
    housekeeper.run()
    housekeeper.close()
    log_transfer.append_transfer(domain_of(context).log("errors"), intent.targets[0], intent.ticket)  # the sleeper
    assert everything(context, "errors") == {}
    browser = context.browser("orders")
    assert sorted(m.redelivered for m in browser) == [False] * 15 + [True] * 15


def test_replaced_target_returns_the_messages(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: a target of the same name with another table never gets them."""
    send(context, 30)
    killed_move(context, monkeypatch, *STEPS["after the intent"], after=False)
    root = Path(domain_of(context).root)
    declared = domain_of(context).log("errors").snapshot.destination
    (root / "errors").rename(root / "old-errors")
    (root / "_jmsq/destinations/errors").unlink()
    apply_destinations(Domain(domain_of(context).root), [declared], lambda d, m: False)
    housekeeper = Housekeeper(Domain(domain_of(context).root), records_of(context), "orders")
    housekeeper.run()
    housekeeper.close()
    assert len(everything(context, "orders")) == 30
    assert not views.transfers(domain_of(context), records_of(context), "orders")


def test_process_that_knows_the_target_that_was_there_before_returns_nothing(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: the target was dropped and made again, and has the messages. A process that has last read the first table would take
    the second one for a replaced target, and make the messages available at their origin, too."""
    send(context, 5, "errors")
    other = Domain(domain_of(context).root)
    declared = other.log("errors").refresh().destination
    drop_destination(domain_of(context), records_of(context), "errors", force=True)
    apply_destinations(domain_of(context), [declared], lambda d, m: False)
    send(context, 30)
    killed_move(context, monkeypatch, *STEPS["after the intent"], after=True)
    housekeeper = Housekeeper(other, records_of(context), "orders")
    housekeeper.run()
    housekeeper.close()
    assert not views.transfers(domain_of(context), records_of(context), "orders")
    assert [len(everything(context, name)) for name in ("orders", "errors")] == [15, 15]


def test_transfer_finds_its_target_under_a_new_name(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: the target has the messages, is renamed, and another destination gets its name: the table's id decides."""
    send(context, 30)
    killed_move(context, monkeypatch, *STEPS["after the intent"], after=True)
    declared = domain_of(context).log("errors").snapshot.destination
    rename_destination(domain_of(context), records_of(context), "errors", "old-errors", force=True)
    apply_destinations(domain_of(context), [declared], lambda d, m: False)
    run(context, MoveOrder("orders", "errors"))
    assert everything(context, "orders") == {}
    assert [len(everything(context, name)) for name in ("old-errors", "errors")] == [15, 15]


def test_target_that_cannot_be_reached_decides_nothing(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: while the target's log cannot be read, the messages move; housekeeping names it and finishes later."""
    send(context, 30)
    killed_move(context, monkeypatch, *STEPS["after the intent"], after=False)
    housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
    refresh = DeltaLog.refresh

    def unreachable(self: DeltaLog) -> Any:
        if self.name == "errors":
            raise OSError("no route to the storage")
        return refresh(self)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "refresh", unreachable)
        housekeeper.run()
        (row,) = views.transfers(domain_of(context), records_of(context), "orders")
        assert "no route" in row.next
        (failure,) = housekeeper.health.failures.values()
        assert failure.what == "recovery of transfers"
        with pytest.raises(TransferError, match="no route"):
            claims_transfer.recover_transfers(
                claims_transfer.Transfers(domain_of(context), domain_of(context).log("orders")),
                records_of(context).connect("admin"),
                domain_of(context).log("orders").snapshot,
                housekeeper.state_now,
                pledges=housekeeper.pledges,
            )
    housekeeper.close()
    run(context, MoveOrder("orders", "errors"))
    assert len(everything(context, "errors")) == 30


def test_housekeeping_reads_a_record_set_once_a_round(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13, C18: its purge and its search for open transfers share the states that the round has read."""
    send(context, 30)
    killed_move(context, monkeypatch, *STEPS["after the intent"], after=False)
    housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
    reads: list[str] = []
    asked = timed_stores(records_of(context))
    peek = asked.peek
    monkeypatch.setattr(asked, "peek", lambda name: reads.append(name) or peek(name))
    for _ in range(2):
        reads.clear()
        housekeeper.run()
        read = [name for name in reads if name.startswith("members/")]
        assert len(read) == len(set(read)) == 2
    assert not views.transfers(domain_of(context), records_of(context), "orders")
    housekeeper.close()


def test_restored_record_set_never_takes_an_old_transfer_for_its_own(context: Context) -> None:
    """C18: a record set restored from an older copy counts from an older number; the target knows that number."""
    send(context, 2)
    snapshot = domain_of(context).log("orders").refresh()
    run(context, MoveOrder("orders", "errors", members=(0,)))
    record = member_record(snapshot.table_id, "-", 0)
    copy = records_of(context).peek(record)
    send(context, 2)
    run(context, MoveOrder("orders", "errors", members=(0,)))
    with records_of(context).connect("restore") as session:
        restore(session, record, copy)
    send(context, 2)
    run(context, MoveOrder("orders", "errors"))
    here = everything(context, "orders")
    assert here == {}
    browser = context.browser("errors")
    texts = [m.message_id for m in browser]
    assert len(set(texts)) == 6, "a message was taken for one that had moved already"


def restore(session: Session, record: str, copy: dict[str, bytes]) -> None:
    from spark_jms.store import Delete, Put

    with session.open(record) as handle:
        old = handle.objects()
        handle.commit([*(Delete(k) for k in old.keys() - copy.keys()), *(Put(k, v) for k, v in copy.items())])


def test_transfer_in_many_pieces(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: more messages than one transfer takes."""
    monkeypatch.setattr(upkeep_move, "BATCH", 7)
    send(context, 40)
    before = everything(context, "orders")
    assert run(context, MoveOrder("orders", "errors", limit=33)).moved == 33
    here, there = everything(context, "orders"), everything(context, "errors")
    assert (len(here), len(there)) == (7, 33)
    assert {**here, **there} == before


def test_target_that_loses_a_member_takes_all(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18, C4: between staging and append a member of the target is removed; its files are routed again."""
    from attrs import evolve

    declared = domain_of(context).log("errors").refresh().destination
    apply_destinations(domain_of(context), [evolve(declared, members=4)], lambda d, m: True)
    send(context, 40)
    killed_move(context, monkeypatch, *STEPS["after the intent"], after=False)
    apply_destinations(domain_of(context), [evolve(declared, members=2)], lambda d, m: True)
    run(context, MoveOrder("orders", "errors"))
    assert len(everything(context, "errors")) == 40


@pytest.mark.parametrize("replaced", ["orders", "errors"])
def test_destination_that_is_replaced_meanwhile_is_left_alone(
    context: Context, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """C18: the sequences of the old table mean other messages in the new one. What has moved by then stays moved; the messages of a
    new source stay there, and a new target gets none."""
    send(context, 10)
    opened, rounds = stores.opened_records, []

    def beside(*given: Any, **named: Any) -> Any:
        rounds.append(1)
        if len(rounds) == 3:
            drop_destination(domain_of(context), records_of(context), replaced, force=True)
            again = Destination(replaced, "distributed-queue", 2)
            apply_destinations(domain_of(context), [again], lambda name, member: False)
            if replaced == "orders":
                with connect(context.root, housekeeping=False) as other:
                    send(other, 10)
        return opened(*given, **named)

    monkeypatch.setattr(upkeep_move, "opened_records", beside)
    monkeypatch.setattr(upkeep_move, "BATCH", 2)
    with pytest.raises(
        DestinationReplacedError, match=f"{replaced} was dropped and created again while messages moved: 4 "
    ):
        run(context, MoveOrder("orders", "errors"))
    left = {"orders": (10, 4), "errors": (6, 0)}[replaced]
    assert (len(everything(context, "orders")), len(everything(context, "errors"))) == left


def test_order_for_a_replaced_source_moves_nothing(context: Context) -> None:
    """C18, D5: a forwarder has looked at the members of the old table."""
    send(context, 3)
    with pytest.raises(DestinationReplacedError, match="0 message"):
        run(context, MoveOrder("orders", "errors", table_id="another"))
    assert len(everything(context, "orders")) == 3


def test_moved_message_begins_again(context: Context) -> None:
    """C18, D5: it is not flagged at its new place, where nothing is known of earlier deliveries; its id stays."""
    send(context, 1)
    with context.consumer("orders", acknowledge="individual") as consumer:
        message = consumer.receive(30)
        assert message is not None
        message.reject()
    run(context, MoveOrder("orders", "errors"))
    with context.consumer("errors", acknowledge="individual") as consumer:
        moved = consumer.receive(30)
        assert moved is not None
        assert (moved.message_id, moved.redelivered, moved.delivery_count) == (message.message_id, False, 1)
