"""Units of order keep their order while members are added and removed: slots move at once, behind barriers (T10, D1)."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs
import pytest

from spark_jms import apply, connect
from spark_jms.claims.batches import units_of_order
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber, open_subscriber
from spark_jms.claims.messages import scan
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client import Context
from spark_jms.core.destinations.destination import FORMAT_VERSION, Destination
from spark_jms.core.destinations.routing import ANY_MEMBER, route_of
from spark_jms.core.ordering.units_of_order import slot_of
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import FormatVersionError, MemberRemovalError
from spark_jms.log.destinations.declarations import drop_subscription
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send
from spark_jms.log.sending.units_of_order import pass_barriers
from spark_jms.testing import memory_domain
from spark_jms.testing.domain import PATIENCE
from spark_jms.testing.inside import records_of

UNITS = [f"unit {n}" for n in range(60)]


@pytest.fixture
def context() -> Iterator[Context]:
    queue = {"kind": "distributed-queue", "members": 2}
    with (
        memory_domain(orders=queue, prices={**queue, "kind": "distributed-topic"}) as root,
        connect(root, housekeeping=False) as opened,
    ):
        yield opened


def shape(context: Context, members: int, name: str = "orders", kind: str = "distributed-queue") -> None:
    apply(context.root, {"destinations": {name: {"kind": kind, "members": members}}})


def put(context: Context, round_: int, to: str = "orders") -> None:
    context.producer(to).send_many([{"text": str(round_), "group_id": unit} for unit in UNITS])


def declared(context: Context, name: str = "orders") -> Destination:
    return Domain(context.root).log(name).refresh().destination


def drained(
    context: Context, members: list[int] | None = None, to: str = "orders", **how: Any
) -> list[tuple[str, int]]:
    """(unit, round) as they come, until none has come for a while."""
    got = []
    with context.consumer(to, members=members, acknowledge="auto", **how) as consumer:
        while (message := consumer.receive(0.3 * PATIENCE)) is not None:
            got.append((message.group_id or "", int(message.text or "")))
    return got


def in_order(got: list[tuple[str, int]]) -> bool:
    newest: dict[str, int] = {}
    for unit, round_ in got:
        if newest.get(unit, -1) >= round_:
            return False
        newest[unit] = round_
    return True


def test_new_member_takes_its_share_of_slots_at_once(context: Context) -> None:
    """T10, D1: and only what it needs of each."""
    put(context, 0)
    shape(context, 4)
    put(context, 1)
    owners = Counter(route_of(declared(context)).slots)
    assert owners == {0: 256, 1: 256, 2: 256, 3: 256}
    moved = {m.group_id for m in context.browser("orders") if m.member > 1}
    assert 15 < len(moved) < 45
    assert all(m.text == "1" for m in context.browser("orders") if m.member > 1)


def test_new_messages_wait_for_those_on_the_old_member(context: Context) -> None:
    """T10: a consumer of the new member alone gets none of a moved unit before a consumer of the old one has finished."""
    put(context, 0)
    shape(context, 3)
    put(context, 1)
    assert drained(context, [2]) == []
    first = drained(context, [0])
    assert {round_ for _, round_ in first} == {0, 1}
    assert in_order(first)
    from_zero = {unit for unit, round_ in first if round_ == 0}
    second = drained(context, [2])
    assert second
    assert {unit for unit, _ in second} <= from_zero
    rest = drained(context)
    assert in_order([*first, *second, *rest])
    assert len([*first, *second, *rest]) == 120
    assert declared(context).slots is not None
    assert declared(context).slots.barriers == ()  # type: ignore[union-attr]


def test_message_in_other_hands_holds_its_slot_back(context: Context) -> None:
    """T10: claimed is not done; units of other slots go on."""
    put(context, 0)
    with context.consumer("orders", members=[0], acknowledge="individual", prefetch=1) as holder:
        held = holder.receive(5)
        assert held is not None
        shape(context, 3)
        put(context, 1)
        got = drained(context)
        assert in_order(got)
        owner = declared(context).slot_map.owners[slot_of(held.group_id or "")]
        assert (held.group_id, 1) not in got or owner == 0
        held.acknowledge()
    rest = drained(context)
    assert in_order([(held.group_id or "", 0), *got, *rest])
    assert len(got) + len(rest) == 119


def test_one_message_that_waits_holds_back_its_own_slot_alone(context: Context) -> None:
    """T10: a moved unit waits for its own old messages. A delayed message of another unit, whose slot has moved the same way,
    would hold back all units that have moved so, until it is due."""
    before = declared(context).slot_map
    after = before.shared([0, 1, 2], [0, 1, 2], lambda member: 1)
    moved = [
        u for u in (f"moves {n}" for n in range(999)) if (before.owners[slot_of(u)], after.owners[slot_of(u)]) == (0, 2)
    ]
    late = moved[0]
    others = [u for u in moved if slot_of(u) != slot_of(late)][:20]
    producer = context.producer("orders")
    producer.send(text="0", group_id=late, delay="1 h")
    producer.send_many([{"text": "0", "group_id": u} for u in others])
    shape(context, 3)
    producer.send_many([{"text": "1", "group_id": u} for u in [late, *others]])
    got = []
    with context.consumer("orders", acknowledge="auto") as consumer:
        while (message := consumer.receive(2)) is not None:
            got.append((message.group_id or "", int(message.text or "")))
    assert in_order(got)
    assert sorted(got) == sorted([(u, n) for u in others for n in (0, 1)])


def test_unreadable_file_behind_a_barrier_does_not_swallow_a_claimed_batch(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10: the look at the barriers comes after the batch is claimed, so what it raises leaves the batch claimed by a living
    consumer that never delivers it."""
    put(context, 0)
    shape(context, 3)
    put(context, 1)
    real, failures = scan.units_of, [OSError(5, "Input/output error")]

    def failing(*arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*arguments, **named)

    monkeypatch.setattr(units_of_order, "units_of", failing)
    got = []
    with context.consumer("orders", acknowledge="auto") as consumer:
        errors = 0
        while True:
            try:
                message = consumer.receive(0.7)
            except OSError:
                errors += 1
                continue
            if message is None:
                break
            got.append((message.group_id or "", int(message.text or "")))
    assert not failures
    assert (len(got), errors) == (120, 0)
    assert in_order(got)


