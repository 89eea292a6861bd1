"""The rules of pauses: routing, commits of senders and transfers, and the stored form (T14)."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.pause import CONSUMPTION, INSERTION, OPERATIONS, PRODUCTION, Pause, Pauses
from spark_jms.core.destinations.routing import route, route_of
from spark_jms.core.transactions.transfer import StagedFile, Ticket, TransferTarget
from spark_jms.errors import FormatVersionError, InsertionPausedError, ProductionPausedError
from spark_jms.log.destinations.declarations import PauseOrder, decide_pauses
from spark_jms.log.sending.send import Shipping, TransactionId, decide_send
from spark_jms.log.sending.transfer import decide_abort, decide_append
from spark_jms.log.tables.files import LayeredMap
from spark_jms.log.tables.snapshot import Snapshot, TableMetadata

MEMBERS = 5
operations = st.sampled_from(sorted(OPERATIONS))
pauses = st.lists(
    st.builds(Pause, operations, st.none() | st.integers(0, MEMBERS - 1), st.integers(1, 9), st.integers(0, 99)),
    max_size=6,
    unique_by=lambda pause: (pause.operation, pause.member),
).map(lambda found: Pauses().from_json(Pauses(tuple(found)).to_json()))
policies = st.sampled_from(
    [("round-robin", ()), ("random", ()), ("weighted", (1, 0, 3, 0, 2))],
)


NONE = Pauses()


def destination(paused: Pauses = NONE, epoch: int = 9) -> Destination:
    return Destination("orders", "distributed-queue", MEMBERS, pauses=paused, epoch=epoch)


def snapshot(of: Destination) -> Snapshot:
    return Snapshot("orders", 3, TableMetadata({"id": "t", "configuration": of.to_configuration()}, "orders"))


def staged(*members: int) -> tuple[StagedFile, ...]:
    return tuple(StagedFile(f"m{m}-x.parquet", m, 1, 1, 0, "{}") for m in members)


def paused(operation: str, member: int | None = None, epoch: int = 5) -> Destination:
    return destination(Pauses((Pause(operation, member, epoch, 100),)))


# -- routing ---------------------------------------------------------------------------------------------------------------
@given(pauses, policies, st.integers(0, 40), st.integers(0, 99))
def test_routing_avoids_paused_members(
    found: Pauses, policy: tuple[str, tuple[int, ...]], rows: int, turn: int
) -> None:
    """T14, D2: while a member is open, no message without a unit of order goes to one that is paused for production or
    insertion; a member of weight 0 gets nothing either."""
    declared = attrs.evolve(destination(found), routing=policy[0], weights=policy[1])
    where = set(route(route_of(declared), pa.nulls(rows, pa.string()), turn).tolist())
    shut = found.members(PRODUCTION, range(MEMBERS)) | found.members(INSERTION, range(MEMBERS))
    takes = {m for m in range(MEMBERS) if not policy[1] or policy[1][m]}
    if takes - shut:
        assert not where & shut
        assert where <= takes
    else:  # the commit decides
        assert where <= set(range(MEMBERS))


@given(pauses, st.lists(st.text(max_size=3), min_size=1, max_size=20))
def test_units_of_order_keep_their_member_through_pauses(found: Pauses, ids: list[str]) -> None:
    """T14, T10: a unit that hashes to a paused member is refused there, never routed to another."""
    groups = pa.array(ids)
    assert route(route_of(destination(found)), groups, 1) == route(route_of(destination()), groups, 2)


def test_round_robin_balances_the_open_members() -> None:
    """T14, D2: the open members take turns."""
    declared = paused(PRODUCTION, 1)
    turns = [int(route(route_of(declared), pa.nulls(1, pa.string()), turn)[0]) for turn in range(8)]
    assert turns == [0, 2, 3, 4, 0, 2, 3, 4]


def test_transfers_avoid_insertion_when_all_production_is_paused() -> None:
    """T14: production paused everywhere closes no member to transfers; insertion does."""
    both = Pauses((Pause(PRODUCTION, None, 1, 1), Pause(INSERTION, 0, 1, 1)))
    assert route_of(destination(both)).closed == {0}
    assert route_of(destination(Pauses((Pause(INSERTION, None, 1, 1),)))).closed == frozenset()


# -- the commit of a sender --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("member", [None, 2])
def test_sends_planned_after_a_production_pause_are_refused(member: int | None) -> None:
    """T14: whoever planned by an earlier epoch is in flight, and commits."""
    before = snapshot(paused(PRODUCTION, member))
    with pytest.raises(ProductionPausedError, match="jmsq resume orders"):
        decide_send(before, Shipping(staged(2), 5), None, 0)
    assert decide_send(before, Shipping(staged(2), 4), None, 0) is not None


def test_other_members_of_a_paused_one_are_sent_to() -> None:
    """T14: one paused member refuses a commit with messages for it, and no other."""
    before = snapshot(paused(PRODUCTION, 2))
    assert decide_send(before, Shipping(staged(0, 1), 9), None, 0) is not None
    with pytest.raises(ProductionPausedError, match="member 2"):
        decide_send(before, Shipping(staged(0, 2), 9), None, 0)


def test_insertion_pause_holds_back_work_in_flight() -> None:
    """T14: also of a sender that planned before it; production is refused first."""
    with pytest.raises(InsertionPausedError):
        decide_send(snapshot(paused(INSERTION)), Shipping(staged(2), 1), None, 0)
    all_of_it = destination(Pauses().pause(list(OPERATIONS), None, 5, 0))
    with pytest.raises(ProductionPausedError):
        decide_send(snapshot(all_of_it), Shipping(staged(2), 5), None, 0)
    with pytest.raises(InsertionPausedError):
        decide_send(snapshot(all_of_it), Shipping(staged(2), 4), None, 0)


def test_consumption_pause_refuses_no_sender() -> None:
    """T14"""
    assert decide_send(snapshot(paused(CONSUMPTION)), Shipping(staged(2), 9), None, 0) is not None


def test_repeated_transaction_is_not_refused() -> None:
    """T14, C5: what is in the log already needs no insertion."""
    known = Snapshot("orders", 3, snapshot(paused(PRODUCTION)).table, LayeredMap({"app/a": 7}))
    assert decide_send(known, Shipping(staged(2), 9), TransactionId("app/a", 7), 0) is None


def test_transfers_wait_for_insertion_alone() -> None:
    """T14, C18: a production pause does not concern a transfer, and it can be refused for good while insertion is paused."""
    ticket = Ticket("n", 0, 1)
    target = TransferTarget("orders", "t", staged(2))
    assert decide_append(snapshot(paused(PRODUCTION)), target, ticket, target.files, 0) is not None
    with pytest.raises(InsertionPausedError):
        decide_append(snapshot(paused(INSERTION)), target, ticket, target.files, 0)
    assert decide_append(snapshot(paused(INSERTION, 1)), target, ticket, target.files, 0) is not None
    assert decide_abort(snapshot(paused(INSERTION)), target, ticket, 0) is not None


# -- pausing and resuming --------------------------------------------------------------------------------------------------
@given(pauses, st.sets(operations, min_size=1), st.none() | st.sets(st.integers(0, MEMBERS - 1), min_size=1))
def test_resume_undoes_pause(found: Pauses, which: set[str], members: set[int] | None) -> None:
    """T14: after a pause all of it is paused, after the resume of the same scope none of it by itself; nothing else changes,
    and a second pause changes nothing."""
    after = found.pause(which, members, 50, 1000)
    scope = set(range(MEMBERS)) if members is None else members
    for operation in which:
        assert after.members(operation, range(MEMBERS)) >= scope
    assert after.pause(which, members, 60, 2000) == after
    assert {p for p in after.all if p.operation not in which} == {p for p in found.all if p.operation not in which}
    resumed = after.resume(which, members)
    assert not [p for p in resumed.all if p.operation in which and (members is None or p.member in members)]
    assert set(resumed.all) <= set(found.all)


@given(pauses)
def test_stored_form_keeps_every_pause(found: Pauses) -> None:
    """T14: through the table's metadata; a table of an earlier version has none."""
    stored = destination(found).to_configuration()
    assert Destination.from_configuration(stored, "x").pauses == found
    del stored["jmsq.paused"]
    assert Destination.from_configuration(stored, "x").pauses == Pauses()


