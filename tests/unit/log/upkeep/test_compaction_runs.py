"""Which files compaction merges: every message is rewritten O(log n) times, few files stay (C13)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.log.tables.files import DataFile
from spark_jms.log.upkeep.compaction import level, runs


def data_file(first: int, rows: int, size: int = 1000) -> DataFile:
    return DataFile(f"m0-{first:012d}-{rows}.parquet", 0, first, rows, size, 0, 0, "{}", size)


_ROWS = st.one_of(st.integers(1, 9), st.integers(1, 5000))
_SIZES = st.sampled_from([1000, 10**6, 10**7, 40 * 2**20])


@given(st.lists(st.tuples(_ROWS, _SIZES, st.booleans()), max_size=300))
def test_runs_are_neighbours_that_reach_a_higher_level(given_files: list[tuple[int, int, bool]]) -> None:
    """C13: no file is in two runs, bounds hold, and a merged file is of a higher level than each of its inputs."""
    files, at = [], 1
    for rows, size, gap in given_files:
        at += gap
        files.append(data_file(at, rows, size))
        at += rows
    found = runs(files)
    merged = [file.path for run in found for file in run]
    assert len(merged) == len(set(merged))
    for run in found:
        assert 2 <= len(run) <= 200
        assert sum(file.bytes for file in run) <= 128 * 2**20
        assert all(before.last + 1 == after.first for before, after in itertools.pairwise(run))
        assert all(level(file.rows) < level(sum(f.rows for f in run)) for file in run)
        assert all(file.bytes <= 32 * 2**20 for file in run)


@pytest.mark.parametrize("sends_a_round", [1, 7, 100, 1000])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_unconsumed_member_keeps_few_files_and_rewrites_messages_rarely(sends_a_round: int, rows: int) -> None:
    """C13: after 20,000 sends, whatever the rate, a message was rewritten at most once for each level, and the files are
    fewer than 8 for each level."""
    files: list[DataFile] = []
    rewritten: dict[str, int] = {}
    at = 1
    for _ in range(20_000 // sends_a_round):
        for _ in range(sends_a_round):
            files.append(data_file(at, rows))
            at += rows
        while found := runs(files):
            for run in found:
                made = data_file(run[0].first, sum(file.rows for file in run))
                rewritten[made.path] = 1 + max(rewritten.get(file.path, 0) for file in run)
                place = files.index(run[0])
                files[place : place + len(run)] = [made]
        levels = level(at - 1) + 1
        assert len(files) <= 7 * levels
    assert max(rewritten.values()) <= level(at - 1)


def test_level_grows_with_the_logarithm_of_the_rows() -> None:
    """C13: eight times the rows are one level more."""
    assert [level(rows) for rows in (1, 7, 8, 63, 64, 511, 512, 10**6)] == [0, 0, 1, 1, 2, 2, 3, 6]