def test_draining_takes_what_a_barrier_that_is_passed_meanwhile_held_back(context: Context) -> None:
    """T10, C6: Trigger.AvailableNow ends when `next_batch` is None and there is no more. A message that stays on the old member,
    of a slot that has not moved, puts the look at its units off for half a second."""
    before = declared(context).slot_map
    after = before.shared([0, 1, 2], [0, 1, 2], lambda member: 1)
    stays = next(
        u for u in (f"stays {n}" for n in range(999)) if before.owners[slot_of(u)] == after.owners[slot_of(u)] == 0
    )
    context.producer("orders").send(text="later", group_id=stays, delay="1 h")
    put(context, 0)
    shape(context, 3)
    put(context, 1)
    settings = ConsumerSettings(replayable=False)
    subscriber = Subscriber(Domain(context.root), records_of(context), "orders", "-", "r", settings)
    snapshot = subscriber.table.refresh()
    targets = {m: snapshot.last_sequence(m) for m in snapshot.destination.member_ids}
    count, started = 0, time.monotonic()
    while True:  # as JmsqStreamReader._drain
        batch = subscriber.next_batch(Batch("r"), Limits(max_messages=200), targets)
        if batch is not None:
            count += batch.count
            subscriber.acknowledge({batch.claim: {m: pick.picks for m, pick in batch.members.items()}})
        elif not subscriber.has_more():
            break
    assert not subscriber.waits_for(targets, 0)
    assert [(left.count, left.why[:17]) for left in subscriber.left(targets)] == [(1, "the delivery time")]
    subscriber.close()
    assert count == 120, f"{time.monotonic() - started:.2f} s"


def test_messages_staged_before_the_move_go_to_the_new_member(context: Context) -> None:
    """T10: also those that a task has staged without a note of their order."""
    log = Domain(context.root).log("orders")
    snapshot = log.refresh()
    writer = MessageWriter(log.storage, snapshot.destination, 0)
    import pyarrow as pa

    rows = pa.table({"text": ["7"] * 64, "JMSXGroupID": [*UNITS, None, None, None, None]})
    writer.write(rows.combine_chunks().to_batches()[0])
    staged = writer.close()
    put(context, 0)
    shape(context, 3)
    sent = send(log, staged, snapshot.route_id, balancing=ANY_MEMBER)
    route = route_of(log.refresh().destination)
    for message in context.browser("orders"):
        if message.text == "7" and message.group_id:
            assert message.member == route.member_of_slot(slot_of(message.group_id))
    assert sum(file.rows for file in sent.files) == 64
    assert in_order([(u, r) for u, r in drained(context) if u])


