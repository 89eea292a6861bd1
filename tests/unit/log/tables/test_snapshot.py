"""Snapshots share what did not change: persistent maps and file lists behave like plain ones (C5)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.ranges import Ranges
from spark_jms.log.tables import files as log_files
from spark_jms.log.tables.files import DataFile, LayeredMap, MapEdit, MemberEdit, MemberFiles
from spark_jms.log.tables.snapshot import LogReplay, Snapshot

_CHANGES = st.lists(st.dictionaries(st.integers(0, 30), st.none() | st.integers(0, 9), max_size=6), max_size=30)


@given(_CHANGES, st.integers(1, 10))
def test_layered_map_behaves_like_a_dict(steps: list[dict[int, int | None]], most: int) -> None:
    """C5: after any changes, and in every earlier map too."""
    kept, log_files._MAX_CHANGED = log_files._MAX_CHANGED, most
    try:
        series: list[tuple[LayeredMap[int, int], dict[int, int]]] = [(LayeredMap({1: 1}), {1: 1})]
        for changes in steps:
            made, model = series[-1][0].changed(changes), {**series[-1][1]}
            for key, value in changes.items():
                if value is None:
                    model.pop(key, None)
                else:
                    model[key] = value
            series.append((made, model))
        for made, model in series:
            assert dict(made) == model
            assert len(made) == len(model)
            assert all(made.get(key) == model.get(key) and (key in made) == (key in model) for key in range(31))
    finally:
        log_files._MAX_CHANGED = kept


def data_file(first: int, rows: int = 2) -> DataFile:
    stats = "{}" if first % 3 else '{"jmsqDeliveries":[[[2,[[1,1]]]],[],[]]}'
    return DataFile(f"m0-{first:08d}-{rows}.parquet", 0, first, rows, 10, 0, 0, stats, 10)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60), st.integers(1, 10), st.integers(1, 4))
def test_member_files_behave_like_a_sorted_list(steps: list[tuple[bool, int]], most: int, at_once: int) -> None:
    """C5: files are added in front, in the middle and behind, and removed, in commits of several changes."""
    kept, log_files._MAX_TAIL = log_files._MAX_TAIL, most
    try:
        made, model = MemberFiles(), dict[int, DataFile]()
        series = [(made, dict(model))]
        for at in range(0, len(steps), at_once):
            edit = MemberEdit(made)
            for adds, place in steps[at : at + at_once]:
                if adds and place not in model:
                    model[place] = data_file(1 + 2 * place)
                    edit.add(model[place])
                elif not adds and place in model:
                    edit.remove(model.pop(place))
            made = edit.done()
            series.append((made, dict(model)))
        for files, expected in series:
            ordered = [expected[place] for place in sorted(expected)]
            assert files.files == ordered
            assert len(files) == len(ordered)
            assert files.newest == (ordered[-1] if ordered else None)
            brought = [f.first for f in ordered if f.first % 3 == 0 and f.last > 20]
            assert files.carried(20).messages == Ranges.from_numbers(brought)
            for first, last in ((1, 100), (5, 5), (6, 20), (30, 7), (80, 90)):
                assert files.overlapping(first, last) == [f for f in ordered if f.last >= first and f.first <= last]
    finally:
        log_files._MAX_TAIL = kept


def added(first: int) -> dict[str, dict[str, object]]:
    stats = '{"numRecords":1,"minValues":{"ordinal":0},"maxValues":{"ordinal":0}}'
    values = {"member": "0", "first_sequence": str(first)}
    return {
        "add": {
            "path": f"m0-{first:012d}.parquet",
            "size": 9,
            "modificationTime": 1,
            "partitionValues": values,
            "stats": stats,
        }
    }


def test_snapshots_of_sends_share_the_files_before() -> None:
    """C5, C13: of 99 sends to a table of 5,000 files, two copy the list and the map of all files."""
    replay = LogReplay(Snapshot("here"))
    replay.apply_actions([added(n) for n in range(1, 5001)], 1)
    series = [replay.snapshot()]
    for n in range(5001, 5100):
        replay = LogReplay(series[-1])
        replay.apply_actions([added(n)], n)
        series.append(replay.snapshot())
    assert len(series[-1].files) == len(series[-1].members[0].files) == 5099
    assert len({id(snapshot.members[0].base) for snapshot in series}) == 2
    assert len({id(snapshot.files._base) for snapshot in series}) == 2


def test_map_edit_sees_its_own_changes() -> None:
    """C5: a commit may remove a file that an earlier action of the same replay added."""
    edit: MapEdit[str, int] = MapEdit(LayeredMap({"a": 1}))
    edit["b"], edit["a"] = 2, None
    assert (edit.get_new("a"), edit.get_new("b"), edit.get_new("c")) == (None, 2, None)
    assert dict(edit.done()) == {"b": 2}
