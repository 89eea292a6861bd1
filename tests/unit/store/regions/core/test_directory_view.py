"""What a daemon knows of its directory (R8, R10): core/directory_view.py and core/entry_requests.py."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.core.actions import AskDirectory, Outgoing
from spark_jms.store.regions.core.directory_view import DirectoryView, Outcome, Seen
from spark_jms.store.regions.protocol import region_entry as rules
from spark_jms.store.regions.protocol.region_entry import (
    Absent,
    DirectoryListing,
    DirectoryPort,
    Holder,
    ReadEntry,
    RegionEntry,
    perform,
)

ME = Holder(0, "life")
ENTRY = rules.created("s.000", "id", 4096, ME, None, 7)


@dataclass
class OneRegion(DirectoryPort):
    found: RegionEntry | Absent
    swapped: list[RegionEntry | None] = field(default_factory=list)
    failing: int = 0  # calls
    refusing: int = 0  # swaps
    alive: bool = True

    def read(self, name: str) -> RegionEntry | Absent:
        return self.found

    def entries(self) -> DirectoryListing:
        if isinstance(self.found, RegionEntry):
            return DirectoryListing({self.found.name: self.found})
        return DirectoryListing({}, frozenset({"s.000"} if self.found is Absent.REMOVED else ()))

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        if self.failing:
            self.failing -= 1
            raise DirectoryUnavailableError("no answer")
        if self.refusing:
            self.refusing -= 1
            return False
        self.swapped.append(new)
        return True

    def discard(self, name: str) -> bool:
        return False

    def running(self, holder: Holder) -> bool:
        return self.alive


class AskedView:
    """A view whose requests the port performs when the test says so."""

    def __init__(self, port: OneRegion) -> None:
        self.port = port
        self._out = Outgoing(ME)
        self.view = DirectoryView(self._out)
        self.waiting: list[AskDirectory] = []

    def ask(self) -> list[AskDirectory]:
        self.waiting += [action for action in self._out.take() if isinstance(action, AskDirectory)]
        return self.waiting

    def answer_all(self) -> None:
        while self.ask():
            self.answer()

    def answer(self) -> None:
        asked = self.waiting.pop(0)
        self.view.answered(asked.number, perform(self.port, asked.request))

    # ---- questions, answered at once

    def look(self) -> Seen:
        found: list[Seen] = []
        self.view.look("s.000", "test", found.append)
        self.answer_all()
        return found[0]

    def change(self, old: RegionEntry | None, new: RegionEntry | None) -> Outcome:
        found: list[Outcome] = []
        self.view.change("s.000", old, new, found.append)
        self.answer_all()
        return found[0]

    def survey(self) -> set[str]:
        self.view.entries(lambda answer: None)
        self.answer_all()
        return set(self.view.seen)


@pytest.mark.parametrize("seen", ["read", "survey", "change", ""])
@pytest.mark.parametrize("absent", list(Absent))
def test_region_without_an_entry(seen: str, absent: Absent) -> None:
    """R8, R10: a region that had an entry is absent only if its removal is recorded; otherwise its state is unknown."""
    asked = AskedView(OneRegion(ENTRY))
    if seen == "read":
        assert asked.look().entry == ENTRY
    elif seen == "survey":
        assert asked.survey() == {"s.000"}
    elif seen == "change":
        assert asked.change(None, ENTRY) is Outcome.DONE
    asked.port.found = absent
    found = asked.look()
    if absent is Absent.REMOVED or (absent is Absent.NOTHING and not seen):
        assert found == Seen(None)
    else:
        assert "region s.000 has no entry" in str(found.error)


@pytest.mark.parametrize("seen", ["read", "survey", "change"])
def test_removed_region_is_forgotten(seen: str) -> None:
    """R8: once its removal was seen, its record may go too."""
    asked = AskedView(OneRegion(ENTRY))
    asked.survey()
    asked.port.found = Absent.REMOVED
    if seen == "read":
        asked.look()
    elif seen == "survey":
        assert asked.survey() == set()
    else:
        assert asked.change(ENTRY, None) is Outcome.DONE
    asked.port.found = Absent.NOTHING
    assert asked.look() == Seen(None)


def test_list_from_before_a_creation_does_not_count_against_the_region() -> None:
    """R8: the list was read before the region was created, and is answered after."""
    asked = AskedView(OneRegion(Absent.NOTHING))
    asked.view.entries(lambda answer: None)
    asked.ask()
    listing = asked.waiting.pop()
    old_list = perform(asked.port, listing.request)
    assert asked.change(None, ENTRY) is Outcome.DONE
    asked.view.answered(listing.number, old_list)
    assert not asked.view.unreadable


# ---- the order of questions and changes: core/entry_requests.py


def test_question_is_answered_by_a_read_that_began_after_it() -> None:
    """R10: an older read may have seen an older entry."""
    asked, found = AskedView(OneRegion(ENTRY)), list[tuple[str, RegionEntry | None]]()
    asked.view.look("s.000", "first", lambda seen: found.append(("first", seen.entry)))
    asked.ask()
    stale = perform(asked.port, asked.waiting[0].request)
    asked.port.found = newer = rules.renewed(ENTRY)
    asked.view.look("s.000", "second", lambda seen: found.append(("second", seen.entry)))
    assert len(asked.ask()) == 1
    asked.view.answered(asked.waiting.pop().number, stale)
    asked.answer_all()
    assert found == [("first", ENTRY), ("second", newer)]


def test_questions_that_repeat_themselves_cost_one_read() -> None:
    """R10: a directory that hangs does not collect requests."""
    asked, found = AskedView(OneRegion(ENTRY)), list[Seen]()
    for _ in range(100):
        asked.view.look("s.000", "test", found.append)
    assert len(asked.ask()) == 1
    asked.answer_all()
    assert len(found) == 2


def test_change_follows_the_read_before_it() -> None:
    """R10: so the reader of that entry does not take it for the state after the change."""
    asked, found = AskedView(OneRegion(ENTRY)), list[object]()
    asked.view.look("s.000", "test", lambda seen: found.append(seen.entry))
    asked.view.change("s.000", ENTRY, rules.renewed(ENTRY), found.append)
    assert [type(action.request) for action in asked.ask()] == [ReadEntry]
    asked.answer_all()
    assert found == [ENTRY, Outcome.DONE]


def test_second_change_is_refused_while_the_first_has_no_answer() -> None:
    """R10."""
    asked, found = AskedView(OneRegion(ENTRY)), list[Outcome]()
    asked.view.change("s.000", ENTRY, rules.renewed(ENTRY), found.append)
    asked.view.change("s.000", ENTRY, None, found.append)
    assert found == [Outcome.REFUSED]
    asked.answer_all()
    assert found == [Outcome.REFUSED, Outcome.DONE]


@pytest.mark.parametrize("happened", [False, True])
def test_change_without_an_answer_is_made_impossible(happened: bool) -> None:
    """R10: unless it has happened, the next question raises the epoch before it is answered."""
    old = rules.opened(ENTRY, "a")
    new = rules.closed(old)
    asked = AskedView(OneRegion(old))
    asked.port.failing = 1
    assert asked.change(old, new) is Outcome.UNKNOWN
    assert asked.view.doubtful() == ["s.000"]
    assert asked.view.doubts(ME.daemon)
    asked.port.found = new if happened else old
    assert asked.look().entry == (new if happened else rules.renewed(old))
    assert asked.port.swapped == ([] if happened else [rules.renewed(old)])
    assert not asked.view.doubtful()


def test_renewal_that_is_refused_is_tried_on_the_newer_entry() -> None:
    """R10: another daemon changed the entry in that moment, so the doubtful change cannot happen any more."""
    old = rules.opened(ENTRY, "a")
    asked, found = AskedView(OneRegion(old)), list[Seen]()
    asked.port.failing = 1
    asked.change(old, rules.closed(old))
    asked.view.look("s.000", "test", found.append)
    asked.ask()
    asked.answer()
    asked.port.refusing = 1
    asked.port.found = rules.dropped(rules.joined(old, Holder(1, "other")))
    asked.answer_all()
    assert [seen.entry for seen in found] == [asked.port.found]


def test_change_under_way_is_a_doubt() -> None:
    """R10: a secondary whose take-over is under way does not confirm its primary."""
    asked = AskedView(OneRegion(ENTRY))
    asked.view.change("s.000", ENTRY, rules.renewed(ENTRY), lambda outcome: None)
    assert asked.view.doubts(ME.daemon)
    asked.answer_all()
    assert not asked.view.doubts(ME.daemon)


def test_daemon_may_run_until_the_directory_denies_it() -> None:
    """R10: a directory that does not answer is no proof of death; an answer is asked for once at a time, and kept."""
    asked, other = AskedView(OneRegion(ENTRY)), Holder(1, "other")
    asked.port.alive = False
    assert asked.view.may_run(other)
    assert asked.view.may_run(other)
    assert len(asked.ask()) == 1
    asked.answer_all()
    assert not asked.view.may_run(other)
    assert not asked.ask()
