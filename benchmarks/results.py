"""The results of a run: samples, absences and comparisons, and their JSON lines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.stats import COLD_RUN, Spread, counted, pair_differences, pair_ratios, spread

Verdict = Literal["met", "missed", "not measured", "no target"]


@dataclass(frozen=True)
class Noise:
    """The machine's other work during a cell: load before it, and the share of all cores that other processes used."""

    load_before: float
    others_cpu_share: float


@dataclass(frozen=True)
class Sample:
    """One measured cell of one run; run 0 is the cold one."""

    table: str
    cell: str
    run: int
    value: float
    unit: str
    seconds: float
    noise: Noise
    detail: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Absence:
    """A cell that could not be measured, with the reason; it stays in its table."""

    table: str
    cell: str
    reason: str


@dataclass(frozen=True)
class TargetComparison:
    """`cell` over `against`, or what it has more, in the table's `unit`; `bound` is the target of that, or None."""

    table: str
    cell: str
    against: str
    bound: float | None = None
    at_least: bool = True
    unit: str = "×"

    @property
    def name(self) -> str:
        return f"{self.cell} {'÷' if self.unit == '×' else '−'} {self.against}"

    @property
    def target(self) -> str:
        if self.bound is None:
            return "–"
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}"

    def text(self, ratio: Spread | None) -> str:
        return f"{ratio.median:.2f} {self.unit} ({ratio.low:.2f}–{ratio.high:.2f})" if ratio else "–"

    def verdict(self, ratio: Spread | None) -> Verdict:
        """By the median of the pairs."""
        if self.bound is None:
            return "no target"
        if ratio is None:
            return "not measured"
        met = ratio.median >= self.bound if self.at_least else ratio.median <= self.bound
        return "met" if met else "missed"


@dataclass
class Results:
    """All results of one run, in the order of measurement."""

    machine: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    comparisons: list[TargetComparison] = field(default_factory=list)

    def tables(self) -> list[str]:
        return list(dict.fromkeys(table for table, _ in self._entries()))

    def cells(self, table: str) -> list[str]:
        return list(dict.fromkeys(cell for name, cell in self._entries() if name == table))

    def by_run(self, table: str, cell: str) -> dict[int, float]:
        return {s.run: s.value for s in self._of(table, cell)}

    def unit(self, table: str) -> str:
        return next((s.unit for s in self.samples if s.table == table), "")

    def figure(self, table: str, cell: str) -> Spread | None:
        return spread(counted(self.by_run(table, cell)).values())

    def ratio(self, comparison: TargetComparison) -> Spread | None:
        """Or difference."""
        pairs = pair_ratios if comparison.unit == "×" else pair_differences
        ours = self.by_run(comparison.table, comparison.cell)
        return spread(pairs(ours, self.by_run(comparison.table, comparison.against)))

    def comparison(self, table: str, cell: str) -> TargetComparison | None:
        return next((c for c in self.comparisons if (c.table, c.cell) == (table, cell)), None)

    def absence(self, table: str, cell: str) -> str | None:
        return next((a.reason for a in self.absences if (a.table, a.cell) == (table, cell)), None)

    def noise(self, table: str, cell: str) -> Noise | None:
        """The worst of the counted runs, so that averaging hides no noise."""
        found = [s.noise for s in self._of(table, cell) if s.run != COLD_RUN]
        if not found:
            return None
        return Noise(max(n.load_before for n in found), max(n.others_cpu_share for n in found))

    def note(self, table: str, cell: str) -> str:
        """The note of the last sample."""
        return next((str(s.detail["note"]) for s in reversed(self._of(table, cell)) if "note" in s.detail), "")

    def _entries(self) -> list[tuple[str, str]]:
        return [(s.table, s.cell) for s in self.samples] + [(a.table, a.cell) for a in self.absences]

    def _of(self, table: str, cell: str) -> list[Sample]:
        return [s for s in self.samples if (s.table, s.cell) == (table, cell)]


def to_line(kind: str, entry: Any) -> str:
    """One JSON line: {"kind": …, …}."""
    body = dataclasses.asdict(entry) if dataclasses.is_dataclass(entry) and not isinstance(entry, type) else dict(entry)
    return json.dumps({"kind": kind, **body}, ensure_ascii=False)


def from_lines(lines: Iterable[str]) -> Results:
    """The results in a file of JSON lines. An unknown kind is an error."""
    results = Results()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        entry = json.loads(line)
        kind = entry.pop("kind", None)
        if kind == "machine":
            results.machine = entry
        elif kind == "options":
            results.options = entry
        elif kind == "sample":
            results.samples.append(Sample(**{**entry, "noise": Noise(**entry["noise"])}))
        elif kind == "absence":
            results.absences.append(Absence(**entry))
        elif kind == "comparison":
            results.comparisons.append(TargetComparison(**entry))
        else:
            raise ValueError(
                f"line {number}: kind {kind!r} is not one of machine, options, sample, absence, comparison"
            )
    return results
