"""The rules of idempotent producers: numbers, openings, verdicts (M1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.transactions.producers import (
    MAX_SEQUENCE,
    TRANSITIONS,
    VERDICTS,
    AlreadySentError,
    CountingEvent,
    CountingState,
    NumberedMessages,
    Numbers,
    OpeningOrder,
    PartlySentError,
    ProducerPosition,
    SendVerdict,
    app_id_of,
    check_producer_id,
    check_sequence,
    new_versions,
    producers_of,
    verdict,
)
from spark_jms.errors import OptionError, ProducerFencedError, SequenceGapError

APP = app_id_of("p")


def at(epoch: int, last: int) -> dict[str, int]:
    return {APP: ProducerPosition(epoch, last).version}


@given(st.integers(0, 2**23 - 1), st.integers(0, MAX_SEQUENCE), st.integers(0, 2**23 - 1), st.integers(0, MAX_SEQUENCE))
def test_version_holds_both_numbers_and_rises_with_them(epoch: int, last: int, epoch_2: int, last_2: int) -> None:
    """M1: Delta keeps the number in 63 bits; a later opening has a higher one whatever its last number."""
    first, second = ProducerPosition(epoch, last), ProducerPosition(epoch_2, last_2)
    assert ProducerPosition.of(first.version) == first
    assert 0 <= first.version < 2**63
    assert ((epoch, last) < (epoch_2, last_2)) == (first.version < second.version)


def test_tables_are_complete() -> None:
    """M1: every case of a verdict and of the counting has a row."""
    assert set(VERDICTS) == {(opening, numbers) for opening in OpeningOrder for numbers in Numbers}
    assert set(TRANSITIONS) == {(state, event) for state in CountingState for event in CountingEvent}


@pytest.mark.parametrize(
    ("position", "messages", "expected"),
    [
        ((2, 10), (2, 1, None), SendVerdict.APPEND),
        ((2, 10), (2, 3, 11), SendVerdict.APPEND),
        ((2, 10), (2, 1, 10), SendVerdict.DROP),
        ((2, 10), (2, 3, 8), SendVerdict.DROP),
        ((2, 10), (2, 3, 9), SendVerdict.CONFLICT),
        ((2, 10), (2, 1, 12), SendVerdict.GAP),
        ((3, 10), (2, 1, None), SendVerdict.FENCED),
        ((3, 10), (2, 1, 4), SendVerdict.FENCED),
        ((1, 10), (2, 1, None), SendVerdict.LOST),
    ],
)
def test_verdict(position: tuple[int, int], messages: tuple[int, int, int | None], expected: SendVerdict) -> None:
    """M1"""
    epoch, count, first = messages
    assert verdict(ProducerPosition(*position), NumberedMessages("p", epoch, count, first)) is expected


def test_commit_of_several_sends_counts_them_in_their_order() -> None:
    """M1: sends of one id in one commit follow each other; several ids do not disturb each other."""
    sends = [
        NumberedMessages("p", 1, 2),
        NumberedMessages("q", 5, 1, 8),
        NumberedMessages("p", 1, 3, 3),
        NumberedMessages("q", 5, 1),
    ]
    known = {APP: ProducerPosition(1, 0).version, app_id_of("q"): ProducerPosition(5, 7).version, "app/p": 99}
    made = new_versions(known, sends, "orders")
    assert {app_id: ProducerPosition.of(version) for app_id, version in made.items()} == {
        APP: ProducerPosition(1, 5),
        app_id_of("q"): ProducerPosition(5, 9),
    }


def test_errors_name_the_destination_the_producer_and_the_numbers() -> None:
    """M1"""
    for known, sent, kind, words in [
        (at(1, 10), NumberedMessages("p", 1, 1, 13), SequenceGapError, "number 13 .* last number in the table is 10"),
        (at(1, 10), NumberedMessages("p", 1, 2, 3), AlreadySentError, "numbers 3 to 4"),
        (at(1, 10), NumberedMessages("p", 1, 5, 9), PartlySentError, "numbers 9 to 13 .* continue with number 11"),
        (at(2, 10), NumberedMessages("p", 1, 1), ProducerFencedError, "opened again"),
        ({}, NumberedMessages("p", 1, 1), ProducerFencedError, "restored"),
    ]:
        with pytest.raises(kind, match=f"orders: producer id p.*{words}"):
            new_versions(known, [sent], "orders")


def test_producers_of_a_table() -> None:
    """M1"""
    known = {app_id_of("b"): ProducerPosition(1, 2).version, "seq/0": 4, app_id_of("a"): ProducerPosition(3, 0).version}
    assert list(producers_of(known).items()) == [("a", ProducerPosition(3, 0)), ("b", ProducerPosition(1, 2))]


@pytest.mark.parametrize("wrong", [None, "", 7, "x" * 257, "a\nb"])
def test_wrong_producer_id_is_refused(wrong: object) -> None:
    """M1"""
    with pytest.raises(OptionError, match="producer_id"):
        check_producer_id(wrong)


@pytest.mark.parametrize("wrong", [0, -1, True, "1", 1.0, 2**40])
def test_wrong_sequence_is_refused(wrong: object) -> None:
    """M1"""
    with pytest.raises(OptionError, match="sequence"):
        check_sequence(wrong)


class Table:
    """A log: each commit decides on the newest version, or arrives late for the one that it was written for."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.version, self.messages = 0, list[int]()
        self.late: list[tuple[int, dict[str, int], list[int]]] = []

    def commit(self, known: dict[str, int], contents: list[int], *, arrives: bool = True) -> None:
        if not arrives:
            self.late.append((self.version, known, contents))
            return
        self.known = {**self.known, **known}
        self.messages += contents
        self.version += 1

    def arrive(self) -> None:
        """Of the commits whose outcome is unknown: those that were written for this version still can."""
        late, self.late = self.late, []
        for version, known, contents in late:
            if version == self.version:
                self.commit(known, contents)