def test_member_that_has_messages_leaves_and_is_removed_when_empty(context: Context) -> None:
    """D1, T10: it gets nothing new, its units go on elsewhere in order, and the next apply removes it."""
    shape(context, 3)
    put(context, 0)
    with pytest.raises(MemberRemovalError, match="member 2 still holds messages. It gets no new ones"):
        shape(context, 2)
    assert declared(context).leaving == {2}
    assert 2 in declared(context).member_ids
    put(context, 1)
    context.producer("orders").send_many([{"text": "9"} for _ in range(9)])
    assert not [m for m in context.browser("orders") if m.member == 2 and m.text != "0"]
    assert in_order([(u, r) for u, r in drained(context) if u])
    shape(context, 2)
    assert list(declared(context).member_ids) == [0, 1]
    assert set(route_of(declared(context)).slots) == {0, 1}
    assert declared(context).leaving == frozenset()


def test_leaving_member_stays_when_it_is_declared_again(context: Context) -> None:
    """D1."""
    shape(context, 3)
    put(context, 0)
    with pytest.raises(MemberRemovalError):
        shape(context, 2)
    shape(context, 3)
    assert declared(context).leaving == frozenset()
    assert set(route_of(declared(context)).slots) == {0, 1, 2}
    put(context, 1)
    assert in_order(drained(context))


def test_apply_that_is_refused_for_good_changes_nothing(context: Context) -> None:
    """T10, D1: fewer members than the destination was made with are refused whatever the members hold."""
    for messages in (False, True):
        if messages:
            put(context, 0)
        before = declared(context).to_configuration()
        with pytest.raises(MemberRemovalError, match="was made with 2 members"):
            shape(context, 1)
        assert declared(context).leaving == frozenset()
        assert declared(context).to_configuration() == before


def test_leaving_member_takes_messages_when_no_other_can() -> None:
    """D1, D9: while all that stay are down; units of order belong to those that stay."""
    servers = ("a", "b")
    orders = Destination("orders", "distributed-queue", 2, servers=servers).with_leaving((0,), lambda member: 9)
    assert route_of(orders).open_members() == [1]
    alone = attrs.evolve(orders, stopped={"b": 1})
    assert route_of(alone).open_members() == [0]
    assert set(route_of(alone).slots) == {1}


def test_each_subscription_passes_by_itself(context: Context) -> None:
    """T10, C10: one that was dropped and made again has passed nothing."""
    for name in ("one", "two"):
        context.consumer("prices", subscription=name, durable=True).close()
    put(context, 0, "prices")
    shape(context, 3, "prices", "distributed-topic")
    put(context, 1, "prices")
    got = drained(context, to="prices", subscription="one", durable=True)
    assert in_order(got)
    assert len(got) == 120
    assert drained(context, [2], to="prices", subscription="two", durable=True) == []
    slots = declared(context, "prices").slots
    assert slots is not None
    assert {frozenset(b.passed) for b in slots.barriers} == {frozenset({"one"})}
    drop_subscription(Domain(context.root).log("prices"), "one")
    slots = declared(context, "prices").slots
    assert slots is not None
    assert not any(b.passed for b in slots.barriers)
    again = {"subscription": "one", "durable": True, "starting_position": "earliest"}
    assert drained(context, [2], to="prices", **again) == []
    assert in_order(drained(context, to="prices", **again))
    late = context.consumer("prices", durable=False)
    put(context, 2, "prices")
    assert {late.receive(5).text for _ in range(60)} == {"2"}  # type: ignore[union-attr]


def test_dropped_subscription_passes_nothing(context: Context) -> None:
    """T10, C10: its consumer has planned before the drop, and tells the table what it has passed after it."""
    context.consumer("prices", subscription="s", durable=True).close()
    put(context, 0, "prices")
    shape(context, 3, "prices", "distributed-topic")
    log = Domain(context.root).log("prices")
    slots = log.refresh().destination.slots
    assert slots is not None
    drop_subscription(log, "s")
    pass_barriers(log, "s", slots.barriers)
    again = {"subscription": "s", "durable": True, "starting_position": "earliest"}
    put(context, 1, "prices")
    assert drained(context, [2], to="prices", **again) == []


