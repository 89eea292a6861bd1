"""Quotas when something fails: damaged neighbours, full disks, deleted ledgers, clocks that jump (T1)."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jms import apply, connect
from spark_jms.admin.destinations import drop_destination, rename_destination
from spark_jms.admin.quota import quotas
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.usage import UsagePublisher, publish_usage
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION
from spark_jms.core.limits import quota as core_quota
from spark_jms.core.limits.quota import MemberUsage, MessageUsage, PublishedUsage
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import DomainError, JmsqError, QuotaExceededError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.limits import quota as log_quota
from spark_jms.log.limits.quota import QuotaObserver
from spark_jms.log.limits.quota_ledger import LEDGERS
from spark_jms.log.limits.usage import USAGE
from spark_jms.log.sending import send
from spark_jms.log.tables import commit as log_commit
from spark_jms.log.tables import storage
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import LocalStorage
from spark_jms.store import MemoryStore
from spark_jms.testing import wait_until
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.quotas import LIMIT_S, QUEUE, let_pass, made, receive, send_later, state_of, waiting


@pytest.fixture
def root(tmp_path: Any) -> Iterator[str]:
    yield str(tmp_path)
    MemoryStore.forget(f"quotas-{tmp_path.name}")


def ledgers(root: str) -> list[str]:
    return sorted(path.name for path in Path(root, LEDGERS).iterdir())


# -- clocks -------------------------------------------------------------------------------------------------------------------
def test_clock_that_jumps_ends_no_request(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: an hour ahead or behind on the host of another sender: a waiting sender keeps its place, a reservation its room."""
    made(root, {"messagesMaximum": 2})
    with connect(root) as context, connect(root) as other, ThreadPoolExecutor(1) as threads:
        context.producer("orders").send_many([{"text": "old"}] * 2)
        first = send_later(threads, context, "first", 2)
        wait_until(waiting(context, 1), LIMIT_S)
        for jump_ms in (300_000, -3_600_000):
            now_ms = storage.now_ms() + jump_ms
            monkeypatch.setattr(domain_of(other).quotas, "_clock_ms", lambda now_ms=now_ms: now_ms)
            with pytest.raises(QuotaExceededError, match=r"1 other send\(s\) wait"):
                other.producer("orders", send_timeout=0).send(text="second")
        receive(context, 2)
        first.result(LIMIT_S)
        assert [m.text for m in context.browser("orders")] == ["first"] * 2


