"""Barriers of units of order through years of changes of members, against a model of the order of sending (T10, D1)."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.core.ordering.units_of_order import SlotMap
from tests.models.barriers import QUEUE, MembersModel

EXAMPLES = int(os.environ.get("JMSQ_EXAMPLES", "15"))
DAYS = min(EXAMPLES, 3 * 365)
QUEUE_KIND, TOPIC_KIND = "distributed-queue", "distributed-topic"
pytestmark = pytest.mark.timeout(max(300, 10 * EXAMPLES))  # ten thousand take an hour
MOST_BYTES = 60_000  # of the log's entry, with 3 members and 4 subscriptions


class Life(NamedTuple):
    """`consumed`: the share of the times at which a subscription's consumer works; the forgotten one's never does. `kept`: of those at
    which housekeeping does."""

    kind: str
    durable: tuple[str, ...] = ()
    live: bool = False
    consumed: float = 1.0
    kept: float = 1.0


LIVES = {
    "consumed queue": Life(QUEUE_KIND),
    "unconsumed queue": Life(QUEUE_KIND, consumed=0.0),
    "queue that is consumed now and then": Life(QUEUE_KIND, consumed=0.2),
    "topic without subscriptions": Life(TOPIC_KIND),
    "topic without subscriptions and housekeeping": Life(TOPIC_KIND, kept=0.0),
    "consumed topic": Life(TOPIC_KIND, ("one",)),
    "forgotten subscription": Life(TOPIC_KIND, ("forgotten",)),
    "forgotten subscription beside a consumed one": Life(TOPIC_KIND, ("one", "forgotten")),
    "live subscriptions": Life(TOPIC_KIND, live=True),
    "all kinds of subscriptions": Life(TOPIC_KIND, ("one", "two", "forgotten"), live=True, consumed=0.5, kept=0.1),
}


@pytest.mark.parametrize("servers", [False, True], ids=["members", "servers"])
@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_barriers_stay_few_through_years_of_daily_changes(life: Life, servers: bool) -> None:
    """T10, D1: a third member comes each day and goes each night. However long that goes on, a table has at most one barrier for each
    pair of members and each set of subscriptions that have passed, none where nobody is subscribed, and an entry of its log
    stays small; each unit is delivered in the order of sending, and in the end whole, and then each member has its share."""
    model = MembersModel(life.kind, 1, servers=servers)
    draw = model.random.random
    for name in life.durable:
        model.subscribe(name)
    for day in range(DAYS):
        if life.live and day % 10 == 0:
            model.drop(f"~{day - 10}") if day else None
            model.subscribe(f"~{day}", durable=False)
        for members in (3, 2):
            model.apply(members)
            model.send(3)
            for name, reader in model.readers.items():
                if name != "forgotten" and draw() < life.consumed:
                    for _ in range(4):
                        model.deliver(reader)
                    model.look(reader)
            if draw() < life.kept:
                model.keep_house()
                model.check()
                assert model.readers or not model.slots.barriers
    assert model.most_bytes < MOST_BYTES
    assert model.most_barriers <= 6 * (1 if life.kind == QUEUE_KIND else 8)
    model.drain()


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([QUEUE_KIND, TOPIC_KIND]), st.booleans(), st.booleans())
def test_units_keep_their_order_whatever_members_and_subscriptions_do(
    seed: int, kind: str, servers: bool, mixed: bool
) -> None:
    """T10, D1, C10: members of any number or on any servers come, leave and return; subscriptions are made, dropped, forgotten and
    made again. `mixed`: a program of an earlier version changes the members, too, whose barriers run in circles."""
    model = MembersModel(kind, seed, servers=servers)
    draw = model.random

    def change() -> None:
        if mixed and draw.random() < 0.3:
            model.apply_as_before(*members())
        else:
            model.apply(*members(), bounded=not mixed)

    def members() -> list[int]:
        return draw.sample(range(5), draw.randint(2, 4)) if servers else [draw.randint(2, 5)]

    def subscribe() -> None:
        name = draw.choice(["one", "two", "three", "~~1", "~~2"])
        if name in model.readers:
            model.drop(name)
        else:
            model.subscribe(name, durable=not name.startswith("~"), earliest=draw.random() < 0.3)

    def consume() -> None:
        if model.readers:
            reader = draw.choice([*model.readers.values()])
            model.deliver(reader)
            if draw.random() < 0.3:
                model.look(reader)

    actions = [model.send, consume, model.keep_house, change, subscribe if kind == TOPIC_KIND else consume]
    for _ in range(60):
        (action,) = draw.choices(actions, [8, 6, 1, 3, 1])
        action()
    model.drain()


def test_model_notices_barriers_that_are_forgotten_too_early() -> None:
    """T10: the model above is not empty of what it is for."""

    def forgetful(seed: int) -> None:
        model = MembersModel(QUEUE_KIND, seed, servers=True)
        for members in (3, 2, 4):
            model.send(30)
            model.apply(members)
            model.evolve(slots=SlotMap(model.slots.owners))
            model.send(30)
            model.deliver(model.readers[QUEUE])

    with pytest.raises(AssertionError, match="after"):
        [forgetful(seed) for seed in range(20)]
