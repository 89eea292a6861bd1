"""An engine that serves other machines: both sides prove the secret, with TLS around it (R17)."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_jms.store import Put, open_store
from spark_jms.store.engine import connections
from spark_jms.store.engine.backend import EngineBackend, EngineFinder
from spark_jms.store.engine.connections import Address, ClientConnections, LinkLostError, TcpLink
from spark_jms.store.engine.server import Server
from spark_jms.store.errors import SecurityConfigError, StoreUriError
from spark_jms.store.jdbc.database import Database
from spark_jms.store.jdbc.engine import read_published
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.jdbc.tables import make_tables
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.net.frames import NONCE_BYTES, PROOF_BYTES, Handshake
from spark_jms.store.net.sockets import client_context, first_certificate, server_context
from spark_jms.store.replicated.store import RegionEngineFinder, parse_replicated
from spark_jms.store.testing import MemoryPersistence, SharedMemory
from spark_jms.testing.domain import wait_until
from tests.harness.services.certificates import certificate

HOSTS = ("127.0.0.2", "::1")


@contextlib.contextmanager
def engine(host: str = "127.0.0.2", chain: tuple[Path, Path] | None = None) -> Iterator[tuple[Server, Address]]:
    tls = server_context(*chain) if chain else None
    server = Server(MemoryPersistence(SharedMemory()), session_timeout_ms=5_000, host=host, tls=tls)
    shown = first_certificate(chain[0]) if chain else ""
    yield server, Address(host, server.address[1], server.secret, server.incarnation, shown)
    server.close()


class There(EngineFinder):
    def __init__(self, address: Address) -> None:
        self._address = address

    def find(self, failed: Address | None = None) -> Address:
        return self._address

    def close(self) -> None:
        pass

    abandon = close


def link(address: Address) -> TcpLink:
    return TcpLink(address, "client", 5.0, 5.0)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("encrypted", [False, True])
def test_clients_of_another_host_share_an_engine(tmp_path: Path, host: str, encrypted: bool) -> None:
    """R15, R17: at another address, with and without TLS; values larger than one TLS record."""
    with engine(host, certificate(tmp_path) if encrypted else None) as (server, address):
        stores = [
            LedgerStore(EngineBackend(There(address), session_timeout_ms=5_000, limit_ms=10_000)) for _ in range(3)
        ]
        handles = [store.connect().open(f"r{number}") for number, store in enumerate(stores)]
        threads = [threading.Thread(target=h.commit, args=([Put("k", b"v" * 3_000_000)],)) for h in handles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert all(stores[0].peek(f"r{number}") == {"k": b"v" * 3_000_000} for number in range(3))
        for store in stores:
            store.close()
        wait_until(lambda: server.statistics().client_count == 0)


def test_a_client_refuses_any_other_certificate(tmp_path: Path) -> None:
    """R17: a client takes only the certificate that the engine published, and the engine refuses clients without TLS."""
    mine, other = certificate(tmp_path), certificate(tmp_path, "other-")
    with engine(chain=mine) as (_, address):
        link(address).close()
        with pytest.raises(LinkLostError, match="certificate verify failed"):
            link(replace(address, certificate=first_certificate(other[0])))
        with pytest.raises(LinkLostError):
            link(replace(address, certificate=""))
    with engine() as (_, address), pytest.raises(LinkLostError):  # nor does a TLS client talk to an engine without TLS
        link(replace(address, certificate=first_certificate(mine[0])))


@pytest.mark.parametrize("encrypted", [False, True])
def test_an_engine_refuses_wrong_secrets(tmp_path: Path, encrypted: bool) -> None:
    """R17: with and without TLS."""
    with engine(chain=certificate(tmp_path) if encrypted else None) as (server, address):
        for wrong in (replace(address, secret=b"guess"), replace(address, incarnation="another")):
            with pytest.raises(LinkLostError):
                link(wrong)
        assert server.statistics().client_count == 0


def test_an_engine_that_does_not_know_the_secret() -> None:
    """R17: both sides prove it. One who listens at the engine's address, or sends a client's own proof back, is refused."""

    def talk(listener: socket.socket, answer: Callable[[bytes], bytes]) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(Handshake.listener(connections.ENGINE, b"another", b"i", bytes(NONCE_BYTES)).begin())
            connection.sendall(b"K" + answer(connection.recv(4096)))
            while connection.recv(4096):
                pass

    for answer in (lambda claim: b"?" * PROOF_BYTES, lambda claim: claim[-PROOF_BYTES:]):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=talk, args=(listener, answer))
            thread.start()
            with pytest.raises(LinkLostError, match="does not know the secret"):
                link(Address("127.0.0.1", listener.getsockname()[1], b"secret", "i"))
            thread.join(10)


def test_unauthenticated_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """R17: a greeting is short, and the engine cuts off the oldest unauthenticated connection, however slowly its thread ends."""
    monkeypatch.setattr(connections, "MAX_GREETING", 3)
    authenticate, all_seen = ClientConnections._authenticate, threading.Event()

    def leaves_late(server: ClientConnections, *how: Any) -> str:
        try:
            return authenticate(server, *how)
        finally:
            all_seen.wait(10)

    with engine() as (_, address), contextlib.ExitStack() as stack:
        where = (address.host, address.port)
        long = stack.enter_context(socket.create_connection(where, 10))
        assert long.recv(4096).startswith(connections.ENGINE.magic)
        long.sendall((1 << 20).to_bytes(4, "little") + bytes(4))
        assert long.recv(1) == b""
        monkeypatch.setattr(ClientConnections, "_authenticate", leaves_late)
        silent = [stack.enter_context(socket.create_connection(where, 10)) for _ in range(5)]
        for connection in silent[:2]:
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):  # a challenge, unless its thread had not begun
                    pass
        all_seen.set()
        link(address).close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_link_closed_under_a_question_keeps_its_descriptor_until_the_question_returns(
    tmp_path: Path, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17: TLS reads by the number of the descriptor, which the next opened file would reuse."""
    asked, closed, numbers = threading.Event(), threading.Event(), []
    monkeypatch.setattr(Server, "answer", lambda *_: (asked.set(), closed.wait(30))[1])

    with engine(chain=certificate(tmp_path) if encrypted else None) as (_, address):
        asking = link(address)
        receive = asking._channel.receive

        def received() -> connections.Any_:
            try:
                return receive()
            finally:
                numbers.append(asking._socket.fileno())

        monkeypatch.setattr(asking._channel, "receive", received)
        errors: list[LinkLostError] = []

        def ask() -> None:
            try:
                asking.ask(connections.Beat(()))
            except LinkLostError as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(10)
        asking.close()
        assert len(numbers) == 1  # close waited for the question
        assert numbers[0] >= 0
        asking.close()
        closed.set()
        thread.join(10)
        assert len(errors) == 1


