"""The parts of units of work that a plan judges, against a judgement of all of them (T12)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.ordering.units_of_work import NO_PARTS, PARTS_SCHEMA, PendingParts, WorkVerdict, judge


@dataclass
class Member:
    """The messages of a member, and what a consumer knows of their parts."""

    rows: dict[int, dict[str, object]] = field(default_factory=dict)  # unfinished parts by sequence
    claimed: set[int] = field(default_factory=set)
    last: int = 0
    now_ms: int = 100
    patience_ms: int | None = 40
    known: PendingParts = field(default_factory=PendingParts)

    def arrive(self, **part: object) -> None:
        self.last += 1
        expires_in = part.pop("expires_in")
        expires_ms = self.now_ms + int(str(expires_in)) if expires_in else 0
        self.rows[self.last] = {"sequence": self.last, "sent_ms": self.now_ms, "expires_ms": expires_ms, **part}

    def judged(self) -> tuple[WorkVerdict, WorkVerdict]:
        """By what is known, and by a look at everything."""
        looked_at = self.known.looked_at
        self.known = self.known.unfinished(Ranges.from_numbers(sorted(set(numbers(looked_at)) & self.rows.keys())))
        new = sorted(self.rows.keys() - set(numbers(self.known.looked_at)))
        found = self._table(reversed(new)) if new else NO_PARTS
        self.known = self.known.with_new(Ranges.from_numbers(new) if new else EMPTY, found)
        free = Ranges.from_numbers(sorted(self.rows.keys() - self.claimed))
        self.known, verdict = self.known.judged(free, self.now_ms, self.patience_ms)
        return verdict, judge(self._table(sorted(self.rows)), free, self.now_ms, self.patience_ms)

    def _table(self, sequences: Iterable[int]) -> pa.Table:
        return pa.Table.from_pylist([self.rows[n] for n in sequences], PARTS_SCHEMA)


def numbers(ranges: Ranges) -> list[int]:
    return ranges.numbers().to_pylist()


def shown(verdict: WorkVerdict) -> object:
    found = verdict.deliverable
    return (found.to_pylist(), verdict.refused.text(), verdict.expired.text()), verdict.faulty


PARTS = st.fixed_dictionaries(
    {
        "unit": st.sampled_from("abc"),
        "number": st.integers(1, 3),
        "end": st.booleans(),
        "fault": st.sampled_from([None, None, None, None, "wrong"]),
        "due_ms": st.just(0),
        "expires_in": st.sampled_from([0, 0, 0, 10, 30]),
        "taken": st.sampled_from([True, True, False]),
    }
)
ACTIONS = st.lists(
    st.one_of(
        PARTS,
        st.tuples(st.sampled_from(["finish", "claim", "release"]), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.sampled_from([1, 10, 50])),
        st.tuples(st.just("patience"), st.sampled_from([None, 5, 40])),
        st.just("judge"),
    ),
    max_size=30,
)


FIRST = {"unit": "a", "number": 1, "end": False, "fault": None, "due_ms": 0, "expires_in": 0, "taken": True}


@given(ACTIONS)
@example([FIRST, FIRST, "judge"])  # the later one is faulty, and is so again
@example([FIRST, "judge", ("patience", 5), ("wait", 10)])
@example([{**FIRST, "expires_in": 10}, "judge", ("wait", 10)])
@example([FIRST, "judge", {**FIRST, "number": 2, "end": True}])
def test_verdict_is_that_of_all_parts(actions: list[object]) -> None:
    """T12: whatever arrives, is claimed, finished or expires between the plans, and however the patience changes."""
    member = Member()
    for action in [*actions, "judge"]:
        if isinstance(action, dict):
            member.arrive(**action)
            continue
        if isinstance(action, tuple):
            what, amount = action
            some = sorted(member.rows)[amount : amount + 2] if what in ("finish", "claim", "release") else []
            if what == "finish":
                member.rows = {n: row for n, row in member.rows.items() if n not in some}
            elif what == "claim":
                member.claimed |= set(some)
            elif what == "release":
                member.claimed -= set(some)
            elif what == "wait":
                member.now_ms += amount
            else:
                member.patience_ms = amount
            continue
        partly, wholly = member.judged()
        assert shown(partly) == shown(wholly)
        assert numbers(member.known.sequences) == sorted(member.rows)
        assert member.known.awake["sequence"].to_pylist() == sorted(member.known.awake["sequence"].to_pylist())
        assert member.known.awake.num_rows + member.known.asleep.num_rows == len(member.rows)


def test_plan_judges_only_units_whose_verdict_may_have_changed() -> None:
    """T12: of many incomplete units, the one that gets a part, and the one whose time is over."""
    member, waiting = Member(patience_ms=1_000), 5_000
    part = {"number": 1, "end": False, "fault": None, "due_ms": 0, "taken": True}
    for n in range(waiting):
        member.arrive(unit=f"u{n}", expires_in=70 if n == 7 else 0, **part)
    member.judged()
    assert (member.known.awake.num_rows, member.known.asleep.num_rows) == (0, waiting)
    member.arrive(unit="u3", expires_in=0, **{**part, "number": 2, "end": True})
    assert member.judged()[0].deliverable["sequence"].to_pylist() == [4, waiting + 1]
    member.now_ms += 80
    assert numbers(member.judged()[0].expired) == [8]
    assert sorted(member.known.awake["unit"].to_pylist()) == ["u3", "u3", "u7"]


def test_parts_that_fall_asleep_bit_by_bit_stay_in_few_pieces() -> None:
    """T12: each plan may add a piece, which every later one would have to look through."""
    member = Member()
    for n in range(200):
        member.arrive(unit=f"u{n}", number=1, end=False, fault=None, due_ms=0, taken=True, expires_in=0)
        member.judged()
    assert member.known.asleep.num_rows == 200
    assert member.known.asleep["unit"].num_chunks <= 65
