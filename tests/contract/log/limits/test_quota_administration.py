"""Quotas as administrators meet them: changes, quotas of servers, what is shown (T1)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from spark_jms import apply, connect
from spark_jms.admin.destinations import rename_destination
from spark_jms.admin.quota import quotas
from spark_jms.claims.records.subscriptions import ensure_subscription
from spark_jms.core.limits.quota import QuotaState
from spark_jms.errors import InvalidDestinationError, JmsqError, ModuleFileError, QuotaExceededError
from spark_jms.log.destinations.domain import Domain, Register
from spark_jms.log.limits.quota import QuotaLook, QuotaObserver, Quotas
from spark_jms.log.limits.quota_ledger import QuotaLedger
from spark_jms.log.sending import send as sending
from spark_jms.store import MemoryStore
from spark_jms.store.errors import ResourceAllocationException
from spark_jms.testing import wait_until
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.commands import Jmsq
from tests.harness.domains.quotas import LIMIT_S, QUEUE, made, receive, send_later, state_of, waiting


@pytest.fixture
def root(tmp_path: Any) -> Iterator[str]:
    yield str(tmp_path)
    MemoryStore.forget(f"quotas-{tmp_path.name}")


# -- changes -------------------------------------------------------------------------------------------------------------------
def test_raised_maximum_lets_waiting_senders_through(root: str) -> None:
    """T1: editing the quota does not fail them."""
    made(root, {"messagesMaximum": 1})
    with connect(root) as context, ThreadPoolExecutor(1) as threads:
        context.producer("orders").send(text="old")
        sent = send_later(threads, context, "new")
        wait_until(waiting(context, 1), LIMIT_S)
        made(root, {"messagesMaximum": 2})
        assert sent.result(LIMIT_S).messages == 1


def test_quota_that_is_shared_from_now_on_counts_all_its_destinations(root: str) -> None:
    """T1: also one that the module file leaves out, and whatever its ledger said when it was shared before."""
    made(root, {"messagesMaximum": 5}, more=QUEUE)
    with connect(root, housekeeping=False) as context:
        context.producer("more").send(text="x")
        made(root, {"messagesMaximum": 5, "shared": False})
        context.producer("more").send_many([{"text": "x"}] * 3)
        made(root, {"messagesMaximum": 5})
        producer = context.producer("orders", send_timeout=0)
        producer.send(text="x")
        with pytest.raises(QuotaExceededError):
            producer.send(text="x")


@pytest.mark.parametrize("shared", [True, False])
def test_change_of_sharing_ends_what_senders_have_reserved(
    root: str, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """T1: the ledgers that count from then on do not know of it, so a sender that slept before its commit reserves again."""
    quota = {"messagesMaximum": 5}
    made(root, {**quota, "shared": shared})
    with connect(root, housekeeping=False) as slow, connect(root, housekeeping=False) as context:
        decide, asleep = sending.decide_send, [True]

        def decide_late(snapshot: Any, *arguments: Any) -> Any:
            decision = decide(snapshot, *arguments)  # raises without a reservation
            if asleep:
                asleep.clear()
                made(root, {**quota, "shared": not shared})
                context.producer("orders").send_many([{"text": "x"}] * 3)
            return decision

        monkeypatch.setattr(sending, "decide_send", decide_late)
        with pytest.raises(QuotaExceededError):
            slow.producer("orders", send_timeout=0).send_table(pa.table({"text": ["late"] * 5}))
        assert len(list(context.browser("orders"))) == 3


def test_switching_the_quota_fails_waiting_senders(root: str) -> None:
    """T1: with ResourceAllocationException, as the texts have it; the next send counts in the new quota."""
    made(root, {"messagesMaximum": 1})
    with connect(root) as context, ThreadPoolExecutor(1) as threads:
        context.producer("orders").send(text="old")
        sent = send_later(threads, context, "new")
        wait_until(waiting(context, 1), LIMIT_S)
        made(root, {"messagesMaximum": 1}, orders={"kind": "queue", "quota": "other"})
        with pytest.raises(ResourceAllocationException, match="orders got the quota other while"):
            sent.result(LIMIT_S)
        context.producer("orders", send_timeout=0).send(text="new")
        assert state_of(context, "other").used.messages == 2
        assert state_of(context).used.messages == 0


@pytest.mark.parametrize("look", ["look", "look_at_all"])
def test_switching_the_quota_before_a_look_fails_the_waiting_sender(
    root: str, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """T1: the quota that a destination has left seems to have room; a sender that takes it would send without an error."""
    made(root, {"messagesMaximum": 1})
    looks = getattr(QuotaObserver, look)

    def switched_first(self: QuotaObserver, ledger: QuotaLedger, state: QuotaState, *args: Any) -> QuotaLook:
        if state.waiting:
            monkeypatch.undo()
            made(root, {"messagesMaximum": 1}, orders={"kind": "queue", "quota": "other"})
        return looks(self, ledger, state, *args)

    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="old")
        monkeypatch.setattr(QuotaObserver, look, switched_first)
        with pytest.raises(ResourceAllocationException, match="orders got the quota other while"):
            context.producer("orders", send_timeout=LIMIT_S).send(text="new")
        assert state_of(context, "other").used.messages == 1


def test_destination_that_joins_a_quota_brings_its_messages(root: str) -> None:
    """T1: `apply` counts what it holds."""
    made(root, {"messagesMaximum": 3})
    with connect(root) as context:
        context.producer("free").send_many([{"text": "x"}] * 3)
        made(root, {"messagesMaximum": 3}, free=QUEUE)
        with pytest.raises(QuotaExceededError):
            context.producer("orders", send_timeout=0).send(text="x")


def test_interrupted_rename_hides_no_messages(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1, C18: what the destination holds counts under its new name before the old one ends."""
    made(root, {"messagesMaximum": 3}, more=QUEUE)

    def killed(self: Register, name: str) -> None:
        monkeypatch.undo()
        self.remove(name)
        raise KeyboardInterrupt

    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many([{"text": "x"}] * 3)
        monkeypatch.setattr(Register, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            rename_destination(domain_of(context), records_of(context), "orders", "invoices")
        with pytest.raises(QuotaExceededError):
            context.producer("more", send_timeout=0).send(text="x")
        assert state_of(context, destination="invoices").used.messages == 3


def test_rename_ends_the_reservations_under_the_old_name(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1, C18: the ledger drops them, so a sender between its reservation and its commit must not commit with one."""
    made(root, {"messagesMaximum": 3}, more=QUEUE)
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="x")
        before = sending.number

        def rename_first(*args: Any) -> Any:
            monkeypatch.undo()
            rename_destination(domain_of(context), records_of(context), "orders", "invoices")
            return before(*args)

        monkeypatch.setattr(sending, "number", rename_first)
        with pytest.raises(InvalidDestinationError):
            context.producer("orders").send_many([{"text": "x"}] * 2)
        assert state_of(context, destination="invoices").used.messages == 1
        context.producer("more", send_timeout=0).send_many([{"text": "x"}] * 2)


def test_interrupted_apply_is_finished_by_the_next(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: a destination that learned of its server's quota counts there, also when `apply` was killed behind that."""
    on_servers(root)
    with connect(root) as context:
        context.producer("plain").send_many([{"text": "x"}] * 2)

        observe = Quotas.observe

        def killed(self: Quotas, destination: str) -> None:
            if destination == "plain":
                raise KeyboardInterrupt
            observe(self, destination)

        monkeypatch.setattr(Quotas, "observe", killed)
        with pytest.raises(KeyboardInterrupt):
            on_servers(root, home={"messagesMaximum": 2})
        monkeypatch.undo()
        on_servers(root, home={"messagesMaximum": 2})
        ledger = domain_of(context).quotas.ledger(
            "server+home", domain_of(context).quotas.limit("server+home"), "plain"
        )
        assert ledger.read().state.used.messages == 2


def test_new_subscription_from_the_earliest_counts_at_once(root: str) -> None:
    """T1: the messages that the others have finished, before a process with consumers has published that."""
    made(root, {"messagesMaximum": 2}, prices={"kind": "topic", "quota": "small"})
    with connect(root, housekeeping=False) as context:
        consumer = context.consumer("prices", subscription="one", starting_position="latest")
        context.producer("prices").send_many([{"text": "1"}, {"text": "2"}])
        for _ in range(2):
            message = consumer.receive(timeout=LIMIT_S)
            assert message is not None
            message.acknowledge()
    domain = Domain(root)
    table = domain.log("prices")
    ensure_subscription(table, "late", "latest")
    assert domain.usage_of("prices").messages == 0
    ensure_subscription(table, "early", "earliest")
    assert domain.usage_of("prices").messages == 2
    with connect(root, housekeeping=False) as context, pytest.raises(QuotaExceededError):
        context.producer("prices", send_timeout=0).send(text="3")


@pytest.mark.parametrize(
    ("quota", "error"),
    [
        ({"messagesMaximum": -2}, "messagesMaximum is -2"),
        ({"policy": "LIFO"}, "policy is 'LIFO', but must be one of FIFO, Preemptive"),
        ({"messageMaximum": 1}, "did you mean 'messagesMaximum'"),
        ({"bytesMaximum": "much"}, "bytesMaximum"),
    ],
)
def test_wrong_quota_is_refused_by_name(root: str, quota: dict[str, Any], error: str) -> None:
    """T1, T18: before anything changes."""
    with pytest.raises(ModuleFileError, match=error):
        made(root, quota)


def test_unknown_quota_is_refused_by_name(root: str) -> None:
    """T1: with the quotas that there are."""
    with pytest.raises(JmsqError, match=r"no quota 'smal' \(there are: other, small\)"):
        made(root, {}, orders={"kind": "queue", "quota": "smal"})


# -- servers --------------------------------------------------------------------------------------------------------------------
def on_servers(root: str, **limits: Any) -> None:
    """`limits`: server -> its keys beside `store`."""
    apply(
        root,
        {
            "quotas": {"small": {"messagesMaximum": 2}},
            "servers": {
                "east": {"store": "file", **limits.get("east", {})},
                "west": {"store": "file", **limits.get("west", {})},
                "home": limits.get("home", {}),
            },
            "destinations": {
                "both": {"kind": "distributed-queue", "servers": ["east", "west"]},
                "eastern": {"kind": "queue", "servers": ["east"]},
                "own": {"kind": "queue", "servers": ["east"], "quota": "small"},
                "plain": {"kind": "queue"},
            },
        },
    )


def test_server_has_a_quota_for_destinations_without_one(root: str) -> None:
    """T1: all members on the server share it, each with its own messages; a destination with its own leaves the server's."""
    on_servers(root, east={"messagesMaximum": 4})
    with connect(root) as context:
        both = context.producer("both", send_timeout=0)
        both.send_many([{"text": str(n)} for n in range(6)])  # three on each server
        eastern = context.producer("eastern", send_timeout=0)
        eastern.send(text="x")
        for producer in (eastern, context.producer("east@both", send_timeout=0)):
            with pytest.raises(QuotaExceededError, match=r"quota server\+east has no room"):
                producer.send(text="x")
        with pytest.raises(QuotaExceededError):
            both.send_many([{"text": "x"}] * 2)  # one of them for each server: all or none
        assert domain_of(context).usage_of("both").messages == 6
        context.producer("west@both", send_timeout=0).send(text="x")
        context.producer("own", send_timeout=0).send_many([{"text": "x"}] * 2)
        context.producer("plain", send_timeout=0).send_many([{"text": "x"}] * 9)
        receive(context, 1, "eastern")
        wait_until(lambda: domain_of(context).usage_of("eastern").messages == 0, LIMIT_S)
        context.producer("east@both", send_timeout=0).send(text="y")
        rows = {row.quota: row for row in quotas(domain_of(context), [])}
        assert (rows["server+east"].destinations, rows["server+east"].messages_used) == (("both", "eastern"), 4)
        assert rows["small"].messages_used == 2


def test_quota_of_a_server_can_be_changed_and_removed(root: str) -> None:
    """T1: of `home` too; destinations follow with the next `apply`, and those that no server limits write nothing more."""
    on_servers(root)
    with connect(root) as context:
        plain = context.producer("plain", send_timeout=0)
        plain.send(text="before")
        on_servers(root, home={"messagesMaximum": 2, "blockingSendPolicy": "Preemptive"})
        plain.send(text="x")
        with pytest.raises(QuotaExceededError):
            plain.send(text="x")
        (row,) = (row for row in quotas(domain_of(context), []) if row.quota == "server+home")
        assert (row.policy, row.messages_used, row.destinations) == ("Preemptive", 2, ("plain",))
        on_servers(root, home={"messagesMaximum": 3})
        plain.send(text="x")
        on_servers(root)
        plain.send_many([{"text": "x"}] * 9)
        assert not domain_of(context).log("plain").snapshot.destination.measures_usage
        assert [row.quota for row in quotas(domain_of(context), [])] == ["small"]


# -- looking -------------------------------------------------------------------------------------------------------------------
def test_quota_command_shows_usage_and_waiting_senders(root: str, jmsq: Jmsq) -> None:
    """T1, T3, C14: with the process that waits."""
    made(root, {"messagesMaximum": 2})
    with connect(root) as context, ThreadPoolExecutor(1) as threads:
        assert "of 50" in jmsq("quota", "list").output
        context.producer("orders").send_many([{"text": "old"}] * 2)
        sent = send_later(threads, context, "new")
        wait_until(waiting(context, 1), LIMIT_S)
        shown = jmsq("quota", "show", "small").output
        assert "2 of 2" in shown
        assert "waiting" in shown
        assert "process" in shown
        (row,) = quotas(Domain(root), ["small"])
        assert (row.destinations, row.messages_used, row.waiting) == (("orders",), 2, 1)
        assert "waits" in jmsq("quota", "entries", "small").output
        receive(context, 1)
        sent.result(LIMIT_S)
    assert "no quota 'none'" in jmsq("quota", "show", "none", code=1).output


@pytest.fixture
def jmsq(root: str) -> Jmsq:
    from click.testing import CliRunner

    from spark_jms.cli.__main__ import cli

    def run(*arguments: str, code: int = 0, **_: Any) -> Any:
        result = CliRunner().invoke(cli, [*arguments, "--root", root])
        assert result.exit_code == code, result.output
        return result

    return run


def test_destinations_without_a_quota_write_nothing(root: str) -> None:
    """T1: no file of usage, no ledger, no fence."""
    made(root, {"messagesMaximum": 2})
    with connect(root) as context:
        context.producer("free").send_many([{"text": "x"}] * 5)
        receive(context, 5, "free")
        names = {info.path.split("/")[1] for info in domain_of(context).storage.list("_jmsq")}
        assert not names & {"usage", "quota-ledgers"}
