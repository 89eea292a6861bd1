"""What a producer tells of its sends: the result of a call, and its counts.

Features: C11, T17, M1 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_jms.client.flow import NOT_SLOWED, FlowStatistics
from spark_jms.core.ranges import EMPTY, Ranges


@dataclass(frozen=True)
class ProducerStatistics:
    """Counts since the producer was created, or its statistics were reset. `bytes` counts bodies and properties; `commits`
    those that hold messages of this producer, and perhaps of others."""

    messages: int = 0
    commits: int = 0
    bytes: int = 0
    duplicates: int = 0  # calls whose transaction was in the log already, and messages whose number was
    outstanding: int = 0  # asynchronous and one-way sends that are not complete now
    one_way: int = 0  # one-way sends whose messages are in the table
    deleted: int = 0  # one-way sends whose messages are not, and will not be
    flow: FlowStatistics = NOT_SLOWED

    def counted(self, messages: int, commits: int, size: int, duplicates: int) -> ProducerStatistics:
        return replace(
            self,
            messages=self.messages + messages,
            commits=self.commits + commits,
            bytes=self.bytes + size,
            duplicates=self.duplicates + duplicates,
        )


@dataclass(frozen=True)
class SendReport:
    """The result of `send_many`. `duplicate`: the transaction was in the log already, and nothing was sent. `duplicates`: messages
    that were not sent because the table has their numbers."""

    messages: int
    commits: int
    sequences: Mapping[int, Ranges] = field(default_factory=dict)
    duplicate: bool = False
    duplicates: int = 0

    def with_next(self, other: SendReport) -> SendReport:
        """The report of both."""
        sequences = {member: self.sequences.get(member, EMPTY) | ranges for member, ranges in other.sequences.items()}
        return SendReport(
            self.messages + other.messages,
            self.commits + other.commits,
            {**self.sequences, **sequences},
            duplicates=self.duplicates + other.duplicates,
        )
