"""How a region's entry may change (R8-R10): the table in core/directory.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store.regions.protocol import region_entry as rules
from spark_jms.store.regions.protocol.region_entry import Holder, RegionEntry

A, B, C = (Holder(index, "life1") for index in range(3))
BORN_AGAIN = Holder(1, "life2")

EVENTS: dict[str, Callable[[RegionEntry], RegionEntry]] = {
    "opened": lambda entry: rules.opened(entry, "client"),
    "closed": rules.closed,
    "promoted": lambda entry: rules.promoted(entry, B),
    "dropped": rules.dropped,
    "joined": lambda entry: rules.joined(entry, C),
    "moved": lambda entry: rules.moved(entry, C),
    "renounced": lambda entry: rules.renounced(entry, C),
}


def entry(secondary: Holder | None = B) -> RegionEntry:
    return rules.created("r", "id", 4096, A, secondary, 7)


@given(st.lists(st.sampled_from(sorted(EVENTS))))
def test_every_change_raises_the_epoch_by_one(names: list[str]) -> None:
    """R8-R10: name, id and size never change; the copies are on two daemons; a change that may not touch the opener does not."""
    now = entry()
    for name in names:
        try:
            then = EVENTS[name](now)
        except ValueError:
            continue
        assert then.epoch == now.epoch + 1
        assert (then.name, then.region_id, then.size, then.created_us) == ("r", "id", 4096, 7)
        assert then.secondary is None or then.secondary.daemon != then.primary.daemon
        assert then.opener == now.opener or name in ("opened", "closed", "promoted")
        now = then


def test_open_region_cannot_be_opened_or_moved() -> None:
    """R8: a second client, or another daemon, has to wait until it is closed."""
    open_one = rules.opened(entry(), "one")
    with pytest.raises(ValueError, match="opened"):
        rules.opened(open_one, "two")
    with pytest.raises(ValueError, match="moved"):
        rules.moved(open_one, C)


def test_only_the_listed_secondary_takes_over() -> None:
    """R10: in the incarnation that is listed, and not after the primary dropped it."""
    promoted = rules.promoted(rules.opened(entry(), "one"), B)
    assert (promoted.primary, promoted.secondary, promoted.opener) == (B, None, None)
    for other in (A, C, BORN_AGAIN):
        with pytest.raises(ValueError, match="promoted"):
            rules.promoted(entry(), other)
    with pytest.raises(ValueError, match="promoted"):
        rules.promoted(rules.dropped(entry()), B)


def test_secondary_is_on_another_daemon() -> None:
    """R9: another incarnation of the primary's daemon is not enough."""
    with pytest.raises(ValueError, match="joined"):
        rules.joined(entry(None), Holder(0, "life2"))


def test_listed_copy_cannot_be_renounced() -> None:
    """R10: the primary has to drop it."""
    with pytest.raises(ValueError, match="renounced"):
        rules.renounced(entry(), B)