def test_sender_whose_clock_went_back_renews_its_request(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: it counts the time to its next renewal by the monotonic clock."""
    made(root, {"messagesMaximum": 1})
    monkeypatch.setattr(log_quota, "RENEW_S", 0.02)
    with connect(root) as context, connect(root) as other, ThreadPoolExecutor(1) as threads:
        context.producer("orders").send(text="old")
        sent = send_later(threads, context, "new")
        wait_until(waiting(context, 1), LIMIT_S)
        monkeypatch.setattr(domain_of(context).quotas, "_clock_ms", lambda: 1_000)
        (before,) = state_of(other).waiting
        wait_until(lambda: state_of(other).waiting[0] != before, LIMIT_S)
        receive(context, 1)
        sent.result(LIMIT_S)


def test_sender_that_slept_keeps_its_place_unless_another_one_took_it(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: its own request is not old for itself."""
    made(root, {"messagesMaximum": 1})
    with connect(root) as context, ThreadPoolExecutor(1) as threads:
        context.producer("orders").send(text="old")
        sent = send_later(threads, context, "new")
        wait_until(waiting(context, 1), LIMIT_S)
        number = state_of(context).waiting[0].number
        before = state_of(context).waiting[0]
        let_pass(context, monkeypatch, core_quota.WAITING_S + 1)
        ledger = domain_of(context).quotas.ledgers("small")[0]
        wait_until(lambda: [one for one in ledger.read().state.waiting if one != before], LIMIT_S)
        assert [one.number for one in ledger.read().state.waiting] == [number]
        receive(context, 1)
        sent.result(LIMIT_S)


def test_ledger_of_a_host_whose_clock_is_behind_gives_higher_numbers(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: else a sender would reserve for ever, as the log takes each reservation for one that has ended."""
    made(root, {"messagesMaximum": 5})
    with connect(root) as context:
        context.producer("orders").send(text="1")
    Domain(root).storage.delete_all(LEDGERS)
    with connect(root) as context:
        monkeypatch.setattr(domain_of(context).quotas, "_clock_ms", lambda: 1_000)
        context.producer("orders", send_timeout=0).send(text="2")
        assert state_of(context).used.messages == 2
        assert domain_of(context).quotas.ledgers("small")[0].read().number == 1, "its first reservation is good"


# -- neighbours ------------------------------------------------------------------------------------------------------------------
def damage(root: str, destination: str) -> Callable[[], None]:
    """The log of the destination. Returns what mends it."""
    newest = max(Path(root, destination, "_delta_log").glob("*.json"))
    whole = newest.read_bytes()
    newest.write_bytes(b'{"add": ')
    return lambda: newest.write_bytes(whole) and None


def test_damaged_destination_fails_no_other_of_its_quota(root: str, caplog: pytest.LogCaptureFixture) -> None:
    """T1: it counts with what it had, and is named; its own senders get the error."""
    made(root, {"messagesMaximum": 4}, more=QUEUE)
    with connect(root, housekeeping=False) as context:
        context.producer("more").send_many([{"text": "x"}] * 2)
        context.producer("orders").send(text="x")
    mend = damage(root, "more")
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send(text="y")
        with pytest.raises(QuotaExceededError, match=r"more cannot be read and counts with what it had"):
            producer.send(text="z")
        receive(context, 1)
        wait_until(lambda: domain_of(context).usage_of("orders").messages == 1, LIMIT_S)
        producer.send(text="z")
        with pytest.raises(JmsqError):
            context.producer("more", send_timeout=0).send(text="x")
        (row,) = quotas(domain_of(context), ["small"])
        assert (row.unreadable, row.messages_used + row.messages_reserved) == (("more",), 4)
    assert sum("more cannot be read" in record.message for record in caplog.records) == 1, "told once"
    mend()
    with connect(root, housekeeping=False) as context:
        receive(context, 2, "more")
        wait_until(lambda: domain_of(context).usage_of("more").messages == 0, LIMIT_S)
        context.producer("orders", send_timeout=0).send_many([{"text": "x"}] * 2)


def test_old_reservation_of_a_damaged_destination_fails_no_other(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: it stays until the destination can be read again."""
    made(root, {"messagesMaximum": 2}, more=QUEUE)
    with connect(root, housekeeping=False) as context:

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("spark_jms.log.sending.send.commit_prepared", die)
            with pytest.raises(KeyboardInterrupt):
                context.producer("more", send_timeout=0).send_table(pa.table({"text": ["x"]}))
    mend = damage(root, "more")
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send(text="y")
        for _ in range(2):
            with pytest.raises(QuotaExceededError):
                producer.send(text="z")
            let_pass(context, monkeypatch, core_quota.RESERVED_S)
        mend()
        producer.send(text="z")


def test_look_at_a_destination_that_has_not_changed_costs_no_count(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: a waiting sender looks many times a second at all destinations of its quota."""
    made(root, {"messagesMaximum": 2}, more=QUEUE)
    counted: list[str] = []
    with connect(root, housekeeping=False) as context:
        context.producer("more").send_many([{"text": "x"}] * 2)
        by = domain_of(context).usages.by
        monkeypatch.setattr(domain_of(context).usages, "by", lambda *args: counted.append(args[1].where) or by(*args))
        for _ in range(5):
            with pytest.raises(QuotaExceededError):
                context.producer("orders", send_timeout=0).send(text="x")
    assert len(counted) == 3, "the one that has changed, and both after the first sender has published what they hold"


# -- storage ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("failing", ["create", "get", "get behind create"])
def test_full_or_unreadable_ledger_fails_sends_by_name(
    root: str, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """T1: nothing is sent, nothing hangs, and the next send works."""
    made(root, {"messagesMaximum": 3})
    operations, created = {"create": LocalStorage.create, "get": LocalStorage.get}, []

    def tried(name: str) -> Any:
        def operation(self: LocalStorage, path: str, *rest: Any, **named: Any) -> Any:
            if LEDGERS in path and failing == name + " behind create" * bool(created):
                raise OSError(errno.ENOSPC, "No space left on device", path)
            created.extend([path] if name == "create" and LEDGERS in path else ())
            return operations[name](self, path, *rest, **named)

        return operation

    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders", send_timeout=0)
        producer.send(text="1")
        with monkeypatch.context() as patch:
            for name in operations:
                patch.setattr(LocalStorage, name, tried(name))
            with pytest.raises(
                DomainError, match=r"orders: no room can be reserved in quota small.*No space left.*nothing was sent"
            ):
                producer.send(text="2")
        assert [m.text for m in context.browser("orders")] == ["1"]
        assert len(state_of(context).reservations) == len(created), "an entry that was written keeps its room"
        let_pass(context, monkeypatch, core_quota.RESERVED_S)
        producer.send_many([{"text": "2"}, {"text": "3"}])
        assert [m.text for m in context.browser("orders")] == ["1", "2", "3"]


def test_disk_that_is_full_at_the_commit_gives_the_room_back(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: the reservation is withdrawn; if that fails too, other senders end it."""
    made(root, {"messagesMaximum": 1})
    create, full = LocalStorage.create, threading.Event()

    def failing(self: LocalStorage, path: str, *rest: Any, **named: Any) -> bool:
        if path.endswith(".json") or full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return create(self, path, *rest, **named)

    for keeps in (False, True):
        with connect(root, housekeeping=False) as context:
            producer = context.producer("orders", send_timeout=0)
            with monkeypatch.context() as patch:
                patch.setattr(LocalStorage, "create", failing)
                if keeps:
                    patch.setattr(QuotaObserver, "look", _then(full.set, QuotaObserver.look, after=2))
                with pytest.raises((JmsqError, OSError), match="No space left"):
                    producer.send(text="x")
            full.clear()
            assert len(state_of(context).reservations) == int(keeps)
            if keeps:
                let_pass(context, monkeypatch, core_quota.RESERVED_S)
            producer.send(text="y")
            receive(context, 1)
            wait_until(lambda: domain_of(context).usage_of("orders").messages == 0, LIMIT_S)


def _then(what: Callable[[], None], function: Any, after: int) -> Any:
    calls: list[int] = []

    def around(*args: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) >= after:
            what()
        return function(*args, **named)

    return around


def test_ledger_that_is_deleted_beside_its_senders_begins_again(root: str) -> None:
    """T1: in processes that know its folder and its newest entry; what is in the tables counts."""
    made(root, {"messagesMaximum": 5})
    with connect(root) as context, connect(root) as other:
        for one in (context, other):
            one.producer("orders", send_timeout=0).send(text="x")
        Domain(root).storage.delete_all(LEDGERS)
        for one in (context, other, context):
            one.producer("orders", send_timeout=0).send(text="x")
        assert state_of(context) == state_of(other)
        assert state_of(context).used.messages == 5
        with pytest.raises(QuotaExceededError):
            other.producer("orders", send_timeout=0).send(text="x")


@pytest.mark.parametrize("quota", ["of the module", "of home"])
def test_ledger_that_begins_again_counts_all_its_destinations(root: str, quota: str) -> None:
    """T1: also those to which nothing is sent meanwhile, temporary ones among them; a restored backup has no ledgers either."""
    if quota == "of home":
        plain = {"kind": "queue"}
        servers = {"home": {"messagesMaximum": 5}}
        apply(root, {"servers": servers, "destinations": {"orders": plain, "more": plain}})
    else:
        made(root, {"messagesMaximum": 5}, more=QUEUE)
    with connect(root, housekeeping=False) as context, connect(root, housekeeping=False) as other:
        second = "more" if quota == "of the module" else other.create_temporary_queue().name
        other.producer(second).send_many([{"text": "x"}] * 4)
        Domain(root).storage.delete_all(LEDGERS)
        producer = context.producer("orders", send_timeout=0)
        producer.send(text="x")
        with pytest.raises(QuotaExceededError, match=r"5 message\(s\) with 2,565 bytes used"):
            producer.send(text="x")


def test_drop_and_rename_delete_the_ledgers_of_the_name(root: str) -> None:
    """T1, C18: of quotas that are not shared; those of other destinations stay."""
    made(root, {"messagesMaximum": 5, "shared": False}, more=QUEUE)
    with connect(root, housekeeping=False) as context:
        for name in ("orders", "more"):
            context.producer(name, send_timeout=0).send(text="x")
        assert ledgers(root) == ["small@more", "small@orders"]
        rename_destination(domain_of(context), records_of(context), "orders", "invoices", force=True)
        assert ledgers(root) == ["small@invoices", "small@more"]
    with connect(root, housekeeping=False) as context:
        drop_destination(domain_of(context), records_of(context), "invoices", force=True)
        assert ledgers(root) == ["small@more"]
        context.producer("more", send_timeout=0).send(text="x")


# -- usage -----------------------------------------------------------------------------------------------------------------------
def test_message_counts_once_while_its_commit_is_seen_half(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: as reserved or as used, when it is committed and published between a look at the log and one at the publication."""
    made(root, {"messagesMaximum": 5})
    observer, commit = Domain(root), log_commit.commit_prepared
    table = observer.log("orders")
    refresh, done = table.refresh, []

    def meanwhile(*arguments: Any) -> Any:
        """The commit of the send, behind the second look at the log."""
        looks: list[int] = []

        def committed() -> Any:
            snapshot = refresh()
            looks.append(1)
            if len(looks) == 2:
                done.append(commit(*arguments))
                publish_usage(
                    domain_of(context),
                    domain_of(context).log("orders"),
                    publisher.state,
                    lambda _: [],
                )
            return snapshot

        monkeypatch.setattr(table, "refresh", committed)
        observer.quotas.observe("orders")
        return done[0]

    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="old")
        publisher = UsagePublisher(domain_of(context), records_of(context), "orders")
        monkeypatch.setattr(send, "commit_prepared", meanwhile)
        context.producer("orders", send_timeout=0).send(text="x")
    newest = Domain(root).quotas.ledgers("small")[0].read()
    assert newest.what == "looked"
    assert (newest.state.used + newest.state.reserved).messages == 2


def test_older_usage_does_not_replace_a_newer_one(root: str) -> None:
    """T1, T3: a process that looked first and writes last; it looks again."""
    made(root, {"messagesMaximum": 5})
    files, other = Domain(root).usages, Domain(root).usages

    def found(unfinished: int) -> PublishedUsage:
        return PublishedUsage("orders", {0: MemberUsage(9, MessageUsage(unfinished, 0), "home")})

    def slow() -> PublishedUsage:
        assert other.publish("t", lambda: found(3))
        return found(5)

    assert not files.publish("t", slow)
    assert files.read("t") == found(3)
    assert files.publish("t", lambda: found(2))
    assert other.read("t") == found(2)
    (newest,) = Path(root, USAGE, "t").iterdir()
    late = newest.with_name("000000000001")
    late.write_text(json.dumps(found(9).to_json()))  # a process stood still until its number was deleted
    assert Domain(root).usages.read("t") == found(2)
    assert files.publish("t", lambda: found(1))
    assert not late.exists()
    assert other.read("t") == found(1)


def test_long_round_of_housekeeping_publishes_no_older_usage(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: consumers publish what they finish while it purges and compacts. Of 10,000 messages that were allowed, senders saw
    10,100 in a ledger's entries."""
    made(root, {"messagesMaximum": 10})
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many([{"text": "a"}] * 3)
        keeper, domain = Housekeeper(domain_of(context), records_of(context), "orders"), domain_of(context)

        def round_beside_a_consumer() -> None:
            assert not keeper.is_done(QUEUE_SUBSCRIPTION, 0, Ranges.of((1, 3)))  # the round knows the record set
            receive(context, 3)
            UsagePublisher(domain, records_of(context), "orders").publish_last()

        monkeypatch.setattr(keeper.rounds, "round", round_beside_a_consumer)
        assert keeper.run()
        published = domain.usages.read(domain.log("orders").snapshot.table_id)
        assert published is not None
        assert published.members[0].unfinished == MessageUsage()
        keeper.close()


def test_usage_that_fell_with_a_purge_does_not_rise_again(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: not by a publication that was looked for before; or senders that got the room would be above the maximum."""
    made(root, {"messagesMaximum": 10})
    with connect(root, housekeeping=False) as context:
        domain, store = domain_of(context), records_of(context)
        log, usages, publisher = domain.log("orders"), domain.usages, UsagePublisher(domain, store, "orders")
        context.producer("orders").send_many([{"text": "a"}] * 3)
        full = usages.at(log.refresh())
        keeper = Housekeeper(domain, store, "orders")

        def state_before_the_purge(snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
            found = publisher.state(snapshot, subscription, member)
            with monkeypatch.context() as only_the_purge:
                only_the_purge.setattr(UsagePublisher, "publish", lambda self, paced=True: None)
                receive(context, 3)
                keeper.rounds.round()
            assert keeper.rounds.total.purged_messages == 3
            assert usages.at(log.refresh()) == MessageUsage()
            return found

        assert full.messages == 3
        assert full.bytes > 0
        assert not publish_usage(domain, log, state_before_the_purge, lambda _: [])
        assert usages.at(log.refresh()) == MessageUsage()
        keeper.close()


def test_purge_waits_for_its_publication(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: the next round tries again, when other processes publish all the time."""
    made(root, {"messagesMaximum": 10})
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many([{"text": "a"}] * 3)
        receive(context, 3)
        keeper = Housekeeper(domain_of(context), records_of(context), "orders")
        with monkeypatch.context() as others_are_faster:
            others_are_faster.setattr(domain_of(context).usages, "publish", lambda table_id, look: False)
            keeper.rounds.round()
        assert keeper.rounds.total.purged_messages == 0
        keeper.rounds.round()
        assert keeper.rounds.total.purged_messages == 3
        keeper.close()


def test_quota_costs_a_send_seven_questions_of_the_storage(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: on object storage each is a request; and one in eight sends lists the ledger and deletes its old entries."""
    made(root, {"messagesMaximum": 1_000})
    asked: list[str] = []
    for name in ("get", "create", "put", "exists", "list", "delete"):
        monkeypatch.setattr(LocalStorage, name, _counting(asked, name))
    counts = {}
    with connect(root, housekeeping=False) as context:
        for destination in ("orders", "free"):
            producer = context.producer(destination)
            producer.send(text="first")
            asked.clear()
            for _ in range(16):
                producer.send(text="x")
            counts[destination] = len(asked)
    assert counts["orders"] - counts["free"] <= 16 * 7 + 2 * (1 + 8), counts


def _counting(asked: list[str], name: str) -> Any:
    whole = getattr(LocalStorage, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        asked.append(name)
        return whole(*arguments, **named)

    return counted