@pytest.mark.parametrize(
    "entry", [{"operation": "browsing", "scope": "member"}, {"operation": "production", "scope": "cluster"}]
)
def test_unknown_pauses_are_refused_by_name(entry: dict[str, str]) -> None:
    """T14, C16: a scope of a later version is not taken for no pause."""
    with pytest.raises(FormatVersionError, match="later spark-jms"):
        Pauses.from_json([entry])


servers = st.dictionaries(
    st.sampled_from(["east", "west"]), st.dictionaries(operations, st.integers(0, 99), min_size=1), max_size=2
)


def on(server: str) -> list[int]:
    return {"east": [0, 2], "west": [1]}[server]


@given(pauses, servers, servers)
def test_pauses_of_servers_stand_beside_the_others(found: Pauses, before: Any, after: Any) -> None:
    """T14: each ends by itself, and is stored; those that stand keep their epoch."""
    first = found.of_servers(before, on, 10)
    both = first.of_servers(after, on, 11)
    assert Pauses.from_json(both.to_json()) == both
    assert both.of_servers({}, on, 12) == found
    for server, wanted in after.items():
        for operation in OPERATIONS:
            for member in on(server):
                own = [p for p in both.all if (p.operation, p.member, p.server) == (operation, member, server)]
                stood = before.get(server, {}).keys() & {operation}
                assert [p.epoch for p in own] == ([10 if stood else 11] if operation in wanted else [])
    assert both.resume(list(OPERATIONS), None).all == tuple(p for p in both.all if p.server is not None)
    assert both.pause([PRODUCTION], [0], 12, 7).find(PRODUCTION, 0) is not None


def test_pauses_survive_apply_and_leave_with_their_member() -> None:
    """T14: a new declaration neither sets nor clears a pause; one of a removed member ends."""
    now = destination(Pauses((Pause(PRODUCTION, None, 2, 1), Pause(INSERTION, 4, 3, 1))))
    after = now.changed_to(Destination("orders", "distributed-queue", 3))
    assert after.pauses.all == (Pause(PRODUCTION, None, 2, 1),)
    assert now.same_declaration(destination())


def test_pauses_of_senders_begin_a_routing_epoch() -> None:
    """T14: so a sender that routed before notices; consumption routes nothing."""
    before = snapshot(destination())
    changed = decide_pauses(before, PauseOrder((PRODUCTION,), None), 7)
    assert changed is not None
    assert changed.actions[0]["metaData"]["configuration"]["jmsq.epoch"] == "10"
    quiet = decide_pauses(before, PauseOrder((CONSUMPTION,), (1,)), 7)
    assert quiet is not None
    assert quiet.actions[0]["metaData"]["configuration"]["jmsq.epoch"] == "9"
    assert decide_pauses(before, PauseOrder((PRODUCTION,), None, resume=True), 7) is None
