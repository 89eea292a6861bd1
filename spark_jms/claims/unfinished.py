"""What a client has claimed on each server and not finished.

A plain client keeps nothing across sessions: when a server loses the session in which it has delivered messages, others get
them, so the client's consumer must end.

Features: C9, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_jms.claims.branch import Branch
from spark_jms.core.batch import MemberPick
from spark_jms.core.ranges import EMPTY, Ranges


class UnfinishedMessages:
    """Not thread-safe. `server_of` gives the server with a member's record."""

    def __init__(self, server_of: Callable[[int], str]) -> None:
        self._server_of = server_of
        self._claimed_in: dict[str, int] = {}  # server -> generation in which messages were claimed
        self._picks: dict[int, Ranges] = {}  # by member

    def claimed(self, branch: Branch, members: Mapping[int, MemberPick]) -> None:
        self._claimed_in[branch.server] = branch.generation
        for member, pick in members.items():
            self._picks[member] = self._picks.get(member, EMPTY) | pick.picks

    def finished(self, member: int, picks: Ranges) -> None:
        if left := self._picks.pop(member, EMPTY) - picks:
            self._picks[member] = left

    def lost(self, branches: Mapping[str, Branch]) -> tuple[str, str] | None:
        """A server that has lost them, and why; None: none has."""
        for member in self._picks:
            server = self._server_of(member)
            branch = branches.get(server)
            if branch is None:
                return server, "its member was removed"
            if branch.generation != self._claimed_in[server]:
                return server, branch.why_away or "it answers again"
        return None