def test_the_first_certificate_of_a_chain_is_published(tmp_path: Path) -> None:
    """R17: clients trust that one alone."""
    leaf, other = certificate(tmp_path), certificate(tmp_path, "other-")
    chain = tmp_path / "chain.pem"
    chain.write_text(leaf[1].read_text() + leaf[0].read_text() + other[0].read_text())
    assert first_certificate(chain) == leaf[0].read_text()
    context = client_context(first_certificate(chain))
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """R17."""
    cert, key = certificate(tmp_path)
    key.chmod(0o640)
    with pytest.raises(SecurityConfigError, match="mode 0640"):
        server_context(cert, key)
    key.chmod(0o600)
    with pytest.raises(SecurityConfigError):
        server_context(key, cert)


def test_a_database_engine_beyond_loopback_needs_a_certificate(tmp_path: Path) -> None:
    """S3, R17: without one it is refused; with one it listens at the named address only, inside TLS."""
    cert, key = certificate(tmp_path)
    encrypted = f"engine_certificate={cert}&engine_key={key}"
    uri = f"jdbc:sqlite:///{tmp_path}/s.db"
    for outside in ("192.0.2.1", "2001:db8::1", "mq.example"):
        with pytest.raises(
            SecurityConfigError, match=f"engine_host={outside} is not loopback, and there is no engine_cert"
        ):
            open_store(f"{uri}?engine_host={outside}")
    for everywhere in ("0.0.0.0", "::", ""):
        with pytest.raises(StoreUriError, match="engine_host"):
            open_store(f"{uri}?engine_host={everywhere}&{encrypted}")
    assert not (tmp_path / "s.db").exists()
    with open_store(f"{uri}?engine_host=127.0.0.2&{encrypted}") as store:
        store.connect().open("r").commit([Put("k", b"v")])
        settings = parse_jdbc(uri)
        connection = Database(settings).connect()
        try:
            published = read_published(connection, make_tables(settings))
        finally:
            connection.close()
        assert published is not None
        assert published.certificate == first_certificate(cert)
        link(published.address).close()
        with pytest.raises(LinkLostError):
            link(replace(published.address, certificate=""))
        with pytest.raises(LinkLostError):
            link(replace(published.address, host="127.0.0.1"))
        client = LedgerStore(EngineBackend(There(published.address), session_timeout_ms=5_000, limit_ms=10_000))
        assert client.peek("r") == {"k": b"v"}
        client.close()


def test_an_engine_beyond_loopback_needs_a_certificate(tmp_path: Path) -> None:
    """R17: loopback by default; another address is said, one that others can reach, and has a certificate. `daemon` is the
    address of this machine's daemon."""

    def finder(options: str) -> RegionEngineFinder:
        return RegionEngineFinder(parse_replicated(f"replicated://{tmp_path}?{options}"), session_timeout_ms=5_000)

    cert, key = certificate(tmp_path)
    encrypted = f"engine_certificate={cert}&engine_key={key}"
    (tmp_path / "rs_daemons.cfg").write_text("127.0.0.1 4545 1 64M\nlocalhost 4546 2 64M")
    assert finder("").serving.host == finder("engine_host=daemon").serving.host == "127.0.0.1"
    assert finder("engine_host=daemon&localindex=1").serving.host == "localhost"
    for outside in ("192.0.2.1", "2001:db8::1", "mq.example"):
        with pytest.raises(SecurityConfigError, match="engine_certificate"):
            finder(f"engine_host={outside}")
        assert finder(f"engine_host={outside}&{encrypted}").serving.host == outside
    for everywhere in ("0.0.0.0", "::", ""):
        with pytest.raises(StoreUriError, match="engine_host"):
            finder(f"engine_host={everywhere}&{encrypted}")
    with pytest.raises(StoreUriError, match="engine_port is .65536., but must be a whole number of 0 to 65,535, in"):
        finder("engine_port=65536")
    key.chmod(0o644)
    with pytest.raises(SecurityConfigError, match="mode 0644"):
        finder(encrypted)
