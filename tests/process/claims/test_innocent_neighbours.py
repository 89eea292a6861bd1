"""A message that kills its consumer takes no other message along: the redelivery limit and delay go by what an application was shown,
not by what its consumer had claimed (C8, C11)."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.core.ordering.units_of_work import END, NUMBER, UNIT
from spark_jms.testing import memory_domain
from tests.harness.processes import forked
from tests.harness.programs.dying_application import KILLER, WAYS

LIMIT = 2
QUEUE: dict[str, Any] = {"kind": "queue", "redelivery_limit": LIMIT, "error_destination": "failed"}
FOUR = QUEUE | {"kind": "distributed-queue", "members": 4}
SORTED = QUEUE | {"destination_keys": ("JMSPriority descending",)}
UNITS = QUEUE | {"unit_of_work_handling_policy": "SingleMessageDelivery"}
GOOD = [f"good{n}" for n in range(14)]
MOST_LIVES = 25


def killer_at(place: int) -> list[str]:
    return [*GOOD[:place], KILLER, *GOOD[place:]]


def lives(root: str, journal: Path, way: str) -> int:
    """Until one has worked to the end: how many have died."""
    for deaths in range(MOST_LIVES):
        command = [sys.executable, "-m", "tests.harness.programs.dying_application", root, str(journal), way]
        if forked.Popen(command).wait() == 0:
            return deaths
    raise AssertionError(f"{MOST_LIVES} applications died")


def check(root: str, journal: Path, sent: list[str]) -> set[str]:
    """Every message was handled or is in the error destination, for a reason; and each repeated delivery was told. Returns what is in
    the error destination."""
    shown: Counter[str] = Counter()
    last: dict[str, int] = {}
    for line in journal.read_text().splitlines():
        text, count = line.split()
        shown[text] += 1
        assert int(count) > last.get(text, 0), f"{text} was shown again with delivery count {count}"
        assert (int(count) > 1) or shown[text] == 1
        last[text] = int(count)
    with spark_jms.connect(root, housekeeping=False) as context:
        failed = {str(message.text) for message in context.browser("failed")}
        assert not list(context.browser("orders"))
    assert KILLER in failed
    assert set(shown) == set(sent)
    assert shown[KILLER] <= LIMIT + 2, f"the killer was shown {shown[KILLER]} times"
    for text in failed:
        assert shown[text] > LIMIT, f"{text} was shown {shown[text]} time(s), and is in the error destination"
    return failed


def sent_and_worked(tmp_path: Path, way: str, declared: dict[str, Any], messages: list[dict[str, Any]]) -> set[str]:
    journal = tmp_path / "journal"
    with memory_domain("file", orders=declared, failed="queue", results="queue") as root:
        with spark_jms.connect(root, housekeeping=False) as context:
            context.producer("orders").send_many(messages)
        lives(root, journal, way)
        return check(root, journal, [str(message["text"]) for message in messages])


@pytest.mark.parametrize("place", [0, 4])
@pytest.mark.parametrize("way", WAYS)
def test_messages_beside_a_killer_are_delivered(tmp_path: Path, way: str, place: int) -> None:
    """C8, C11: the killer is the first or the fifth of a claim. Only it fails, and in ways that hold several messages until they are
    acknowledged, only what was shown with it."""
    failed = sent_and_worked(tmp_path, way, QUEUE, [{"text": text} for text in killer_at(place)])
    holds = {"client": 4, "transaction": 2}.get(way, 0)
    assert len(failed - {KILLER}) <= (holds if place else 0)


def test_messages_on_other_members_are_delivered(tmp_path: Path) -> None:
    """C8, D3: one claim has messages of four members, and the killer is on the third."""
    assert sent_and_worked(tmp_path, "individual", FOUR, [{"text": text} for text in killer_at(2)]) == {KILLER}


def test_order_of_delivery_decides_what_was_shown(tmp_path: Path) -> None:
    """C8, C12: a claim of a sorted queue; the killer has a low sequence and comes late."""
    messages = [{"text": text, "priority": n % 10} for n, text in enumerate(killer_at(3))]
    assert sent_and_worked(tmp_path, "individual", SORTED, messages) == {KILLER}


def test_a_unit_of_work_fails_whole(tmp_path: Path) -> None:
    """C8, T12: units of three messages; the second kills, and its parts fail together, no other."""
    units = [
        ["good0", "good1", "good2"],
        ["good3", KILLER, "good4"],
        ["good5", "good6", "good7"],
        ["good8", "good9", "good10"],
    ]
    messages = [
        {"text": text, "properties": {UNIT: f"u{unit}", NUMBER: number, END: number == 3}}
        for unit, texts in enumerate(units)
        for number, text in enumerate(texts, 1)
    ]
    assert sent_and_worked(tmp_path, "individual", UNITS, messages) == set(units[1])


def test_the_delay_of_a_killer_delays_no_other(tmp_path: Path) -> None:
    """C8: the redelivery delay of ten minutes concerns the killer alone."""
    journal = tmp_path / "journal"
    declared = {"kind": "queue", "redelivery_delay_ms": 600_000}
    with memory_domain("file", orders=declared) as root:
        with spark_jms.connect(root, housekeeping=False) as context:
            context.producer("orders").send_many({"text": text} for text in killer_at(4))
        assert lives(root, journal, "individual") == 1
        with spark_jms.connect(root, housekeeping=False) as context:
            assert [message.text for message in context.browser("orders")] == [KILLER]
