"""What an engine publishes about itself: where it serves, and which process it is.

Each engine writes host, port, certificate and a secret into a non-persistent row, which every user with read access to the
database can read. Clients prove that they know the secret, and accept only that certificate. `engine_host` is the address at
which it listens and that others connect to; the default serves only this host.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass

import sqlalchemy as sa

from spark_jms.store.engine.link import Address
from spark_jms.store.engine.server import Server
from spark_jms.store.engine.serving_address import ServingAddress
from spark_jms.store.engine.session_process import process_gone, start_of, this_host
from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.jdbc.database import DatabaseConnection
from spark_jms.store.jdbc.rows import ENGINE, row_of
from spark_jms.store.jdbc.tables import Tables

PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Published:
    """`process` identifies the process, also after its process id was reused; see store/engine/session_process.py."""

    incarnation: str
    host: str
    port: int
    secret: str
    hostname: str
    process: str
    since_ms: int
    certificate: str = ""

    @staticmethod
    def of(server: Server, serving: ServingAddress) -> Published:
        pid = os.getpid()
        return Published(
            incarnation=server.incarnation,
            host=serving.host,
            port=server.address[1],
            secret=server.secret.hex(),
            hostname=socket.gethostname(),
            process=f"0.{this_host()}.{pid}.{start_of(pid) or '-'}",
            since_ms=int(time.time() * 1000),
            certificate=serving.certificate,
        )

    @property
    def address(self) -> Address:
        return Address(self.host, self.port, bytes.fromhex(self.secret), self.incarnation, self.certificate)

    @property
    def pid(self) -> int:
        return int(self.process.split(".")[2])

    def shown(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since_ms / 1000))
        return f"incarnation {self.incarnation}, process {self.pid} of {self.hostname}, since {since} UTC"

    def answers(self) -> bool:
        """Its process is not known to be dead, and a socket listens at its address. A hung process listens as well."""
        if process_gone(self.process):
            return False
        try:
            socket.create_connection((self.host, self.port), PROBE_TIMEOUT_S).close()
        except OSError:
            return False
        return True

    def encode(self) -> bytes:
        return json.dumps(vars(self)).encode()

    @staticmethod
    def decode(data: bytes) -> Published:
        try:
            return Published(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise StoreCorruptError("the row of the engine", 0, str(error)) from error


def read_published(connection: DatabaseConnection, tables: Tables) -> Published | None:
    """None when no engine published itself, or when its row is damaged: then only the lock tells whether one lives."""
    for table in tables.objects[tables.persistent_count :]:
        for row in connection.rows(sa.select(*table.c).where(table.c.class_id == ENGINE)):
            found = row_of(row)
            if found.checksum == row.checksum:
                return Published.decode(found.data)
    return None
