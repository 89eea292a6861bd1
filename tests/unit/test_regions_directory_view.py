"""What a daemon concludes when the directory has no entry (R8, R10): the table in core/directory_view.py."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.directory import Absent, DirectoryListing, DirectoryPort, Holder, RegionEntry
from spark_jms.store.regions.core.directory_view import DirectoryView
from spark_jms.store.regions.core.outgoing import Outgoing

ME = Holder(0, "life")
ENTRY = rules.created("s.000", "id", 4096, ME, None, 7)


@dataclass
class OneRegion(DirectoryPort):
    found: RegionEntry | Absent
    swapped: list[RegionEntry | None] = field(default_factory=list)

    def read(self, name: str) -> RegionEntry | Absent:
        return self.found

    def entries(self) -> DirectoryListing:
        if isinstance(self.found, RegionEntry):
            return DirectoryListing({self.found.name: self.found})
        return DirectoryListing({}, frozenset({"s.000"} if self.found is Absent.REMOVED else ()))

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        self.swapped.append(new)
        return True

    def discard(self, name: str) -> bool:
        return False

    def running(self, holder: Holder) -> bool:
        return True


def view_of(port: OneRegion) -> DirectoryView:
    return DirectoryView(port, Outgoing(ME))


@pytest.mark.parametrize("seen", ["read", "survey", "swap", ""])
@pytest.mark.parametrize("absent", list(Absent))
def test_region_without_an_entry(seen: str, absent: Absent) -> None:
    """R8, R10: it was removed, or nobody knows: a region that had an entry is absent only if its removal is recorded."""
    port = OneRegion(ENTRY)
    view = view_of(port)
    if seen == "read":
        assert view.read("s.000") == ENTRY
    elif seen == "survey":
        assert view.survey() == {"s.000": ENTRY}
    elif seen == "swap":
        assert view.swap("s.000", None, ENTRY)
    port.found = absent
    if absent is Absent.REMOVED or (absent is Absent.NOTHING and not seen):
        assert view.read("s.000") is None
        assert view.look("s.000") == (True, None)
    else:
        with pytest.raises(DirectoryUnavailableError, match=r"region s\.000 has no entry"):
            view.read("s.000")
        assert view.look("s.000") == (False, None)


@pytest.mark.parametrize("seen", ["read", "survey", "swap"])
def test_removed_region_is_forgotten(seen: str) -> None:
    """R8: once its removal was seen, its record may go too."""
    port = OneRegion(ENTRY)
    view = view_of(port)
    view.survey()
    port.found = Absent.REMOVED
    if seen == "read":
        view.read("s.000")
    elif seen == "survey":
        assert view.survey() == {}
    else:
        assert view.swap("s.000", ENTRY, None)
    port.found = Absent.NOTHING
    assert view.read("s.000") is None
