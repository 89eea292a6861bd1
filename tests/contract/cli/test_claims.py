"""C14, C16: `jmsq claims`: claims in doubt are listed and released."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.upkeep import views
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch, MemberPick
from spark_jms.core.records.stored_form import member_record
from spark_jms.errors import ConsumerClosedException
from spark_jms.log.destinations.domain import Domain
from tests.harness.domains.commands import Jmsq, files_of, lines


def test_claims_show_attempts_and_withheld_messages(in_doubt: str, domain: str, jmsq: Jmsq) -> None:
    """M4"""
    opened = Domain(domain)
    with views.opened_store(opened) as store:
        for _ in range(2):
            settings = ConsumerSettings(isolates_poison=True)
            subscriber = Subscriber(opened, store, "invoices", "-", "query-1", settings)
            pick = MemberPick(0, Ranges.of((1, 3)))
            assert (
                subscriber.resume(Batch("query-1", in_doubt, {0: pick}, opened.log("invoices").snapshot.table_id)) == {}
            )
            subscriber.close()
        (row,) = views.claims(opened, store, "invoices")
    assert (row.attempts, row.deaths, row.withheld) == (3, 2, 0)
    told = jmsq("claims", "invoices").stdout
    assert "attempts" in told
    assert "3 (2 died)" in told


def test_claim_in_doubt_is_listed_and_released(in_doubt: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    (row,) = js("claims")
    assert {
        k: row[k]
        for k in (
            "claim",
            "state",
            "destination",
            "subscription",
            "member",
            "consumer",
            "live",
            "messages",
            "first",
            "last",
        )
    } == {
        "claim": in_doubt,
        "state": "in doubt",
        "destination": "invoices",
        "subscription": "-",
        "member": 0,
        "consumer": "query-1",
        "live": False,
        "messages": 3,
        "first": 1,
        "last": 3,
    }
    assert "not noticed yet" in jmsq("claims", "invoices").stdout
    assert js("claims", "orders") == []
    jmsq("receive", "invoices", "--timeout", "0", code=3)
    assert "not noticed yet" not in jmsq("claims", "invoices").stdout
    assert f"no open claim '{in_doubt}'" in jmsq("claims", "orders", "--release", in_doubt, code=1).stderr
    assert "in doubt" in jmsq("claims", "invoices").stdout
    released = js("claims", "--release", in_doubt)
    assert (released["released"], released["messages"]) == (in_doubt, 3)
    assert js("claims") == []
    again = lines(jmsq("receive", "invoices", "--max", "3", "--json"))
    assert [(m["text"], m["redelivered"], m["delivery_count"]) for m in again] == [(f"m{i}", True, 2) for i in range(3)]
    assert jmsq("claims").stdout == "no message is claimed\n"


def test_release_of_a_live_claim_fences_its_consumer(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "invoices", "--text", "a")
    with connect(domain, housekeeping=False) as context:
        message = context.consumer("invoices").receive(5)
        assert message is not None
        (row,) = js("claims")
        assert (row["state"], row["live"]) == ("live", True)
        assert (
            "1 message(s) of invoices member 0 are available again" in jmsq("claims", "--release", row["claim"]).stdout
        )
        with pytest.raises(ConsumerClosedException):
            message.acknowledge()
    assert js("stat", "invoices")["destinations"][0]["backlog"] == 1


def test_record_set_that_another_administrator_has_open_is_named(domain: str, jmsq: Jmsq) -> None:
    jmsq("send", "invoices", "--text", "a")
    opened = Domain(domain)
    with views.opened_store(opened) as store:
        table_id = opened.log("invoices").refresh().table_id
        with store.connect("jmsq move") as session, session.open(member_record(table_id, "-", 0)):
            result = jmsq("purge", "invoices", "--yes", "--wait", "0", code=1)
        assert "invoices/-/0 has been opened by jmsq move" in result.stderr
        assert "--wait" in result.stderr


def test_dry_run_of_a_release(in_doubt: str, root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C14, C16"""
    before = files_of(root)
    assert jmsq("claims", "--release", in_doubt, "--dry-run").stdout == (
        f"would release claim {in_doubt} of query-1: 3 message(s) of invoices member 0\n"
    )
    promised = js("claims", "--release", in_doubt, "--dry-run")
    assert files_of(root) == before
    assert (promised["released"], promised["messages"], promised["dry_run"]) == (in_doubt, 3, True)
    released = jmsq("claims", "--release", in_doubt)
    assert released.stderr == f"jmsq: releasing claim {in_doubt} of query-1: 3 message(s) of invoices member 0\n"
