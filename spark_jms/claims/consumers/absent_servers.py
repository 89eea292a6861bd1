"""What a query notes in the root while a server is away: messages withheld from a batch, and its progress.

    ROOT/_jmsq/left-out/<table id>/<consumer>/<claim>/<member>                 {"v": 1}                a mark of WithheldMessages
    ROOT/_jmsq/query-progress/<table id>/<consumer>/<number of the claim>      {"v": 1, "claim": …}    a note of ProgressNotes

They lie in the root, and not in a store: what a replay needs must not be away. While all servers answer there is neither mark nor
note, and a batch costs nothing more. A destination without servers never has any, and is not looked for them.

Features: C5, C9, D4 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Set

from spark_jms.claims.batches.acknowledgement import check_not_stale
from spark_jms.core.records.batch import Batch, QueryProgress, claim_number
from spark_jms.errors import FormatVersionError, OffsetError, StaleCheckpointError
from spark_jms.log.tables.storage import Storage

LEFT_OUT = "_jmsq/left-out"
QUERY_PROGRESS = "_jmsq/query-progress"
FORMAT_VERSION = 1
_MARK = json.dumps({"v": FORMAT_VERSION}).encode()


class WithheldMessages:
    """What a query leaves out of a batch that Spark has it deliver again, while a server of that batch is away. Not thread-safe.
    Reads the marks when it is first asked.

    Only the server's store knows whether the messages still belong to the query. Delivered without asking, they might come twice
    and not flagged: an instance with a copy of the checkpoint may have dropped the claim, and delivered them as new ones. So the
    batch is delivered without them, and they are released when the server answers: they come with a later batch, flagged.

        the sink keeps ...                          the withheld messages
        ------------------                          ---------------------
        the batch as it is delivered now            come later, flagged
        the whole batch, from before the crash      came with it, and come again, flagged; an idempotent sink drops what is
                                                    delivered now

    So nothing is lost, and nothing comes twice that is not flagged, provided that the messages are never acknowledged. A mark
    records that, in a file for each member, made before anything is delivered. It binds every later replay, also when the server is
    back, and each instance looks for it before it acknowledges a batch: one that stood still may have delivered the whole batch to
    a sink that had kept the smaller one. The mark is deleted when the messages are released, and Spark cannot ask for the batch
    again: a later batch is acknowledged."""

    def __init__(self, storage: Storage, table_id: str, consumer: str, *, on_servers: bool = True) -> None:
        self._on_servers = on_servers
        self._storage, self._folder = storage, f"{LEFT_OUT}/{table_id}/{consumer}"
        self._known: dict[str, set[int]] | None = None
        self._looked_for = ""

    def members(self, claim: str) -> frozenset[int]:
        return frozenset(self._marked().get(claim, ()))

    def claims(self) -> frozenset[str]:
        """Those with messages that have to be released."""
        return frozenset(self._marked())

    def add(self, claim: str, members: Iterable[int]) -> None:
        """Durable on return."""
        for member in members:
            path = f"{self._folder}/{claim}/{member}"
            if not self._storage.create(
                path, _MARK, durable=True
            ):  # another instance's, and a mark says the same from all
                self._storage.sync([path])
            self._marked().setdefault(claim, set()).add(member)

    def look(self, claim: str) -> None:
        """For marks that other instances have made since."""
        for name, members in self._read(f"{self._folder}/{claim}").items():
            self._marked().setdefault(name, set()).update(members)

    def delivered_of(self, start: Batch) -> Batch:
        """The batch without what was withheld: only the rest is acknowledged, or carried. Looks once for marks of each claim."""
        claim = start.claim
        if claim and claim != self._looked_for:
            self.look(claim)
            self._looked_for = claim
        left_out = self.members(claim)
        return start.without(left_out) if left_out else start

    def forget(self, released: Set[int], *, replayable: str) -> None:
        """`released`: members on which no withheld message is claimed any more. `replayable`: the claim whose batch Spark may
        ask for again."""
        for claim, members in list(self._marked().items()):
            if members <= released and claim != replayable:
                for member in members:
                    self._storage.delete(f"{self._folder}/{claim}/{member}")
                del self._marked()[claim]

    def _marked(self) -> dict[str, set[int]]:
        if self._known is None:
            self._known = self._read(self._folder)
        return self._known

    def _read(self, folder: str) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for info in self._storage.list(folder) if self._on_servers else ():
            _, claim, member = info.path.rsplit("/", 2)
            if member.isdecimal():  # a dot marks a temporary file
                self._check_version(info.path)
                found.setdefault(claim, set()).add(int(member))
        return found

    def _check_version(self, path: str) -> None:
        """A damaged mark says what its name says. Raises FormatVersionError."""
        data = self._storage.get(path)
        try:
            version = json.loads(data)["v"] if data else FORMAT_VERSION
        except (ValueError, KeyError, TypeError):
            return
        if version > FORMAT_VERSION:
            raise FormatVersionError(
                f"{self._storage.uri}/{path} has format version {version}, this spark-jms reads up to {FORMAT_VERSION}: "
                "install a later spark-jms"
            )


class ProgressNotes:
    """What a query has acknowledged while a server was away, for a restart that meets only that server. Not thread-safe. Lists its
    notes once.

    The store of each server has the query's progress: the newest claim that the query has acknowledged there. A server that was
    away has an older one. A restart which only such servers answer would take an old copy of the checkpoint for the newest one, and
    the sink would drop the next batches as duplicates. So a claim whose acknowledgement some server does not write is noted in the
    root, before the other servers write it.

    A claim in a note is in Spark's commit log, so a note is true whatever happens to the batch that follows. Notes are created and
    never changed, and the highest one counts: an instance that stood still cannot take it back. They are deleted when all servers
    have written the progress."""

    def __init__(self, storage: Storage, table_id: str, consumer: str, *, on_servers: bool = True) -> None:
        self._storage, self._consumer, self._on_servers = storage, consumer, on_servers
        self._folder = f"{QUERY_PROGRESS}/{table_id}/{consumer}"
        self._numbers: set[int] | None = None
        self._is_checked = False

    def check(self, start: Batch, destination: str) -> None:
        """Before this instance claims anything: the checkpoint ends with `start`. Raises StaleCheckpointError, FormatVersionError,
        and OffsetError when the note is damaged, each time until it has passed once; then it does nothing."""
        if not self._is_checked:
            check_not_stale(QueryProgress(acknowledged=self._newest()), start, destination)
            self._is_checked = True

    def has(self, claim: str) -> bool:
        """The query has acknowledged this claim as its newest one, and some server may not have written that."""
        return bool(claim) and self._newest() == claim

    def _newest(self) -> str:
        """The claim of the highest note; "" when there is none."""
        number = max(self._known(), default=0)
        return self._claim(number) if number else ""

    def _claim(self, number: int) -> str:
        """Of the note with this number; "" when there is none."""
        data = self._storage.get(self._path(number))
        if data is None:
            return ""
        try:
            value = json.loads(data)
            if value["v"] > FORMAT_VERSION:
                raise FormatVersionError(
                    f"{self._shown(number)} has format version {value['v']}, this spark-jms reads up to {FORMAT_VERSION}: install a "
                    "later spark-jms"
                )
            return str(value["claim"])
        except (ValueError, KeyError, TypeError) as error:
            raise OffsetError(
                f"{self._shown(number)} is damaged ({error!r}): delete it while all servers of the destination answer"
            ) from error

    def note(self, claim: str, *, behind: Collection[str]) -> None:
        """Durable on return. `behind`: the servers whose stores do not have, and do not get now, that the claim is acknowledged; they
        are away, or catch up with an earlier one. Does nothing for a claim without a number, or when a later one is noted.

        Two instances that note the same claim write the same note. Raises StaleCheckpointError when another claim with this
        number is noted: an instance with a copy of the checkpoint has made it on other servers."""
        number = claim_number(claim)
        if not behind or not number or number <= max(self._known(), default=0):
            return
        known = self._known()
        value = {"v": FORMAT_VERSION, "claim": claim}
        if not self._storage.create(self._path(number), json.dumps(value).encode(), durable=True):
            self._check_noted(number, claim)
        self._delete(set(known))
        known.add(number)

    def _check_noted(self, number: int, claim: str) -> None:
        """Another instance has created this note."""
        noted = self._claim(number)
        if noted != claim:
            raise StaleCheckpointError(
                f"claim {claim} of consumer {self._consumer} is acknowledged, but {self._shown(number)} names claim "
                f"{noted or '(none)'}: another instance of this query runs with a copy of its checkpoint. Stop one of them, and "
                "start it with a fresh checkpointLocation: it gets all unfinished messages."
            )
        self._storage.sync([self._path(number)])

    def forget(self) -> None:
        """All servers have the progress."""
        if self._numbers:
            self._delete(set(self._numbers))

    def _delete(self, numbers: set[int]) -> None:
        for number in numbers:
            self._storage.delete(self._path(number))
        self._known().difference_update(numbers)

    def _known(self) -> set[int]:
        if self._numbers is None:
            listed = self._storage.list(self._folder) if self._on_servers else []
            names = (info.path.rsplit("/", 1)[1] for info in listed)
            self._numbers = {int(name) for name in names if name.isdecimal()}  # a dot marks a temporary file
        return self._numbers

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number}"

    def _shown(self, number: int) -> str:
        return f"{self._storage.uri}/{self._path(number)}"
