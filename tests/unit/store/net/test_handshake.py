"""The handshake and frames as bytes, without a socket (R2, R16, R17)."""

from __future__ import annotations

import socket

import pytest

from spark_jms.store.errors import AuthenticationError, ClusterMismatchError, ProtocolError
from spark_jms.store.net.frames import NONCE_BYTES, PROOF_BYTES, FrameReader, Handshake, Service, frame
from spark_jms.store.net.sockets import Channel

SERVICE = Service(b"JMSQXX", 2, "service", "configuration")
OLDER = Service(b"JMSQXX", 1, "service", "configuration")
OTHER = Service(b"JMSQYY", 2, "other", "configuration")
SECRET, IDENTITY = b"secret", b"identity"


def listener(service: Service = SERVICE, secret: bytes = SECRET, identity: bytes = IDENTITY) -> Handshake:
    return Handshake.listener(service, secret, identity, b"l" * NONCE_BYTES)


def connector(service: Service = SERVICE, secret: bytes = SECRET, identity: bytes = IDENTITY) -> Handshake:
    return Handshake.connector(service, secret, identity, b"c" * NONCE_BYTES, "here:1")


def shake(one: Handshake, two: Handshake, cut: int = 1 << 20) -> None:
    """Carries the bytes between both, in pieces, until neither has more to send."""
    on_the_way = [(two, one.begin()), (one, two.begin())]
    while on_the_way:
        to, data = on_the_way.pop(0)
        back = one if to is two else two
        for at in range(0, len(data), cut):
            on_the_way.append((back, to.receive(data[at : at + cut])))


@pytest.mark.parametrize("cut", [1, 7, 1 << 20])
def test_both_sides_prove_the_secret_whatever_the_cut(cut: int) -> None:
    """R17."""
    there, here = listener(), connector()
    shake(there, here, cut)
    assert (there.proved, here.proved) == (True, True)
    assert (there.failure, here.failure) == (None, None)


def test_bytes_after_the_handshake_are_kept() -> None:
    """R17: the listener may send its first frames together with its proof."""
    there, here = listener(), connector()
    here.receive(there.receive(here.receive(there.begin())) + b"frames")
    assert here.rest == b"frames"
    assert there.rest == b""


@pytest.mark.parametrize(
    ("two", "error", "who_tells"),
    [
        (connector(secret=b"guess"), AuthenticationError, "here:1 refused the proof"),
        (connector(identity=b"another"), ClusterMismatchError, "here:1 has another configuration"),
        (connector(identity=b"another", secret=b"guess"), ClusterMismatchError, "here:1 has another configuration"),
        (connector(OLDER), ProtocolError, "here:1 speaks version 2 of this protocol, not 1"),
        (connector(OTHER), ProtocolError, "here:1 does not speak this protocol"),
    ],
)
def test_each_refusal_has_its_name(two: Handshake, error: type[Exception], who_tells: str) -> None:
    """R2, R16, R17: a wrong secret, another configuration and another version are told apart; a configuration comes first."""
    one = listener()
    shake(one, two)
    assert isinstance(two.failure, error)
    assert who_tells in str(two.failure)
    assert not one.proved
    assert not two.proved
    assert (one.failure is None) is (error is ProtocolError)  # then the connector is the one that hangs up


def test_a_listener_refuses_an_older_connector_by_its_version() -> None:
    """R16."""
    one = listener()
    one.receive(OLDER.magic)
    assert isinstance(one.failure, ProtocolError)
    assert "a connector speaks version 1 of this protocol, not 2" in str(one.failure)


def test_a_proof_is_of_no_use_elsewhere() -> None:
    """R17: not replayed to another nonce, not sent back to its maker, not at another service."""
    claim = connector().receive(listener().begin())
    assert listener().receive(claim)[:1] == b"K"
    for one, said in (
        (Handshake.listener(SERVICE, SECRET, IDENTITY, b"n" * NONCE_BYTES), claim),
        (listener(OTHER), OTHER.magic + claim[len(SERVICE.magic) :]),
    ):
        assert one.receive(said) == b"A"
        assert isinstance(one.failure, AuthenticationError)
    fooled = connector()
    claim = fooled.receive(listener().begin())
    fooled.receive(b"K" + claim[-PROOF_BYTES:])
    assert isinstance(fooled.failure, AuthenticationError)


def test_a_refused_handshake_keeps_nothing() -> None:
    """R17: what a stranger sends after its refusal is dropped."""
    one = listener()
    for _ in range(3):
        assert one.receive(b"x" * 100_000) == b""
    assert not one._buffer
    assert one.rest == b""


def test_a_channel_refuses_a_frame_above_its_limit() -> None:
    """R17: by the length that its head announces."""
    here, there = socket.socketpair()
    with here, there:
        here.sendall(frame(0, b"x" * 1_001)[:16])
        with pytest.raises(ProtocolError, match="at most 1000"):
            Channel(there, bytes, bytes, 1_000).receive()
        with pytest.raises(ProtocolError, match="at most 1000"):
            Channel(here, bytes, bytes, 1_000).send(b"x" * 1_001)
    with pytest.raises(ProtocolError):
        FrameReader(bytes).feed(b"\xff" * 16)
