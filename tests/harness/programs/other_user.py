"""A request to a door from another user of this machine, or from this one.

python -m tests.harness.programs.other_user UID HOST PORT CLIENT_PORT METHOD TARGET [HEADER VALUE]...    prints [status, body]
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys

import pytest

from tests.harness.processes import forked

OTHER_UID = 45_678


def asked_by_other_user(
    port: int,
    target: str = "/webhdfs/v1/?op=LISTSTATUS",
    *,
    uid: int = OTHER_UID,
    host: str = "127.0.0.1",
    client_port: int = 0,
    method: str = "GET",
    headers: dict[str, str] | None = None,
) -> tuple[int, str]:
    """The status and the body of the answer. Only root can become another user."""
    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    words = [str(uid), host, str(port), str(client_port), method, target]
    words += [word for header in (headers or {}).items() for word in header]
    command = [sys.executable, "-m", "tests.harness.programs.other_user", *words]
    done = forked.run(command, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    status, body = json.loads(done.stdout)
    return status, body


def main() -> None:
    uid, host, port, client_port, method, target, *rest = sys.argv[1:]
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    assert os.geteuid() == int(uid)
    connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    connection.settimeout(30)
    if int(client_port):
        connection.bind((host, int(client_port)))
    connection.connect((host, int(port)))
    client = http.client.HTTPConnection(host, int(port))
    client.sock = connection
    client.request(method, target, headers=dict(zip(rest[::2], rest[1::2], strict=True)))
    answer = client.getresponse()
    print(json.dumps([answer.status, answer.read().decode()]))
    client.close()


if __name__ == "__main__":
    main()