class Program:
    """Sends 1, 2, 3 … under one id, restarted as another program at any moment; it repeats what it is not sure of."""

    def __init__(self, table: Table) -> None:
        self.table, self.stopped = table, False
        self.open()

    def position(self) -> ProducerPosition:
        return ProducerPosition.of(self.table.known.get(APP))

    def open(self) -> None:
        opened = self.position().opened()
        self.table.commit({APP: opened.version}, [])
        self.epoch, self.next, self.stopped = opened.epoch, opened.last + 1, False

    def send(self, count: int, numbered: bool, arrives: bool) -> None:
        if self.stopped and not numbered:
            self.resume()
        messages = NumberedMessages("p", self.epoch, count, self.next if numbered else None)
        contents = list(range(self.next, self.next + count))
        try:
            self.table.commit(new_versions(self.table.known, [messages], "d"), contents, arrives=arrives)
        except AlreadySentError:
            self.next += count
        except PartlySentError:
            self.resume()
        else:
            self.stopped = self.stopped or not arrives
            self.next += count if arrives else 0

    def resume(self) -> None:
        if self.position().epoch == self.epoch:
            self.table.commit({APP: self.position().version}, [])
            self.next, self.stopped = self.position().last + 1, False


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(1, 4), st.booleans(), st.booleans()),
            st.just(("arrive",)),
            st.just(("open",)),
            st.just(("old",)),
        ),
        max_size=40,
    )
)
def test_table_has_each_message_once_and_in_order(steps: list[tuple[str | int | bool, ...]]) -> None:
    """M1: whatever arrives late, and however often the program is restarted while its predecessor still runs."""
    table = Table()
    program, old = Program(table), Program(table)
    program.open()
    for step in steps:
        match step:
            case ("send", int(count), bool(numbered), bool(arrives)):
                program.send(count, numbered, arrives)
            case ("arrive",):
                table.arrive()
            case ("open",):
                old, program = program, Program(table)
            case _:
                with pytest.raises(ProducerFencedError):
                    old.send(1, numbered=True, arrives=True)
        assert table.messages == list(range(1, len(table.messages) + 1))
        assert program.position().last == len(table.messages)
