"""What a process keeps of the record sets that it changes (C9)."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import pytest

from spark_jms.claims.records.shared import asked, change_record_sets
from spark_jms.core.records.journal import PlannedChange
from spark_jms.core.records.record_set import Noted, RecordSet
from spark_jms.store import RecordView


def test_a_process_keeps_few_of_the_record_sets_that_it_has_made() -> None:
    """C9: an engine decides on the record sets of every destination that there ever was."""

    for number in range(3_000):
        name = f"members/t{number}/-/0"
        change = PlannedChange({name: [Noted("attach", ("a", "s1"), {})]})
        found = change_record_sets(change.to_bytes(), {name: RecordView(0, {})}, frozenset(["s1"]))
        assert found.operations[name]
    gc.collect()
    assert sum(isinstance(one, RecordSet) for one in gc.get_objects()) < 1_500


def test_a_process_does_not_read_back_what_it_asks_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """C9: the rule gets the change as its consumer has made it, once; in the process of an engine it reads what was written."""
    name, read = "members/own/-/0", PlannedChange.from_bytes
    change = PlannedChange({name: [Noted("attach", ("a", "s1"), {})]})
    reads: list[bytes] = []

    def noted(data: bytes) -> Any:
        reads.append(data)
        return read(data)

    monkeypatch.setattr(PlannedChange, "from_bytes", staticmethod(noted))

    def ask(argument: bytes) -> bytes:
        assert change_record_sets(argument, {name: RecordView(4, {})}, frozenset(["s1"])).operations[name]
        return b"answer"

    answer, made = asked(change, ask)
    state, version = made[name]
    assert (answer, state.consumers, version) == (b"answer", {"a": "s1"}, 5)
    assert not reads
    assert asked(change, lambda _: b"by an engine") == (b"by an engine", {})
    ask(change.to_bytes())
    assert reads == [change.to_bytes()]
    with pytest.raises(KeyError):
        asked(change, lambda _: {}["fails"])
    ask(change.to_bytes())
    assert len(reads) == 2  # nothing is left of a call that failed


def test_consumers_that_ask_for_the_same_at_once_get_an_answer_each() -> None:
    """C9: two that sweep, or that end the same transfer."""
    name = "members/same/-/0"
    change = PlannedChange({name: [Noted("attach", ("a", "s1"), {})]})
    inner: list[Any] = []

    def ask(version: int, argument: bytes) -> bytes:
        change_record_sets(argument, {name: RecordView(version, {})}, frozenset(["s1"]))
        return b""

    def ask_beside(argument: bytes) -> bytes:
        inner.append(asked(change, partial(ask, 6)))
        return ask(4, argument)

    assert asked(change, ask_beside)[1][name][1] == 5
    assert inner[0][1][name][1] == 7
