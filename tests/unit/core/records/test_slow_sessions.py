"""What a session that is slow, but not dead, keeps (C8, C9)."""

from __future__ import annotations

import pytest

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim

TIMEOUT_MS = 60_000


def test_a_claim_in_doubt_is_out_of_it_when_its_session_is_seen_again() -> None:
    """C8: the next doubt starts from nothing, or the second hiccup of a long batch would revoke it at once."""
    state = RecordSet().attach("q", "s1").claim(Claim("c", "q", "s1", Ranges.of((1, 5)), 0, True))
    doubted = state.sweep(set(), 1_000, TIMEOUT_MS)
    assert doubted.claims["c"].in_doubt_since_ms == 1_000
    seen = doubted.sweep({"s1"}, 2_000, TIMEOUT_MS)
    assert seen.claims["c"].in_doubt_since_ms == 0
    assert seen.sweep({"s1"}, 3_000, TIMEOUT_MS) is seen
    again = seen.sweep(set(), 500_000, TIMEOUT_MS)
    assert again.claims["c"].in_doubt_since_ms == 500_000
    assert not again.sweep(set(), 500_000 + TIMEOUT_MS, TIMEOUT_MS).claims


def test_a_bound_beyond_64_bits_is_no_range() -> None:
    """C5: an offset that somebody has edited fails by name, not deep in numpy."""
    with pytest.raises(ValueError, match="64 bits"):
        Ranges.from_json([[1, 2**70]])
