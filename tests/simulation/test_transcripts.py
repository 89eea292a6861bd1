"""The most telling stories of a region cluster, message by message (R4, R7-R12, R15, R18).

Each file in `transcripts` has a title with its feature ids, commands, and the trace that they cause. After a change that
is meant to alter a trace: `JMSQ_RECORD=1 pytest tests/simulation/test_transcripts.py`, then read the diff.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.models.regions.transcript import replay

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
RECORD = os.environ.get("JMSQ_RECORD") == "1"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    """R4, R7-R12, R15, R18: the cluster does what the transcript says, no more and no less."""
    recorded = path.read_text(encoding="utf-8")
    actual = replay(recorded)
    if RECORD:
        path.write_text(actual, encoding="utf-8")
    else:
        assert actual.splitlines() == recorded.splitlines()


def test_transcripts_name_their_features() -> None:
    """R4, R7-R12: each title names feature ids, and together they cover the promises of the region cluster."""
    titles = {path.name: path.read_text(encoding="utf-8").splitlines()[0] for path in TRANSCRIPTS}
    named = {name: set(re.findall(r"\bR\d+\b", title)) for name, title in titles.items()}
    assert not [name for name, ids in named.items() if not ids]
    assert set.union(*named.values()) >= {"R4", "R7", "R8", "R9", "R10", "R11", "R12", "R15", "R18"}
