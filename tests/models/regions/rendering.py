"""One line of a transcript for everything that happens in a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from spark_jms.store.regions.protocol.messages import (
    Ack,
    Adopt,
    Begin,
    BreakOff,
    Close,
    DaemonHeartbeat,
    Failure,
    Open,
    Ping,
    ReadRegion,
    Refused,
    RegionHello,
    RegionMessage,
    Regions,
    Remove,
    RemoveRequest,
    Replicate,
    Reply,
    Revoked,
    Shutdown,
    WriteRegion,
)
from spark_jms.store.regions.protocol.region_entry import EntryEvent, Holder, RegionEntry
from tests.models.regions.connections import ClientConnection
from tests.models.regions.observer import Observer

MAX_SHOWN_BYTES = 16


def shown(data: bytes) -> str:
    """Text where it is text; zeros and long values by their length."""
    if data and not data.strip(b"\0"):
        return f"{len(data)} zeros"
    head = data.rstrip(b"\0")
    if len(head) <= MAX_SHOWN_BYTES and head.isascii() and head.decode("ascii").isprintable():
        zeros = len(data) - len(head)
        return f'"{head.decode("ascii")}"' + (f" and {zeros} zeros" if zeros else "")
    return f"{len(data)} bytes"


def contents(data: bytes) -> str:
    """What a region contains besides zeros."""
    runs = [f"{shown(run.group())} at {run.start()}" for run in re.finditer(rb"[^\0]+", data)]
    return ", ".join(runs) or "empty"


def _writes(writes: list[tuple[int, bytes]]) -> str:
    return ", ".join(f"{shown(data)} at {offset}" for offset, data in writes) or "nothing"


def _value(value: Any) -> str:
    match value:
        case None:
            return "done"
        case bytes():
            return shown(value)
        case [int(epoch), int(), int(secondary)]:
            return f"epoch {epoch}, " + (f"second copy on {secondary}" if secondary >= 0 else "one copy")
        case [*rows]:
            return ", ".join(f"{row.name} {row.status}" for row in rows) or "none"
        case _:
            return str(value)


def render(message: RegionMessage) -> str:
    """Heartbeats and pings are left out of transcripts: there is one at every tick."""
    match message:
        case RegionHello(_, _, incarnation):
            return f"Hello, {incarnation}"
        case Begin(stream, name, _, epoch, size):
            return f"Begin {name} stream {stream}, epoch {epoch}, {size} bytes"
        case Adopt(stream, name, _, epoch):
            return f"Adopt {name} stream {stream}, epoch {epoch}"
        case Replicate(stream, _, epoch, seq, writes):
            return f"Replicate {stream} #{seq}, epoch {epoch}: {_writes(writes)}"
        case Ack(stream, seq):
            return f"Ack {stream} #{seq}"
        case Refused(stream, reason):
            return f"Refused {stream}: {reason}"
        case Open(request, name, size):
            return f"Open({request}) {name}" + (f", new, {size} bytes" if size else "")
        case Close(request, name):
            return f"Close({request}) {name}"
        case WriteRegion(request, name, epoch, steps):
            texts = [f"{shown(w) if isinstance(w, bytes) else f'{w[1]} bytes from {w[0]}'} at {o}" for o, w in steps]
            return f"Write({request}) {name}, epoch {epoch}: {', '.join(texts)}"
        case ReadRegion(request, name, epoch, offset, length):
            return f"Read({request}) {name}, epoch {epoch}: {length} bytes at {offset}"
        case Regions(request, prefix):
            return f"Regions({request}) {prefix or 'all'}"
        case Remove(request, name, force):
            return f"Remove({request}) {name}" + (", by force" if force else "")
        case RemoveRequest(name, force, _):
            return f"RemoveRequest {name}" + (", by force" if force else "")
        case BreakOff(request, indexes):
            return f"BreakOff({request}) {indexes}"
        case Shutdown(request, indexes, force):
            return f"Shutdown({request}) {indexes}" + (", by force" if force else "")
        case Reply(request, value):
            return f"Reply({request}) {_value(value)}"
        case Failure(request, error, arguments):
            return f"Failure({request}) {error}: {' '.join(map(str, arguments))}"
        case Revoked(name, reason):
            return f"Revoked {name}: {reason}"
        case _:
            fields = " ".join(str(getattr(message, field)) for field in message.__struct_fields__)
            return f"{type(message).__name__} {fields}".rstrip()


def event_of(by: Holder, old: RegionEntry | None, new: RegionEntry | None, alive: Collection[Holder]) -> EntryEvent:
    """Which of the directory's events turned `old` into `new`, read off the two entries and the daemons that are alive."""
    if old is None or new is None:
        return EntryEvent.CREATED if old is None else EntryEvent.DELETED
    if new.is_destroyed and not old.is_destroyed:
        return EntryEvent.DESTROYED
    if new.primary != old.primary:
        return EntryEvent.MOVED if new.secondary == old.primary else EntryEvent.PROMOTED
    if new.opener != old.opener:
        return EntryEvent.OPENED if new.opener is not None else EntryEvent.CLOSED
    if new.secondary != old.secondary:
        return EntryEvent.DROPPED if new.secondary is None else EntryEvent.JOINED
    lost = not any(holder in alive for holder in old.holders())
    return EntryEvent.RENEWED if by in old.holders() or lost else EntryEvent.RENOUNCED


