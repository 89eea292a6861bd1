"""Receivers and browsers that are pinned to one member of a distributed queue at creation (D3)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_jms
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.client import Consumer, Context
from spark_jms.core.destinations.routing import Reachable, chosen
from spark_jms.errors import (
    ConsumerClosedException,
    MemberLostException,
    MemberUnavailableError,
    NoSuchElementException,
    OptionError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing.domain import wait_until
from tests.harness.domains.servers import Away, applied, queue_on

PLACED = queue_on("a", "b", "c")
AT_HOME = {"destinations": {"orders": {"kind": "distributed-queue", "members": 3}, "prices": {"kind": "topic"}}}


@pytest.fixture(params=["servers", "home"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Context]:
    """A context of a queue with three members: on servers, or in the domain's own store."""
    root = applied(tmp_path, PLACED if request.param == "servers" else AT_HOME)
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> str:
    return applied(tmp_path, PLACED)


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


def send_to_all(context: Context, *, rounds: int = 3) -> None:
    producer = context.producer("orders")
    for n in range(3 * rounds):
        producer.send(text=str(n))


def members_of(consumer: Any, count: int) -> set[int]:
    """Of so many messages, after which there are no more."""
    found = [consumer.receive(30) for _ in range(count)]
    assert consumer.receive(0) is None
    return {message.member for message in found}


def is_lost(consumer: Any, why: str) -> bool:
    try:
        consumer.receive(0)
    except MemberLostException as error:
        return why in str(error)
    return False


members = st.lists(
    st.builds(Reachable, st.integers(0, 9), st.sampled_from("ab"), st.integers(0, 2)), min_size=1, max_size=6
)


@given(members, st.sampled_from([None, "a", "b", "c"]), st.integers(0, 99))
def test_home_server_comes_first_then_members_without_consumers(
    there: list[Reachable], home: str | None, chance: int
) -> None:
    """D3, D2: affinity, then members without consumers; there is always a choice."""
    one = chosen(there, home, chance)
    at_home = [m for m in there if m.server == home] or there
    assert one in at_home
    assert not one.consumers or all(m.consumers for m in at_home)


def test_receivers_go_to_members_without_consumers(anywhere: Context) -> None:
    """D3: three pinned receivers have a member each, before any has received; a fourth shares one of them. Without `pin` a
    consumer takes all members."""
    receivers: list[Consumer] = [anywhere.consumer("orders", acknowledge="auto", pin=True) for _ in range(3)]
    send_to_all(anywhere)
    taken = [members_of(one, 3) for one in receivers]
    assert sorted(taken, key=min) == [{0}, {1}, {2}]
    with anywhere.consumer("orders", pin=True) as fourth:
        send_to_all(anywhere)
        (member,) = {message.member for message in [fourth.receive(30), fourth.receive(30)] if message}
        assert member in {0, 1, 2}
    for one in receivers:
        one.close()
    with anywhere.consumer("orders", acknowledge="auto") as everything:
        assert members_of(everything, 9) == {0, 1, 2}


def test_pinning_is_for_queues_and_names_members_once(anywhere: Context) -> None:
    """D3: a topic, or members that are named already, are refused by name."""
    with pytest.raises(OptionError, match="leave out members"):
        anywhere.consumer("orders", members=0, pin=True)
    if "prices" in anywhere.destinations():
        for make in (anywhere.consumer, anywhere.browser):
            with pytest.raises(OptionError, match="pin is for queues"):
                make("prices", pin=True)


def test_lost_member_is_replaced_by_creating_again(root: str, context: Context) -> None:
    """D3: the receiver gets the exception itself, a listener's exception listener a ConsumerClosedException; created again, both
    are pinned to members that are up. What the lost member has waits, and comes when it is back."""
    send_to_all(context)
    receiver = context.consumer("orders", pin=True, prefetch=1)
    first = receiver.receive(30)
    assert first is not None
    server = "abc"[first.member]
    reported: list[Exception] = []
    listener = context.consumer(f"{server}@orders", listener=lambda m: None, exception_listener=reported.append)
    stop_server(Domain(root), server)
    wait_until(lambda: is_lost(receiver, f"has lost {server}@orders"))
    wait_until(lambda: bool(reported))
    assert type(reported[-1]) is ConsumerClosedException
    receiver.close()
    listener.close()
    with context.consumer("orders", pin=True, acknowledge="auto") as again:
        assert members_of(again, 3) < {0, 1, 2} - {first.member}
    start_server(Domain(root), server)
    with context.consumer(f"{server}@orders", acknowledge="auto") as back:
        found = [back.receive(30) for _ in range(3)]
        assert (found[0].message_id, found[0].redelivered) == (first.message_id, True)


def test_receiver_pinned_at_home_loses_a_removed_member(tmp_path: Path) -> None:
    """D3, D1: only the receiver of that member."""
    root = str(tmp_path / "root")
    for members in (2, 3):
        spark_jms.apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": members}}})
    with spark_jms.connect(root, housekeeping=False) as context:
        receivers = [context.consumer("orders", pin=True) for _ in range(3)]
        spark_jms.apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 2}}})
        lost = 0
        for one in receivers:
            try:
                assert one.receive(1) is None
            except MemberLostException:
                lost += 1
        assert lost == 1


def test_creation_fails_by_name_while_no_member_is_there(root: str, context: Context) -> None:
    """D3: the error names every server and why it cannot be used; later it works."""
    stop_server(Domain(root), "a")
    with Away(root, "b"):
        with Away(root, "c"):
            for make in (context.consumer, context.browser):
                with pytest.raises(
                    MemberUnavailableError, match=r"server a: it is down; server b: StoreNotFoundError.*server c: "
                ):
                    make("orders", pin=True)
        with context.consumer("orders", pin=True) as receiver:
            context.producer("c@orders").send(text="x")
            message = receiver.receive(30)
            assert message is not None
            assert message.member == 2


def test_browser_is_pinned_to_one_member(root: str, context: Context) -> None:
    """D3: it shows one member. When that is lost, its calls raise MemberLostException, and an iteration that has begun raises
    NoSuchElementException, a LookupError: it does not end as if all had been shown. A new browser is pinned elsewhere."""
    send_to_all(context)
    browser = context.browser("orders", pin=True)
    shown = list(browser)
    (member,) = {message.member for message in shown}
    assert len(shown) == 3
    begun = iter(browser)
    next(begun)
    stop_server(Domain(root), "abc"[member])
    with pytest.raises(NoSuchElementException, match=f"pinned to member {member} and has lost it"):
        next(begun)
    with pytest.raises(MemberLostException):
        list(browser)
    assert issubclass(NoSuchElementException, LookupError)
    assert {message.member for message in context.browser("orders", pin=True)} != {member}


def test_browser_loses_the_store_of_its_member(root: str, context: Context) -> None:
    """D3: a store that cannot be reached is a lost member too."""
    send_to_all(context)
    browser = context.browser("orders", pin=True)
    (member,) = {message.member for message in browser}
    with spark_jms.connect(root, housekeeping=False) as other:
        pinned = other.browser(f"{'abc'[member]}@orders")
        assert len(list(pinned)) == 3
    with Away(root, "abc"[member]), pytest.raises(MemberLostException, match="has lost it"):
        list(browser)
