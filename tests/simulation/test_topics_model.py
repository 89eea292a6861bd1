"""Distributed topics on servers that go down, away and back in the middle of anything (D4, D6, D7, C10, C13, M10).

tests/models/topics has the model. `JMSQ_SEEDS` and the seeds are fixed, so one commit has one result."""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

from tests.models.planted.in_topics import PLANTED_IN_TOPICS
from tests.models.planted.patch import PlantedPatch, first_violation
from tests.models.topics import KINDS, run

SEEDS = int(os.environ.get("JMSQ_SEEDS", "2000")) // 10
SEEDS_TO_FIND = range(60)

pytestmark = pytest.mark.usefixtures("quiet_model")


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_every_subscription_gets_what_was_sent_or_skips_what_it_must(first: int) -> None:
    """D4, D6, D7, C10, C13: sent = received + skipped + present for each subscription at any quiet moment, with servers that
    are stopped, lapse, go away, lose answers, join and leave; nothing twice that is not flagged; a purge removes what all have
    finished, and nothing else; subscriptions that are not durable leave nothing behind."""
    for seed in range(first, min(first + 20, SEEDS)):
        try:
            run(seed)
        except Exception as error:
            raise AssertionError(
                f"seed {seed} ({KINDS[seed % len(KINDS)]}): {type(error).__name__}: {error}"
            ) from error


def test_topics_model_is_full_of_faults() -> None:
    """D6: in the runs servers stop while messages are sent, all are down, servers change, and purges find something."""
    seen: Counter[str] = Counter()
    for seed in range(24):
        seen += run(seed).seen
    what = ("sent while a server is down", "all down", "stopped", "servers changed", "change refused", "purged")
    assert all(seen[one] > 3 for one in what), seen


@pytest.mark.parametrize("planted", PLANTED_IN_TOPICS, ids=str)
def test_topics_model_finds_a_planted_bug(planted: PlantedPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """D6, D7, C10: within 60 seeds, and for the right reason."""
    planted.plant(monkeypatch)
    seed, text = first_violation(planted, run, SEEDS_TO_FIND)
    assert re.search(planted.text, text), f"seed {seed}: {text}"
