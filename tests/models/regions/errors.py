"""What must hold of every cluster, and what the simulator raises when it does not."""

from __future__ import annotations

from enum import Enum


class Promise(Enum):
    """Each is stated here once, with its feature, and checked where the violations name it."""

    SAFE_LEAVING = "R4: a daemon that leaves safely leaves no listed copy behind"
    DURABLE = "R7: each listed copy that lives holds every acknowledged object, and none that was deleted"
    READS = "R7: a read returns what was acknowledged last"
    INTACT = "R7: a region is a row of whole objects, each with a checksum that fits"
    ONE_OPENER = "R8: a region is open for one client, and a store for one instance"
    FENCED = (
        "R8, R10: only the daemon that the directory names answers, and only the client that opened the region last"
    )
    PLACED = "R9: the second copy of a new region is on the next daemon, on no account on the same"
    ANSWERED = "R9: an open is answered within its time-out"
    CONTINUES = "R8, R10: once the faults are over, every store opens again"
    LAWFUL = (
        "R8-R10: an entry changes by one event at a time, and only at the hands of the daemon that the event belongs to"
    )
    ONE_EPOCH = "R10: an epoch of a region is used once"
    LISTED = "R10: each daemon that the directory lists holds a copy"
    EQUAL = "R10: both listed copies hold the same bytes once nothing is on its way between them"
    TWO_COPIES = "R10: once the faults are over, every region that was not lost has two copies where there is room"
    NO_OTHERS = "R10, R12: once the faults are over, no daemon keeps a copy that is not listed"
    REFUSES = "R10: with RS_SINGLE_COPY=refuse, no write is acknowledged while the directory lists one copy"
    LIMIT = "R12: a daemon stays within its memory limit, and its count of bytes is right"
    KEPT = "R10: an open region is removed only when an administrator wants it, or its store after both copies died"
    SPACE = "R12: a store knows how many bytes of its regions are free"
    WHOLE = "C9: an append to a record set is kept completely or not at all"
    HANDLES = "R14: a store never gives a handle out twice"
    LOST = "R18: a region is said to be lost exactly if no copy of it lives"


class Violation(AssertionError):
    """The cluster broke a promise. The text names the region, the daemons and the values."""

    def __init__(self, promise: Promise, text: str) -> None:
        super().__init__(f"{promise.name}: {text}")
        self.promise = promise
