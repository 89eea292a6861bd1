"""Which user of this machine sent a request: the owner of the other end of its connection, as the Linux kernel knows it.

The kernel is asked by the addresses of both ends (sock_diag, as `ss` does), so a client that uses a port of an earlier
connection is another client. Theory: the door looks while its own end is open.

    the client's socket      established, or its sending side is closed     its owner is the user who opened it
                             closed                                         has no owner; the kernel shows user 0 with inode 0
                             opens the same port again (SYN sent)           is not this connection

So only a socket with an inode, in a state of the first row, names a user; without these two checks, a client that closes at once
would pass for root. A user id that has no name in the door's user namespace appears as the overflow id, which
names no user.

One look-up serves a connection. A door that forwards is a client of this user like any other, and names the user that it admitted.

Features: R17 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import socket
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spark_jms.store.webhdfs.errors import ForeignCallerError, RetriableError, UnknownCallerError

SOCK_DIAG_BY_FAMILY, NLMSG_ERROR, NLM_F_REQUEST, NETLINK_SOCK_DIAG = 20, 2, 1, 4
TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2 = 1, 4, 5
OWNED_STATES = (TCP_ESTABLISHED, TCP_FIN_WAIT1, TCP_FIN_WAIT2)
ALL_STATES = 0xFFFFFFFF
NO_COOKIE = 0xFFFFFFFF
ANSWER_BYTES = 8192
_MESSAGE = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBBI")  # inet_diag_req_v2: family, protocol, extensions, padding, states; then the socket
_PORTS, _INTERFACE = (
    struct.Struct("!HH"),
    struct.Struct("=III"),
)  # inet_diag_sockid: ports, 2 addresses, interface and cookie
_STATE, _OWNER = struct.Struct("=BBBB"), struct.Struct("=II")  # inet_diag_msg: … state …, ports at 4, … user id, inode
_PORTS_AT, _OWNER_AT = 4, 4 + 48 + 12
BUSY = (errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ADVICE = "give the door a token file: --tokens, or RS_DOOR_TOKENS of a daemon"

# (address, port, ...), as a socket's getpeername and getsockname give it
SocketName = tuple[str, int] | tuple[str, int, int, int]
FindOwner = Callable[[SocketName, SocketName], int | None]


@dataclass(frozen=True)
class UserOfProcess:
    uid: int
    name: str

    @classmethod
    def current(cls) -> UserOfProcess:
        uid = os.geteuid()
        try:
            return cls(uid, pwd.getpwuid(uid).pw_name)
        except KeyError:  # a container may run under an id without a name
            return cls(uid, f"uid{uid}")


class CallerCheck:
    """Admits the connections of this process's own user."""

    def __init__(self, user: UserOfProcess, find_owner: FindOwner) -> None:
        self.user = user
        self.lookups = 0
        self._find_owner = find_owner
        self._admitted: weakref.WeakSet[asyncio.Task[object]] = weakref.WeakSet()

    def admit(self, connection: asyncio.Task[object], transport: asyncio.Transport | None) -> None:
        """`connection`: the task that serves it. ForeignCallerError, UnknownCallerError; RetriableError when the kernel is
        short of something."""
        if connection in self._admitted:
            return
        if transport is None:
            raise UnknownCallerError("The client closed the connection before the door could see whose it is")
        client, door = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.lookups += 1
        try:
            owner = self._find_owner(client, door)
        except OSError as error:
            if error.errno in BUSY:
                raise RetriableError(f"The door cannot ask the kernel now whose connection this is: {error}") from error
            raise UnknownCallerError(
                f"The kernel does not tell whose connection this is ({error}): {ADVICE}"
            ) from error
        if owner is None:
            raise UnknownCallerError(
                f"The kernel shows no owner of the connection from {client[0]} port {client[1]}. It was closed already, comes "
                f"from a user or network namespace that the door does not see, or the kernel has no tcp_diag: then {ADVICE}"
            )
        if owner != self.user.uid:
            raise ForeignCallerError(
                f"The door admits only its own user, {self.user.name} (uid {self.user.uid}), and the connection is of uid "
                f"{owner}. Run the program as {self.user.name}, or {ADVICE}"
            )
        self._admitted.add(connection)


def owner_of_socket(local: SocketName, remote: SocketName) -> int | None:
    """The user id of the socket with these two ends; None when there is none, or none with an owner. OSError when the kernel
    does not answer."""
    if not hasattr(socket, "AF_NETLINK"):
        raise OSError(errno.EAFNOSUPPORT, "only Linux tells")
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    addresses = b"".join(
        socket.inet_pton(family, name[0].partition("%")[0]).ljust(16, b"\0") for name in (local, remote)
    )
    asked = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, ALL_STATES) + _PORTS.pack(local[1], remote[1])
    asked += addresses + _INTERFACE.pack(0, NO_COOKIE, NO_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_SOCK_DIAG) as kernel:
        kernel.sendto(
            _MESSAGE.pack(_MESSAGE.size + len(asked), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0) + asked, (0, 0)
        )
        return owner_in_answer(kernel.recv(ANSWER_BYTES), local[1], remote[1])


def owner_in_answer(answer: bytes, local_port: int, remote_port: int) -> int | None:
    kind, body = _MESSAGE.unpack_from(answer)[1], memoryview(answer)[_MESSAGE.size :]
    if kind == NLMSG_ERROR:
        number = -struct.unpack_from("=i", body)[0]
        if number == errno.ENOENT:
            return None
        raise OSError(number, os.strerror(number))
    state = _STATE.unpack_from(body)[1]
    uid, inode = _OWNER.unpack_from(body, _OWNER_AT)
    # The kernel answers with a listener of the client's port when there is no such connection.
    is_this = _PORTS.unpack_from(body, _PORTS_AT) == (local_port, remote_port) and state in OWNED_STATES
    return uid if is_this and inode and uid != _overflow_uid() else None


@cache
def _overflow_uid() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except OSError:
        return 65534
