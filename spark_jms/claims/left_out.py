"""What a query leaves out of a batch that Spark has it deliver again, while a server of that batch is away.

Only the server's store knows whether the messages still belong to the query. Delivered without asking, they might come twice and
not flagged: an instance with a copy of the checkpoint may have dropped the claim, and delivered them as new ones. So the batch is
delivered without them, and they are released when the server answers: they come with a later batch, flagged.

    the sink keeps ...                          the left-out messages
    ------------------                          ---------------------
    the batch as it is delivered now            come later, flagged
    the whole batch, from before the crash      came with it, and come again, flagged; an idempotent sink drops what is
                                                delivered now

So nothing is lost, and nothing comes twice that is not flagged, provided that the messages are never acknowledged. A mark in the
root says so, in a file for each member, made before anything is delivered. It binds every later replay, also when the server is
back, and each instance looks for it before it acknowledges a batch: one that stood still may have delivered the whole batch to a
sink that had kept the smaller one. The mark lies in the root, and not in a store: what a replay needs must not be away.

    ROOT/_jmsq/left-out/<table id>/<consumer>/<claim>/<member>      {"v": 1}

It is deleted when the messages are released, and Spark cannot ask for the batch again: a later batch is acknowledged.

Features: C5, D4 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Set

from spark_jms.core.batch import Batch
from spark_jms.errors import FormatVersionError
from spark_jms.log.storage import Storage

LEFT_OUT = "_jmsq/left-out"
FORMAT_VERSION = 1
_MARK = json.dumps({"v": FORMAT_VERSION}).encode()


class LeftOut:
    """Of one query. Not thread-safe. Reads the marks when it is first asked."""

    def __init__(self, storage: Storage, table_id: str, consumer: str) -> None:
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
        """The batch without what was left out: only the rest is acknowledged, or carried. Looks once for marks of each claim."""
        claim = start.claim
        if claim and claim != self._looked_for:
            self.look(claim)
            self._looked_for = claim
        left_out = self.members(claim)
        return start.without(left_out) if left_out else start

    def forget(self, released: Set[int], *, replayable: str) -> None:
        """`released`: members on which no left-out message is claimed any more. `replayable`: the claim whose batch Spark may
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
        for info in self._storage.list(folder):
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
