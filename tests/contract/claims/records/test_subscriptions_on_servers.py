"""Subscriptions that are not durable and purge, of topics on several servers (C10, C13, D6, D7)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.claims.records import subscriptions as claims_subscriptions
from spark_jms.claims.records.subscriptions import clear_leftovers
from spark_jms.claims.servers import stores
from spark_jms.claims.servers.stores import read_state
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.views import subscriptions
from spark_jms.client import Consumer, Context
from spark_jms.errors import SubscriptionInUseError
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.purge import TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS, purge
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of, records_of, subscriber_of
from tests.contract.claims.consumers.test_distributed_topics import messages_in_files, module, received, send, uses
from tests.harness.domains.servers import applied
from tests.harness.processes.killed import killed_client

LATER_MS = TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS + 3_600_000


@pytest.fixture(params=["partitioned", "replicated"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return applied(tmp_path, module("a", "b", "c", forwarding=request.param))


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


@pytest.fixture
def housekeeper(context: Context) -> Iterator[Housekeeper]:
    made = Housekeeper(domain_of(context), records_of(context), "prices")
    yield made
    made.close()


def left_behind(context: Context) -> list[str]:
    """What the stores have of subscriptions, but for positions in the acknowledgement table."""
    store = records_of(context)
    names = [name for prefix in ("", "@a/", "@b/", "@c/") for name in store.names(f"{prefix}members/")]
    states = {name: read_state(store, name) for name in names}
    filled = [name for name, state in states.items() if state != state.cleared()]
    return filled + [name for name in store.names("subscribers/") if store.peek(name)]


def purged(context: Context, housekeeper: Housekeeper, live_names: Any = None) -> int:
    housekeeper.begin_round()
    log = domain_of(context).log("prices")
    names = live_names or housekeeper.live_names
    return purge(log, housekeeper.is_done, now=now_ms() + LATER_MS, live_names=names).purged_messages


def test_subscription_writes_no_metadata_and_leaves_nothing_behind(context: Context) -> None:
    """C10, D6, D7: on every server, with claimed messages too; the table has but the sends."""
    version = domain_of(context).log("prices").refresh().version
    alone, shared = context.consumer("prices"), context.consumer("prices", subscription="s", durable=False)
    send(context, *"123456")
    assert received(shared, 6) == [*"123456"]
    assert alone.receive(30) is not None
    assert left_behind(context) != []
    alone.close()
    shared.close()
    assert domain_of(context).log("prices").refresh().version == version + 6
    assert left_behind(context) == []


def test_purge_waits_for_subscriptions_that_are_not_durable(context: Context, housekeeper: Housekeeper) -> None:
    """C10, C13: their messages stay until they are finished on every server."""
    send(context, "before")
    with context.consumer("prices") as alone:
        send(context, *"123456")
        assert purged(context, housekeeper) == 1
        assert purged(context, housekeeper) == 0
        assert received(alone, 6) == [*"123456"]
        assert purged(context, housekeeper) == 6
    assert messages_in_files(context) == 0


def test_purge_beside_a_new_subscription_removes_nothing_of_it(
    context: Context, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10, C13: it enters the store before it reads its floor, and a purge fixes its snapshot before it reads the store; so
    neither a purge that runs while the floor is read nor a subscription that begins while a purge looks loses a message."""
    start_floors = claims_subscriptions.start_floors

    def beside(snapshot: Any, position: Any) -> Any:
        assert len(uses(context)) == 1, "it has entered"
        floors = start_floors(snapshot, position)
        send(context, "1", "2", "3")
        purged(context, housekeeper)
        return floors

    send(context, "before 1", "before 2", "before 3")
    monkeypatch.setattr(claims_subscriptions, "start_floors", beside)
    with context.consumer("prices") as consumer:
        assert received(consumer, 3) == ["1", "2", "3"]
    monkeypatch.undo()
    opened: list[Consumer] = []

    def live_names() -> list[str]:
        names = housekeeper.live_names()
        if not opened:  # the purge has fixed its snapshot, and read the store
            opened.append(context.consumer("prices"))
            send(context, "4", "5", "6")
        return names

    purged(context, housekeeper, live_names)
    assert received(opened[0], 3) == ["4", "5", "6"]


_CLIENT = """
alone = context.consumer("prices")
shared = context.consumer("prices", subscription="s", durable=False, sharing="exclusive")
for _ in range(3):
    context.producer("prices").send(text="x")
assert alone.receive(timeout=60) and shared.receive(timeout=60)
"""


def test_killed_process_leaves_nothing_behind(root: str, context: Context) -> None:
    """C10, D6, D7: after kill -9 the next housekeeping clears its subscriptions on every server."""
    with killed_client(root, _CLIENT):
        assert len(uses(context)) == 2
        with pytest.raises(SubscriptionInUseError):
            context.consumer("prices", subscription="s", durable=False)
    wait_until(lambda: uses(context) == set(), 60)
    assert left_behind(context) != []
    with records_of(context).connect("housekeeping") as session:
        clear_leftovers(records_of(context), session, domain_of(context).log("prices"))
    assert left_behind(context) == []
    context.consumer("prices", subscription="s", durable=False).close()