def test_subscription_that_is_not_durable_waits_for_no_move_before_its_begin(context: Context) -> None:
    """T10, C10: also when it cannot reach the old member: it is pinned, or the member's server is away."""
    context.consumer("prices", subscription="slow", durable=True).close()  # keeps the barriers
    put(context, 0, "prices")
    shape(context, 3, "prices", "distributed-topic")
    with context.consumer("prices", durable=False, members=[2], acknowledge="auto") as late:
        put(context, 1, "prices")
        wanted = [u for u in UNITS if declared(context, "prices").slot_map.owners[slot_of(u)] == 2]
        assert wanted
        assert {m.group_id for _ in wanted if (m := late.receive(1)) is not None} == set(wanted)
    slots = declared(context, "prices").slots
    assert slots is not None
    assert not any(b.passed for b in slots.barriers), "its begin has passed them: no commit is needed"


def test_housekeeping_passes_what_no_consumer_looks_after(context: Context) -> None:
    """T10: a consumer of the new member alone goes on."""
    put(context, 0)
    shape(context, 3)
    put(context, 1)
    settings = ConsumerSettings(replayable=False, members=frozenset({0, 1}))
    subscriber = open_subscriber(Domain(context.root), records_of(context), "orders", None, "r", settings)
    while batch := subscriber.next_batch(Batch("r"), Limits()):
        for member, pick in batch.members.items():
            subscriber.acknowledge({batch.claim: {member: pick.picks}})
    subscriber.close()
    slots = declared(context).slots
    assert slots is not None
    housekeeper = Housekeeper(Domain(context.root), records_of(context), "orders")
    housekeeper.run()
    housekeeper.close()
    assert declared(context).slots.barriers == ()  # type: ignore[union-attr]
    assert drained(context, [2])


