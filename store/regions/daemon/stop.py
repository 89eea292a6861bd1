"""Stops one daemon:

python -m spark_jms.store.regions.daemon.stop -dir PATH [-localindex N] [-force | -safe | -cancel]

Features: R3, R4 (docs/FEATURES.md)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spark_jms.store.errors import StoreError
from spark_jms.store.regions.admin.client import DaemonAdmin
from spark_jms.store.regions.admin.port import waiting_text
from spark_jms.store.regions.admin.selection import lost_with
from spark_jms.store.regions.daemon.options import STOP_TABLE, help_text, parse_stop


def main(words: Sequence[str] | None = None) -> int:
    program = "python -m spark_jms.store.regions.daemon.stop"
    try:
        options = parse_stop(sys.argv[1:] if words is None else words, program)
        if options.help:
            print(help_text(program, STOP_TABLE), end="")
            return 0
        admin = DaemonAdmin(options.directory, options.localindex)
        try:
            index = admin.local_index
            if options.cancel:
                admin.break_off([index])
                print(f"daemon {index} stays")
                return 0
            lost = lost_with(admin.regions(), admin.daemons(), [index]) if options.force else []
            admin.shutdown([index], options.force, _waits)
        finally:
            admin.close()
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"daemon {index} stopped")
    for name in lost:
        print(f"region {name} is lost: no other daemon had a copy", file=sys.stderr)
    return 0


def _waits(index: int, reason: str) -> None:
    print(waiting_text(index, reason), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
