"""The messages of the region cluster on the wire: cut anywhere, damaged in every way (R17)."""

from __future__ import annotations

import random
import time
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store.errors import ProtocolError
from spark_jms.store.regions.protocol.messages import (
    Ack,
    Adopt,
    AnyMessage,
    Begin,
    DaemonHeartbeat,
    Failure,
    Open,
    Ping,
    ReadRegion,
    Refused,
    RegionHello,
    RegionMessage,
    Replicate,
    Reply,
    Shutdown,
    WriteRegion,
    encode,
    message_reader,
)

TEXT, NUMBER = st.text(max_size=20), st.integers(0, 2**63 - 1)
MESSAGES: st.SearchStrategy[AnyMessage] = st.one_of(
    st.builds(RegionHello, role=TEXT, index=NUMBER, incarnation=TEXT, client=TEXT),
    st.builds(Begin, stream=TEXT, name=TEXT, region_id=TEXT, epoch=NUMBER, size=NUMBER),
    st.builds(Adopt, stream=TEXT, name=TEXT, region_id=TEXT, epoch=NUMBER),
    st.builds(
        Replicate,
        stream=TEXT,
        name=TEXT,
        epoch=NUMBER,
        seq=NUMBER,
        writes=st.lists(st.tuples(NUMBER, st.binary(max_size=50)), max_size=4),
    ),
    st.builds(Ack, stream=TEXT, seq=NUMBER),
    st.builds(Refused, stream=TEXT, reason=TEXT),
    st.builds(Open, request=NUMBER, name=TEXT, size=NUMBER),
    st.builds(
        WriteRegion,
        request=NUMBER,
        name=TEXT,
        epoch=NUMBER,
        steps=st.lists(st.tuples(NUMBER, st.one_of(st.binary(max_size=50), st.tuples(NUMBER, NUMBER))), max_size=4),
    ),
    st.builds(ReadRegion, request=NUMBER, name=TEXT, epoch=NUMBER, offset=NUMBER, length=NUMBER),
    st.builds(Shutdown, request=NUMBER, indexes=st.lists(NUMBER, max_size=4), force=st.booleans()),
    st.builds(Ping, used=st.lists(st.tuples(TEXT, NUMBER), max_size=3)),
    st.builds(Reply, request=NUMBER, value=st.one_of(st.none(), st.binary(max_size=50), st.lists(NUMBER, max_size=4))),
    st.builds(Failure, request=NUMBER, error=TEXT, arguments=st.lists(st.one_of(TEXT, NUMBER), max_size=3)),
)
SAMPLE: list[RegionMessage] = [
    RegionHello("daemon", 1, "life1"),
    DaemonHeartbeat(1, 2, False, 3, 4, 5, 6, 7, 8, 9.5, -1.0),
    Replicate("0-a-1", "store.000", 3, 4, [(64, b"x" * 100), (0, b"")]),
    WriteRegion(1, "store.000", 3, [(64, b"y" * 40), (128, (64, 32))]),
    ReadRegion(2, "store.000", 3, 0, 64),
    Shutdown(3, [0, 1], False),
    Reply(4, [1, 2, 3]),
    Failure(5, "FencedError", ["region store.000"]),
]


@given(st.lists(MESSAGES, max_size=6), st.lists(st.integers(1, 40), max_size=40))
def test_messages_do_not_depend_on_how_the_bytes_are_cut(messages: list[RegionMessage], cuts: list[int]) -> None:
    """R17: in order, each once, as soon as its last byte has arrived."""
    stream = b"".join(encode(number, message) for number, message in enumerate(messages))
    reader, found, at = message_reader(), list[RegionMessage](), 0
    for cut in (*cuts, len(stream)):
        found += reader.feed(stream[at : at + cut])
        at += cut
    assert found == messages


@pytest.mark.parametrize("numbers", [(1,), (0, 0), (0, 2), (0, 1, 1)])
def test_lost_doubled_or_reordered_frame_ends_the_connection(numbers: tuple[int, ...]) -> None:
    """R17: the reader takes nothing after it."""
    reader = message_reader()
    *good, bad = numbers
    for number in good:
        assert reader.feed(encode(number, Ping())) == [Ping()]
    with pytest.raises(ProtocolError):
        reader.feed(encode(bad, Ping()))
    with pytest.raises(ProtocolError):
        reader.feed(encode(0, Ping()))


def test_frame_size_is_limited() -> None:
    """R17: the reader refuses an announced size before the bytes arrive."""
    with pytest.raises(ProtocolError, match="at most 1000"):
        message_reader(max_frame_bytes=1000).feed(encode(0, Reply(1, bytes(1001)))[:16])


def mutated(chance: random.Random) -> bytes:
    """Frames of the sample with flipped bits; with bytes removed, inserted or repeated; or with wrong bodies under a valid CRC."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        body = bytearray(encode(0, chance.choice(SAMPLE))[16:])
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        head = len(body).to_bytes(4, "little") + bytes(4)
        return head + zlib.crc32(head).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + bytes(body)
    data = bytearray(b"".join(encode(n, chance.choice(SAMPLE)) for n in range(chance.randint(1, 3))))
    at = chance.randrange(len(data))
    if kind == 2:
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 3:
        del data[at : at + chance.randint(1, 30)]
    elif kind == 4:
        data[at:at] = chance.randbytes(chance.randint(1, 30))
    else:
        data[at:at] = data[: chance.randint(1, len(data))]
    return bytes(data)


def feed_mutated(frames: int, seed: int) -> None:
    chance = random.Random(seed)
    refused = before = 0
    slowest_s = 0.0
    tracemalloc.start()
    for number in range(frames):
        data, reader, began = mutated(chance), message_reader(), time.perf_counter()
        cut = chance.randrange(len(data) + 1)
        try:
            reader.feed(data[:cut])
            reader.feed(data[cut:])
        except ProtocolError:
            refused += 1
        slowest_s = max(slowest_s, time.perf_counter() - began)
        if number == frames // 10:
            before, _ = tracemalloc.get_traced_memory()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert refused > frames / 2
    assert grown < 200_000, f"memory grew by {grown} bytes in {frames} frames"
    assert slowest_s < 5.0, f"a frame took {slowest_s} s"


def test_mutated_frames_raise_protocol_errors() -> None:
    """R17: 20,000 frames, with another seed each time: nothing but ProtocolError, no hang, no growth."""
    seed = time.time_ns()
    print(f"seed {seed}")
    feed_mutated(20_000, seed)


@pytest.mark.soak
def test_many_mutated_frames_raise_protocol_errors() -> None:
    """R17: 200,000 frames."""
    feed_mutated(200_000, 1)
