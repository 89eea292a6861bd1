"""C7, C14: `jmsq explain`: what a selector reads, what it skips, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_jms import apply, connect
from tests.harness.domains.commands import MODULE, Jmsq, files_of


@pytest.fixture
def filled(root: str) -> str:
    """Invoices: a file of priority 4 and one of priority 9, with the property n = 0 … 9 in each. One message is finished."""
    apply(root, MODULE)
    with connect(root, housekeeping=False) as context:
        for priority in (4, 9):
            context.producer("invoices").send_many(
                {"text": f"m{n}", "priority": priority, "properties": {"n": n}} for n in range(10)
            )
        with context.consumer("invoices") as consumer:
            message = consumer.receive(5)
            assert message is not None
            message.acknowledge()
    return root


def test_statistics_skip_files_unopened(filled: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """The conditions that skip are named, with the messages that they skip; finished messages do not count."""
    plan = js("explain", "invoices", "JMSPriority > 7 AND n < 3")
    assert plan["members"] == [
        {"member": 0, "files": 2, "messages": 19, "skipped_files": 1, "skipped": 9, "parsed": 10, "matching": 3}
    ]
    assert plan["prunes"] == {"JMSPriority > 7": 9}
    assert plan["parses"] == ["n"]
    assert plan["columns"] == ["JMSPriority", "properties"]
    told = jmsq("explain", "invoices", "JMSPriority > 7 AND n < 3").stdout
    assert "JMSPriority > 7: skips 9 message(s) by statistics" in told
    assert "without statistics: n" in told


def test_promoted_properties_skip_files_too(filled: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """Conditions on them are judged by statistics; what is read from the column and what from the properties is told."""
    queue = {"kind": "queue", "promotedProperties": ["n:long", "size:long"]}
    apply(filled, {"destinations": {"invoices": queue}})
    with connect(filled, housekeeping=False) as context:
        for first, size in ((0, 1), (10, 1), (20, "large")):
            context.producer("invoices").send_many(
                {"text": f"new{n}", "properties": {"n": n, "size": size}} for n in range(first, first + 10)
            )
    plan = js("explain", "invoices", "n >= 15 AND size > 0")
    (member,) = plan["members"]
    assert (member["skipped"], member["parsed"], member["matching"]) == (10, 39, 5)
    assert plan["prunes"] == {"n >= 15": 10, "size > 0": 0}
    assert plan["parses"] == []
    assert plan["promoted"] == {
        "n": {"by_column": 20, "by_properties": 19},
        "size": {"by_column": 10, "by_properties": 29},
    }
    assert plan["columns"] == ["n", "size", "properties"]
    told = jmsq("explain", "invoices", "n >= 15 AND size > 0").stdout
    assert "n >= 15: skips 10 message(s) by statistics" in told
    assert "n: read from its column for 20 message(s), from the properties for 19: their files were written" in told


def test_selector_without_prunable_condition_reads_every_file(filled: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """A condition under OR proves nothing."""
    plan = js("explain", "invoices", "JMSPriority > 7 OR n = 1")
    assert (plan["members"][0]["parsed"], plan["members"][0]["skipped"], plan["prunes"]) == (19, 0, {})
    assert "every file is read" in jmsq("explain", "invoices", "JMSPriority > 7 OR n = 1").stdout


def test_explain_changes_nothing_and_refuses_what_is_wrong(filled: str, jmsq: Jmsq) -> None:
    before = files_of(filled)
    jmsq("explain", "invoices", "n = 1")
    jmsq("explain", "prices", "n = 1")
    jmsq("explain", "orders", "JMSXGroupID = 'it''s'")
    assert files_of(filled) == before
    assert "selector" in jmsq("explain", "invoices", "n = ", code=1).stderr.lower()
    assert "is empty" in jmsq("explain", "invoices", " ", code=2).stderr
    assert "no-such" in jmsq("explain", "no-such", "n = 1", code=1).stderr


def test_explain_agrees_with_a_consumer(filled: str, js: Callable[..., Any]) -> None:
    """C7: it takes as many messages as `explain` calls matching."""
    for selector in ("n >= 5", "JMSPriority = 9", "JMSPriority = 5", "n = 3 AND JMSPriority < 9"):
        matching = sum(member["matching"] for member in js("explain", "invoices", selector)["members"])
        with connect(filled, housekeeping=False) as context:
            assert len(list(context.browser("invoices", selector=selector))) == matching, selector


@pytest.fixture
def in_units(root: str) -> str:
    """Invoices of two units of order, with priorities 9, 1, 9, 9 and 1, 9; the first message of the second has expired."""
    apply(root, MODULE)
    with connect(root, housekeeping=False) as context:
        producer = context.producer("invoices")
        for unit, priority, expires in (
            ("u", 9, 0),
            ("u", 1, 0),
            ("u", 9, 0),
            ("u", 9, 0),
            ("v", 1, "1 ms"),
            ("v", 9, 0),
        ):
            producer.send(text="x", priority=priority, group_id=unit, time_to_live=expires)
    return root


def test_explain_and_stat_tell_what_units_of_order_hold_back(in_units: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C7, T10, C14: so many of the matching messages a consumer does not get, behind which message, and what to do. An expired one
    holds back nothing."""
    behind = [{"member": 0, "unit": "u", "refused": 2, "messages": 2}]
    plan = js("explain", "invoices", "JMSPriority > 7")
    assert (plan["members"][0]["matching"], plan["held_back"]) == (4, behind)
    told = jmsq("explain", "invoices", "JMSPriority > 7").stdout
    assert "2 behind message 2 of unit 'u' on member 0. They wait until another consumer has finished those" in told
    (found,) = js("stat", "invoices", "--selector", "JMSPriority > 7")["destinations"]
    assert found["held_back"] == behind
    assert "Held back by messages of their unit" in jmsq("stat", "--selector", "JMSPriority > 7").stdout
    (usual,) = js("stat", "invoices")["destinations"]
    assert usual["held_back"] == []
    assert js("explain", "invoices", "JMSPriority > 0")["held_back"] == []