def test_exclusive_consumer_excludes_on_all_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D6, C10: with sharing="exclusive" a consumer is the only one, durable or not."""
    root = applied(tmp_path, module("a", "b"))

    def exclusive(context: Any) -> Any:
        return context.consumer("prices", subscription="audit", durable=False, sharing="exclusive")

    with spark_jms.connect(root, housekeeping=False) as first, spark_jms.connect(root, housekeeping=False) as second:
        one = exclusive(first)
        own = subscriber_of(one).settings.server
        real = stores.why_silent
        monkeypatch.setattr(
            claims_subscriptions,
            "why_silent",
            lambda store, server, wait_s: "slow" if server == own else real(store, server, wait_s),
        )
        with pytest.raises(SubscriptionInUseError):
            exclusive(second)


@pytest.fixture
def partitioned(tmp_path: Path) -> Iterator[Context]:
    root = applied(tmp_path, module("a", "b", forwarding="partitioned"))
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


@pytest.fixture
def keeper(partitioned: Context) -> Iterator[Housekeeper]:
    made = Housekeeper(domain_of(partitioned), records_of(partitioned), "prices")
    yield made
    made.close()


def test_consumer_of_one_member_leaves_the_others_to_purge(partitioned: Context, keeper: Housekeeper) -> None:
    """C10, C13, D7: a subscription that is not durable takes the members that its consumers take; it keeps nothing of the others,
    which it would never finish."""
    with partitioned.consumer("a@prices") as consumer:
        send(partitioned, "mine", to="a@prices")
        send(partitioned, "another's", "another's", to="b@prices")
        assert purged(partitioned, keeper) == 2
        assert sum(row.backlog for row in subscriptions(domain_of(partitioned), records_of(partitioned), "prices")) == 1
        assert received(consumer, 1) == ["mine"]
        assert purged(partitioned, keeper) == 1


def test_shared_subscription_begins_on_a_member_with_its_first_consumer_there(
    partitioned: Context, keeper: Housekeeper
) -> None:
    """C10, D7: a consumer that takes more members gets what is sent there from now on, and purge waits for it."""
    with partitioned.consumer("a@prices", subscription="s", durable=False) as narrow:
        send(partitioned, "before", to="b@prices")
        with partitioned.consumer("prices", subscription="s", durable=False) as wide:
            send(partitioned, "after", to="b@prices")
            assert purged(partitioned, keeper) == 1
            assert received(wide, 1) == ["after"]
            assert wide.receive(0) is None
        send(partitioned, "later", to="b@prices")
        assert purged(partitioned, keeper) == 1
        send(partitioned, "mine", to="a@prices")
        assert received(narrow, 1) == ["mine"]
    assert left_behind(partitioned) == []


class Killed(BaseException):
    """As kill -9: nothing behind it runs."""


def test_consumer_killed_while_it_joins_with_more_members_leaves_no_old_floors(
    partitioned: Context, keeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10, C13, D7: the next consumer of these members begins with what is sent from then on; the floors that the subscription
    had there are of messages that a purge has removed."""

    def killed(snapshot: Any, position: Any) -> Any:
        raise Killed

    with partitioned.consumer("a@prices", subscription="s", durable=False) as narrow:
        send(partitioned, "before", to="b@prices")
        assert purged(partitioned, keeper) == 1
        with monkeypatch.context() as patch:
            patch.setattr(claims_subscriptions, "start_floors", killed)
            with pytest.raises(Killed):
                partitioned.consumer("prices", subscription="s", durable=False)
        keeper.run()
        assert len(uses(partitioned)) == 1
        with partitioned.consumer("prices", subscription="s", durable=False) as wide:
            send(partitioned, "after", to="b@prices")
            assert received(wide, 1) == ["after"]
        send(partitioned, "mine", to="a@prices")
        assert received(narrow, 1) == ["mine"]
    assert left_behind(partitioned) == []


def test_purge_while_a_consumer_joins_with_more_members_keeps_everything(
    partitioned: Context, keeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10, C13, D7: it has entered before it reads the floors of these members."""
    start_floors = claims_subscriptions.start_floors

    def beside(snapshot: Any, position: Any) -> Any:
        floors = start_floors(snapshot, position)
        send(partitioned, "after", to="b@prices")
        assert purged(partitioned, keeper) == 0
        return floors

    with partitioned.consumer("a@prices", subscription="s", durable=False):
        monkeypatch.setattr(claims_subscriptions, "start_floors", beside)
        with partitioned.consumer("prices", subscription="s", durable=False) as wide:
            monkeypatch.undo()
            assert received(wide, 1) == ["after"]
            assert len(uses(partitioned)) == 1
