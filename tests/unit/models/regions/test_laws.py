"""The simulator's laws of a region's entry know the product's events, and refuse every other hand (R8-R10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from spark_jms.store.regions.protocol import region_entry as rules
from spark_jms.store.regions.protocol.region_entry import Holder, RegionEntry
from tests.models.regions import laws
from tests.models.regions.errors import Violation

FIRST, SECOND, THIRD = (Holder(index, "life1") for index in range(3))
CLOSED = replace(rules.created("s.000", "id", 4096, FIRST, SECOND, 0), epoch=7)
OPEN = replace(CLOSED, opener="client")
Change = Callable[[RegionEntry], RegionEntry]

LAWFUL: dict[str, tuple[RegionEntry, Change, set[Holder]]] = {
    "opened": (CLOSED, lambda entry: rules.opened(entry, "client"), {FIRST}),
    "closed": (OPEN, rules.closed, {FIRST}),
    "dropped": (OPEN, rules.dropped, {FIRST}),
    "joined": (OPEN, lambda entry: rules.joined(entry, THIRD), {FIRST}),
    "moved to its second copy": (CLOSED, lambda entry: rules.moved(entry, SECOND), {FIRST}),
    "moved to a third daemon": (CLOSED, lambda entry: rules.moved(entry, THIRD), {FIRST}),
    "promoted": (OPEN, lambda entry: rules.promoted(entry, SECOND), {SECOND}),
    "renounced": (OPEN, lambda entry: rules.renounced(entry, THIRD), {FIRST, SECOND, THIRD}),
    "renewed": (OPEN, rules.renewed, {FIRST, SECOND, THIRD}),
}


@pytest.mark.parametrize("event", LAWFUL)
@pytest.mark.parametrize("by", [FIRST, SECOND, THIRD], ids=["primary", "secondary", "other"])
def test_change_is_lawful_at_the_hands_of_its_daemon_only(event: str, by: Holder) -> None:
    """R8-R10: a close, an open, a drop by a daemon that is not primary as well."""
    entry, change, allowed = LAWFUL[event]
    if by in allowed:
        laws.check_changed(by, entry, change(entry), primary_lives=True, wanted=False)
    else:
        with pytest.raises(Violation):
            laws.check_changed(by, entry, change(entry), primary_lives=True, wanted=False)


@pytest.mark.parametrize(
    ("by", "primary_lives", "wanted"),
    [(FIRST, True, False), (SECOND, True, True), (THIRD, True, True), (THIRD, False, False)],
)
def test_open_region_is_destroyed_only_when_it_was_asked_for(by: Holder, primary_lives: bool, wanted: bool) -> None:
    """R6, R18: and then by its primary, or once that has ended."""
    destroyed = rules.destroyed(OPEN)
    laws.check_changed(FIRST, OPEN, destroyed, primary_lives=True, wanted=True)
    laws.check_changed(THIRD, OPEN, destroyed, primary_lives=False, wanted=True)
    with pytest.raises(Violation):
        laws.check_changed(by, OPEN, destroyed, primary_lives=primary_lives, wanted=wanted)


@pytest.mark.parametrize(
    "becomes",
    [
        replace(OPEN, epoch=8, opener="another"),
        replace(OPEN, epoch=9, opener=None),
        replace(OPEN, epoch=8, opener=None, secondary=None),
        replace(OPEN, epoch=8, primary=THIRD, secondary=FIRST),
        replace(OPEN, epoch=8, primary=SECOND, secondary=THIRD, opener=None),
        replace(OPEN, epoch=8, region_id="other"),
        replace(OPEN, epoch=8, size=1),
    ],
    ids=["other opener", "epoch skipped", "two events", "moved while open", "moved and left", "other id", "other size"],
)
def test_change_that_is_no_event_is_unlawful(becomes: RegionEntry) -> None:
    """R8-R10: also by the primary."""
    with pytest.raises(Violation):
        laws.check_changed(FIRST, OPEN, becomes, primary_lives=True, wanted=False)


def test_new_entry_is_its_creators_and_closed() -> None:
    """R8, R9"""
    new = rules.created("s.000", "id", 4096, FIRST, SECOND, 0)
    laws.check_created(FIRST, new)
    for by, entry in [(SECOND, new), (FIRST, replace(new, opener="client")), (FIRST, replace(new, epoch=2))]:
        with pytest.raises(Violation):
            laws.check_created(by, entry)


def test_region_is_removed_only_when_it_was_asked_for() -> None:
    """R10: and then by its primary, or once that has ended; open, only when no copy lives."""
    for entry, copy_lives in ((CLOSED, True), (OPEN, False)):
        laws.check_deleted(FIRST, entry, primary_lives=True, copy_lives=copy_lives, wanted=True)
        laws.check_deleted(THIRD, entry, primary_lives=False, copy_lives=copy_lives, wanted=True)
    for by, lives, entry, wanted in [
        (FIRST, True, CLOSED, False),
        (THIRD, True, CLOSED, True),
        (FIRST, True, OPEN, True),
    ]:
        with pytest.raises(Violation):
            laws.check_deleted(by, entry, primary_lives=lives, copy_lives=True, wanted=wanted)
