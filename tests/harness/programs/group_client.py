"""A process of another user, of a group, that uses a store: it prints `done` once a record set has its value, else the error.

python -m tests.harness.programs.group_client UID GID URI RECORD
"""

from __future__ import annotations

import os
import sys

from spark_jms.store import Put, StoreError, open_store
from spark_jms.store.processes import this_host
from spark_jms.store.regions.directory.global_directory import machine_addresses
from spark_jms.store.replicated import store as replicated


def main() -> None:
    uid, gid, uri, record = sys.argv[1:]
    assert (
        replicated.DAEMON
    )  # imported, and what is imported late as well: another user may not read Python's own files
    assert machine_addresses()
    assert this_host().encode("ascii")
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
    assert os.geteuid() == int(uid)
    try:
        with open_store(uri) as store, store.connect("group") as session:
            session.open(record).commit([Put("k", b"of the group")])
        print("done")
    except (StoreError, OSError) as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
