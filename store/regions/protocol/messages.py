"""The messages of the region cluster, one in the body of each frame (net/frames.py), in msgpack. Pure.

The tag of a message on the wire is the name of its class, or the `tag` that the class states.

Features: R4, R9, R14 (docs/FEATURES.md)
"""

from __future__ import annotations

from typing import Any

import msgspec

from spark_jms.store.net.frames import MAX_FRAME_BYTES, FrameReader, frame

MAX_BODY_BYTES = 56 * 1024 * 1024  # region bytes in one frame, in either direction
SHUT_DOWN_SAFELY = "is being shut down safely"  # in the RegionUnavailableError of an Open that waited for that


class RegionMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""


# ---- between daemons


class RegionHello(RegionMessage, frozen=True, tag="Hello"):
    """The first frame of every connection, both ways. `role`: daemon, client or admin. `timeouts`: a daemon's, in words;
    daemons with other ones refuse it. `report`: a client's, for the log of the daemon; an older daemon does not read it."""

    role: str
    index: int
    incarnation: str
    client: str = ""
    timeouts: str = ""
    report: str = ""


class DaemonHeartbeat(RegionMessage, frozen=True, tag="Heartbeat"):
    """Sent every heartbeat_ms on every connection between daemons: what the others need for placement and for `lsd`."""

    used_bytes: int
    limit_bytes: int
    draining: bool
    started_us: int
    now_us: int
    regions_closed: int
    regions_open_primary: int
    regions_open_replica: int
    resilvers: int
    clock_ms: float  # the sender's clock
    echo_ms: float  # the receiver's clock in its last heartbeat; -1 = none
    waits_for: str = ""  # a leaving daemon that cannot move its copies: for which memory


class Begin(RegionMessage, frozen=True):
    """Item 1 of a stream to a new copy: allocate it, filled with zeros."""

    stream: str
    name: str
    region_id: str
    epoch: int
    size: int


class Adopt(RegionMessage, frozen=True):
    """Item 1 of a stream to a complete copy: it follows the sender from now on."""

    stream: str
    name: str
    region_id: str
    epoch: int


class Replicate(RegionMessage, frozen=True):
    """Item `seq` of a stream: byte writes, applied together. A resilvered chunk is sent the same way."""

    stream: str
    name: str
    epoch: int
    seq: int
    writes: list[tuple[int, bytes]]


class Ack(RegionMessage, frozen=True):
    """The copy has all items up to `seq`."""

    stream: str
    seq: int


class Refused(RegionMessage, frozen=True):
    """The receiver does not follow this stream. `reason`: stale, memory, unknown."""

    stream: str
    reason: str


class MoveRequest(RegionMessage, frozen=True):
    """To the primary of a closed region: move it to the sender."""

    name: str


class Notice(RegionMessage, frozen=True):
    """The entry of this region may have changed: read it."""

    name: str


class Usage(RegionMessage, frozen=True):
    """How many bytes of a region are taken, as the store that has it open reported to the sender."""

    name: str
    used_bytes: int


class ConnectionRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One connection of a store: its requests since the store was opened, and its objects now."""

    name: str
    create_count: int = 0
    read_count: int = 0
    update_count: int = 0
    delete_count: int = 0
    object_count: int = 0


class StoreRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A store that is open, as its instance counts."""

    name: str
    physical_write_count: int = 0
    connections: tuple[ConnectionRow, ...] = ()


class Counted(RegionMessage, frozen=True):
    """The counts of a store, as it reported them to the sender."""

    row: StoreRow


class RemoveRequest(RegionMessage, frozen=True):
    """To the primary: delete this region. If its entry is damaged, to all daemons: stop serving it, and answer Unserved."""

    name: str
    force: bool
    request: int


class Unserved(RegionMessage, frozen=True):
    """The entry of this region is damaged, and the sender does not serve it, or has stopped."""

    name: str


class Drain(RegionMessage, frozen=True):
    """Move all copies away, then stop."""


class Stay(RegionMessage, frozen=True):
    """Break off what Drain began."""


class Halt(RegionMessage, frozen=True):
    """Stop now."""


# ---- from clients and administrators; every request is answered by Reply or Failure with its number


class Open(RegionMessage, frozen=True):
    request: int
    name: str
    size: int  # of a region to create; 0 opens an existing one


class Close(RegionMessage, frozen=True):
    request: int
    name: str


class WriteRegion(RegionMessage, frozen=True):
    """Writes (offset, bytes) and moves inside the region (to, (from, length)), applied together in this order."""

    request: int
    name: str
    epoch: int
    steps: list[tuple[int, bytes | tuple[int, int]]]


class ReadRegion(RegionMessage, frozen=True):
    request: int
    name: str
    epoch: int
    offset: int
    length: int


class Regions(RegionMessage, frozen=True):
    """The regions whose name begins with `prefix`, as RegionRow."""

    request: int
    prefix: str


class Daemons(RegionMessage, frozen=True):
    """All daemons of rs_daemons.cfg in its order, as DaemonRow or, when down, None."""

    request: int


class Stores(RegionMessage, frozen=True):
    """All stores that are open, as StoreRow."""

    request: int


class Remove(RegionMessage, frozen=True):
    request: int
    name: str
    force: bool


class Shutdown(RegionMessage, frozen=True):
    request: int
    indexes: list[int]
    force: bool


class BreakOff(RegionMessage, frozen=True):
    """The safe shutdown of these daemons."""

    request: int
    indexes: list[int]


class Ping(RegionMessage, frozen=True):
    """A client's heartbeat, with the bytes taken of each of its regions and the counts of its store, where they have
    changed."""

    used: list[tuple[str, int]] = []
    counts: StoreRow | None = None


class Reply(RegionMessage, frozen=True):
    request: int
    value: Any = None


class Failure(RegionMessage, frozen=True):
    """`error` is the name of a class of store.errors, `arguments` are its constructor's."""

    request: int
    error: str
    arguments: list[Any]


class DaemonRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One daemon in the answer to Daemons."""

    used_bytes: int
    limit_bytes: int
    draining: bool
    started_us: int
    now_us: int
    regions_closed: int
    regions_open_primary: int
    regions_open_replica: int
    resilvers: int
    waits_for: str = ""


class RegionRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One region in the answer to Regions. `primary` and `secondary` are daemon numbers; `opener` is "" when closed. If the
    region's entry cannot be read, `primary` is -1 and `opener` the reason."""

    name: str
    size_bytes: int
    status: str
    epoch: int
    primary: int
    secondary: int | None
    opener: str
    created_us: int
    used_bytes: int


class Revoked(RegionMessage, frozen=True, tag="Lost"):
    """To a client: this region is no longer open for it."""

    name: str
    reason: str


AnyMessage = (
    RegionHello
    | DaemonHeartbeat
    | Begin
    | Adopt
    | Replicate
    | Ack
    | Refused
    | MoveRequest
    | Notice
    | Usage
    | Counted
    | RemoveRequest
    | Unserved
    | Drain
    | Stay
    | Halt
    | Open
    | Close
    | WriteRegion
    | ReadRegion
    | Regions
    | Daemons
    | Stores
    | Remove
    | Shutdown
    | BreakOff
    | Ping
    | Reply
    | Failure
    | Revoked
)


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyMessage)


def encode(number: int, message: RegionMessage) -> bytes:
    return frame(number, _encoder.encode(message))


def message_reader(max_frame_bytes: int = MAX_FRAME_BYTES, first: int = 0) -> FrameReader[RegionMessage]:
    return FrameReader(_decoder.decode, max_frame_bytes, first)
