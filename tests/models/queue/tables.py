"""The destinations of the model: each life of each, and which message is where."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow.parquet as pq

from spark_jms.claims.failures.error_destination import SET_ASIDE
from spark_jms.claims.servers.stores import read_state
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.stored_form import member_record
from spark_jms.core.transactions.transfer import ticket_of_file
from spark_jms.log.destinations.domain import REGISTER, Domain
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.store import MemoryStore
from spark_jms.testing.memory_storage import MemoryStorage

ROOT = "model"  # what the model's domains are opened with; `world.run` gives them its storage


class Place(NamedTuple):
    """A message's place: the id of the table, so that each life of a destination has places of its own."""

    table: str
    member: int
    sequence: int


class Looked(NamedTuple):
    """A destination as it is until the next write of any process."""

    writes: int
    snapshot: Snapshot
    states: dict[int, RecordSet]


@dataclass
class ModelDestination:
    """A destination under its present name. `table_id` is that of its present life; "" while it is being dropped. `log` is
    the model's own."""

    name: str
    log: DeltaLog
    table_id: str = ""
    renaming_to: str = ""  # a rename was begun
    looked: Looked | None = None


@dataclass
class Tables:
    """The model's own view, which never fails."""

    storage: MemoryStorage
    store: MemoryStore
    random: random.Random
    writes: int = 0  # of all processes, to the storage and the store
    orders: ModelDestination = field(init=False)
    aside: ModelDestination = field(init=False)
    texts: dict[Place, str] = field(default_factory=dict)
    courses: dict[str, list[Place]] = field(default_factory=dict)  # text -> where it was, one after the other
    expires: dict[Place, int] = field(default_factory=dict)  # when, ms; of those that do
    arrived: list[Place] = field(default_factory=list)  # by a transfer, and not looked at by the account
    discarded: set[str] = field(default_factory=set)  # unfinished when their destination was dropped
    returned: set[str] = field(default_factory=set)  # moving to a destination that was dropped: they come back, flagged
    _parsed: dict[str, tuple[dict[str, bytes], RecordSet]] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)  # files
    _looked_at: dict[str, int] = field(default_factory=dict)  # table -> the version of its log

    def __post_init__(self) -> None:
        self.orders, self.aside = self._found("orders"), self._found("aside")
        self._set_aside: ModelDestination | None = None

    def _found(self, name: str) -> ModelDestination:
        found = ModelDestination(name, Domain(ROOT).log(name))
        self.begin_life(found)
        return found

    def begin_life(self, destination: ModelDestination) -> None:
        destination.log, destination.looked = Domain(ROOT).log(destination.name), None
        destination.table_id = destination.log.refresh().table_id

    def snapshot(self, destination: ModelDestination) -> Snapshot:
        return self._look(destination).snapshot

    def states(self, destination: ModelDestination) -> dict[int, RecordSet]:
        return self._look(destination).states

    def _look(self, destination: ModelDestination) -> Looked:
        if destination.looked is None or destination.looked.writes != self.writes:
            snapshot = destination.log.refresh()
            states = {member: self._state(snapshot, member) for member in range(snapshot.destination.members)}
            destination.looked = Looked(self.writes, snapshot, states)
        return destination.looked

    def living(self) -> list[ModelDestination]:
        """All destinations that are not being dropped."""
        if self._set_aside is None and self.storage.exists(f"{REGISTER}/{SET_ASIDE}"):
            self._set_aside = self._found(SET_ASIDE)
        return [d for d in (self.orders, self.aside, self._set_aside) if d is not None and d.table_id]

    def _state(self, snapshot: Snapshot, member: int) -> RecordSet:
        """As last committed; parsed once."""
        record = member_record(snapshot.table_id, "-", member)
        objects = self.store.peek(record)
        known = self._parsed.get(record)
        if known is None or known[0] != objects:
            known = self._parsed[record] = (objects, read_state(self.store, record))
        return known[1]

    # -- which message is where -----------------------------------------------------------------------------------
    def text(self, table: str, member: int, sequence: int) -> str:
        return self.texts[Place(table, member, sequence)]

    def texts_of(self, table: str, member: int, sequences: Ranges) -> set[str]:
        return {self.text(table, member, s) for s in sequences.numbers().tolist()}

    def enter(self, table: str, member: int, first: int, texts: list[str], expirations: list[int]) -> None:
        for at, (text, expires) in enumerate(zip(texts, expirations, strict=True)):
            place = Place(table, member, first + at)
            assert place not in self.texts, "two messages have the same sequence"
            self.texts[place] = text
            self.courses.setdefault(text, []).append(place)
            if expires:
                self.expires[place] = expires

    def is_over(self, place: Place, now_ms: int) -> bool:
        """Its time is."""
        return 0 < self.expires.get(place, 0) <= now_ms

    def is_last(self, place: Place) -> bool:
        """The message has not arrived anywhere else since."""
        return self.courses[self.texts[place]][-1] == place

    def note_arrivals(self) -> None:
        """Messages that a transfer has brought have new sequences."""
        for destination in self.living():
            log, snapshot = destination.log, self.snapshot(destination)
            if self._looked_at.get(snapshot.table_id) == snapshot.version:
                continue
            self._looked_at[snapshot.table_id] = snapshot.version
            for path in [path for path in snapshot.files if path not in self._seen]:
                self._seen.add(path)
                if ticket_of_file(path):
                    file = snapshot.files[path]
                    texts, expirations = self._read(log, file)
                    self.enter(snapshot.table_id, file.member, file.first, texts, expirations)
                    self.arrived += [Place(snapshot.table_id, file.member, file.first + n) for n in range(len(texts))]

    def _read(self, log: DeltaLog, file: DataFile) -> tuple[list[str], list[int]]:
        """The texts and expirations of its messages."""
        with log.storage.open_input(file.path) as source:
            rows = pq.ParquetFile(source).read(["text", "JMSExpiration"], use_threads=False)
        return rows.column("text").to_pylist(), rows.column("JMSExpiration").to_pylist()

    def unfinished(self, destination: ModelDestination) -> set[str]:
        self.note_arrivals()
        snapshot = self.snapshot(destination)
        found: set[str] = set()
        for member, state in self.states(destination).items():
            found |= self.texts_of(snapshot.table_id, member, state.unfinished(1, snapshot.last_sequence(member)))
        return found

    def moving_to(self, table_id: str) -> set[str]:
        """Messages of the other destinations with an open transfer to this table."""
        return {
            text
            for source in self.living()
            for member, state in self.states(source).items()
            for intent in state.intents.values()
            if intent.targets[0].table_id == table_id
            for text in self.texts_of(source.table_id, member, intent.picks)
        }

    def numbers(self) -> Iterator[tuple[str, int, list[int]]]:
        """Table, member, and the sequences that its messages got."""
        found: dict[tuple[str, int], list[int]] = {}
        for place in sorted(self.texts):
            found.setdefault((place.table, place.member), []).append(place.sequence)
        for (table, member), sequences in found.items():
            yield table, member, sequences
