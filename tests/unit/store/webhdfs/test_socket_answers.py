"""What the kernel's answer about a socket says of its owner (R17)."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from spark_jms.store.webhdfs import callers
from spark_jms.store.webhdfs.callers import owner_in_answer

CLIENT, DOOR = 40_000, 9_870
OVERFLOW = int(Path("/proc/sys/kernel/overflowuid").read_text())
ESTABLISHED, SYN_SENT, SYN_RECEIVED, FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE, CLOSE_WAIT, LAST_ACK, LISTEN = range(1, 11)


def answer(state: int = ESTABLISHED, uid: int = 7, inode: int = 9, ports: tuple[int, int] = (CLIENT, DOOR)) -> bytes:
    """A netlink header, then inet_diag_msg of <linux/inet_diag.h>."""
    body = struct.pack("=BBBB", 2, state, 0, 0) + struct.pack("!HH", *ports) + bytes(44)
    body += struct.pack("=IIIII", 0, 0, 0, uid, inode)
    return struct.pack("=IHHII", 16 + len(body), 20, 0, 1, 0) + body


def error(number: int) -> bytes:
    return struct.pack("=IHHII", 36, 2, 0, 1, 0) + struct.pack("=i", -number) + bytes(16)


@pytest.mark.parametrize("state", range(1, 13))
def test_only_a_client_that_is_connected_has_an_owner(state: int) -> None:
    """R17: also after it has closed its sending side. A socket that connects from a port used before is not the connection."""
    expected = 7 if state in (ESTABLISHED, FIN_WAIT1, FIN_WAIT2) else None
    assert owner_in_answer(answer(state), CLIENT, DOOR) == expected


def test_socket_without_inode_has_no_owner() -> None:
    """R17: the kernel shows the sockets of closed connections as those of user 0."""
    assert owner_in_answer(answer(uid=0), CLIENT, DOOR) == 0
    assert owner_in_answer(answer(FIN_WAIT2, uid=0, inode=0), CLIENT, DOOR) is None


@pytest.mark.parametrize("ports", [(CLIENT, 0), (CLIENT, DOOR + 1), (CLIENT + 1, DOOR), (DOOR, CLIENT)])
def test_another_socket_has_another_owner(ports: tuple[int, int]) -> None:
    """R17: the kernel may answer with a listener of the port."""
    assert owner_in_answer(answer(ports=ports), CLIENT, DOOR) is None


def test_user_without_a_name_in_this_namespace_is_unknown() -> None:
    """R17: all users that a user namespace does not know have one id there."""
    assert owner_in_answer(answer(uid=OVERFLOW), CLIENT, DOOR) is None
    assert owner_in_answer(answer(uid=OVERFLOW - 1), CLIENT, DOOR) == OVERFLOW - 1


def test_errors_of_the_kernel_are_no_owner() -> None:
    """R17: no such socket is None; all else is an OSError."""
    assert owner_in_answer(error(errno.ENOENT), CLIENT, DOOR) is None
    with pytest.raises(OSError, match="Operation not permitted") as raised:
        owner_in_answer(error(errno.EPERM), CLIENT, DOOR)
    assert raised.value.errno == errno.EPERM


def test_systems_without_netlink_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """R17"""
    monkeypatch.delattr(callers.socket, "AF_NETLINK")
    with pytest.raises(OSError, match="only Linux"):
        callers.owner_of_socket(("127.0.0.1", CLIENT), ("127.0.0.1", DOOR))