def render_entry(entry: RegionEntry) -> str:
    if entry.is_destroyed:
        return f"epoch {entry.epoch}, no copy, open by {entry.opener}"
    copies = " and ".join(str(holder.daemon) for holder in entry.holders())
    return f"epoch {entry.epoch}, {'copies' if entry.secondary else 'one copy'} on {copies}, " + (
        f"open by {entry.opener}" if entry.opener else "closed"
    )


class TraceLines(Observer):
    """Collects lines. Times are milliseconds since the last `take`. `alive`: the daemons, as they are at any time."""

    def __init__(self, now_ms: Callable[[], float], alive: Collection[Holder]) -> None:
        self._now_ms = now_ms
        self._alive = alive
        self._began_ms = now_ms()
        self._shown_ms: float | None = None
        self._logged: set[tuple[int, str]] = set()
        self._lines: list[str] = []

    def take(self) -> list[str]:
        lines, self._lines = self._lines, []
        self._began_ms, self._shown_ms = self._now_ms(), None
        self._logged.clear()
        return lines

    def add(self, text: str) -> None:
        since_ms = self._now_ms() - self._began_ms
        stamp = "" if since_ms == self._shown_ms else f"+{since_ms:.0f}"
        self._shown_ms = since_ms
        self._lines.append(f"{stamp:>6}  {text}")

    def note(self, text: str) -> None:
        self.add(text)

    def logged(self, daemon: int, text: str) -> None:
        """Once for each command, and only the first sentence: while the directory is away there is one at every tick."""
        first = text.partition(". ")[0]
        if (daemon, first) not in self._logged:
            self._logged.add((daemon, first))
            self.add(f"daemon {daemon} logs: {first}")

    def sent(self, source: int, target: int, message: RegionMessage) -> None:
        if not isinstance(message, DaemonHeartbeat):
            self.add(f"{source} -> {target}  {render(message)}")

    def asked(self, connection: ClientConnection, message: RegionMessage) -> None:
        if not isinstance(message, Ping):
            self.add(f"{connection.end.name} -> {connection.daemon.index}  {render(message)}")

    def answered(self, connection: ClientConnection, message: RegionMessage) -> None:
        self.add(f"{connection.daemon.index} -> {connection.end.name}  {render(message)}")

    def changed(self, by: Holder, name: str, old: RegionEntry | None, new: RegionEntry | None, opened: bool) -> None:
        entry = f": {render_entry(new)}" if new is not None else ""
        self.add(f"directory: {name} {event_of(by, old, new, self._alive).value} by {by.daemon}{entry}")

    def refused(self, by: Holder, name: str, reason: str) -> None:
        self.add(f"directory: {name}, change by {by.daemon}: {reason}")