def test_housekeeping_looks_at_any_number_of_unfinished_messages(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10: slots of a barrier have moved at different times, so two long backlogs could wait for each other if a barrier were passed
    as a whole alone. A consumer leaves them to housekeeping."""
    put(context, 0)
    shape(context, 3)
    monkeypatch.setattr(units_of_order, "MAX_ROWS_READ", 3)
    before = declared(context).slot_map.barriers
    housekeeper = Housekeeper(Domain(context.root), records_of(context), "orders")
    housekeeper.run()
    housekeeper.close()
    after = declared(context).slot_map.barriers
    used = {slot_of(unit) for unit in UNITS}
    assert [b.place for b in after] == [b.place for b in before]
    assert [b.slots for b in after] == [b.slots & used for b in before]


def test_housekeeping_forgets_the_barriers_of_a_topic_without_subscriptions(context: Context) -> None:
    """T10, C13: nobody waits behind them."""
    put(context, 0, "prices")
    shape(context, 3, "prices", "distributed-topic")
    assert declared(context, "prices").slots.barriers  # type: ignore[union-attr]
    housekeeper = Housekeeper(Domain(context.root), records_of(context), "prices")
    housekeeper.run()
    version = Domain(context.root).log("prices").refresh().version
    assert declared(context, "prices").slots.barriers == ()  # type: ignore[union-attr]
    housekeeper.run()
    housekeeper.close()
    assert Domain(context.root).log("prices").refresh().version == version


def test_housekeeping_forgets_a_barrier_that_all_subscriptions_have_passed(context: Context) -> None:
    """T10, C10, C13: those of the table, and those that live with their consumers; and it forgets the names of those that have
    ended."""
    context.consumer("prices", subscription="slow", durable=True).close()
    live = context.consumer("prices", subscription="live", durable=False, acknowledge="auto")
    ended = context.consumer("prices", subscription="ended", durable=False, acknowledge="auto")
    put(context, 0, "prices")
    shape(context, 3, "prices", "distributed-topic")
    housekeeper = Housekeeper(Domain(context.root), records_of(context), "prices")

    def passed() -> set[str]:
        """By those for whom all slots with messages have passed."""
        housekeeper.run()
        used = {slot_of(unit) for unit in UNITS}
        barriers = [b for b in declared(context, "prices").slot_map.barriers if b.slots & used]
        return set.intersection(*(set(b.passed) for b in barriers))

    assert all(ended.receive(5) for _ in UNITS)
    assert passed() == {"~ended"}
    ended.close()
    assert passed() == set()
    assert len(drained(context, to="prices", subscription="slow", durable=True)) == 60
    assert passed() == {"slow"}
    put(context, 1, "prices")
    got = [message for _ in range(120) if (message := live.receive(5))]
    assert in_order([(m.group_id or "", int(m.text or "")) for m in got])
    assert len(got) == 120
    housekeeper.run()
    assert declared(context, "prices").slots.barriers == ()  # type: ignore[union-attr]
    housekeeper.close()


def test_slot_that_had_to_stay_follows_when_its_barrier_is_passed(context: Context) -> None:
    """T10, D1: no slot returns to a member for whose messages it waits, so some stay on a member that leaves; they follow at once
    when those messages are consumed, and the member can be removed."""
    for round_, members in enumerate((3, 2, 3, 2)):
        put(context, round_)
        with suppress(MemberRemovalError):
            shape(context, members)
    now = declared(context)
    assert now.leaving == {2}
    stays = next(u for u in (f"stays {n}" for n in range(9_999)) if route_of(now).member_of_unit(u) == 2)
    context.producer("orders").send_many([{"text": "9", "group_id": unit} for unit in (stays, *UNITS)])
    assert [m.member for m in context.browser("orders") if m.group_id == stays] == [2]
    got = drained(context)
    assert len(got) == 301
    assert in_order(got)
    assert set(declared(context).slot_map.owners) == {0, 1}
    shape(context, 2)
    assert list(declared(context).member_ids) == [0, 1]


@pytest.mark.parametrize("subscriptions", [(), ("forgotten",), ("forgotten", "one")])
@pytest.mark.parametrize("kind", ["distributed-queue", "distributed-topic"])
def test_barriers_do_not_grow_with_the_changes_of_members(
    context: Context, kind: str, subscriptions: tuple[str, ...]
) -> None:
    """T10, D1: a third member comes and leaves again and again, and nobody keeps house."""
    name = {"distributed-queue": "orders", "distributed-topic": "prices"}[kind]
    for subscription in subscriptions if kind == "distributed-topic" else ():
        context.consumer(name, subscription=subscription, durable=True).close()
    sizes = []
    for round_ in range(8):
        for members in (3, 2):
            put(context, round_, name)
            with suppress(MemberRemovalError):
                shape(context, members, name, kind)
        if kind == "distributed-topic" and "one" in subscriptions:
            drained(context, to=name, subscription="one", durable=True)
        barriers = declared(context, name).slot_map.barriers
        assert len(barriers) <= 6 * max(len(subscriptions), 1)
        sizes.append(len(str(declared(context, name).to_configuration())))
    assert max(sizes) < 80_000
    assert sizes[-1] < 1.1 * sizes[3]


@pytest.mark.parametrize("seed", range(6))
def test_units_keep_their_order_through_many_changes(context: Context, seed: int) -> None:
    """T10: members come and go, slots move on and return, consumers come one after the other and give back."""
    draw = random.Random(seed)
    got: list[tuple[str, int]] = []
    rounds = 0
    for _ in range(14):
        what = draw.choice(["put", "put", "shape", "drain", "some"])
        if what == "put":
            put(context, rounds)
            rounds += 1
        elif what == "shape":
            with suppress(MemberRemovalError):
                shape(context, draw.randrange(2, 6))
        elif what == "drain":
            got += drained(context)
        else:
            members = draw.sample(list(declared(context).member_ids), 2)
            with context.consumer("orders", members=members, acknowledge="individual", prefetch=7) as consumer:
                for _ in range(draw.randrange(30)):
                    message = consumer.receive(0)
                    if message is None:
                        break
                    got.append((message.group_id or "", int(message.text or "")))
                    message.acknowledge()
    got += drained(context)
    assert in_order(got)
    assert len(got) == rounds * len(UNITS)


def test_moved_slots_have_a_format_version_of_their_own(context: Context) -> None:
    """C16: an earlier version that knows no barriers refuses the table by name; another table keeps its version."""
    before = declared(context).to_configuration()
    put(context, 0)
    shape(context, 3)
    after = declared(context).to_configuration()
    assert (before["jmsq.formatVersion"], after["jmsq.formatVersion"]) == ("1", "4")
    assert Destination.from_configuration(after, "here") == declared(context)
    with pytest.raises(FormatVersionError):
        Destination.from_configuration({**after, "jmsq.formatVersion": str(FORMAT_VERSION + 1)}, "here")
