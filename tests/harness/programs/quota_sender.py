"""A sender to a destination with a quota, to be killed.

    python quota_sender.py ROOT DESTINATION NAME FILE [HOLD]

It appends `try NAME:n` to FILE before it sends that text, and `sent NAME:n` after it, until FILE.stop appears. Once it has had
HOLD reservations it keeps the last one and sleeps; FILE.holding tells. The ledger keeps all entries, and the times after which
other senders take the place of a dead one are short.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from spark_jms import connect
from spark_jms.core.limits import quota as core_quota
from spark_jms.core.limits.quota import Grant
from spark_jms.log.limits import quota as log_quota
from spark_jms.log.limits import quota_ledger

quota_ledger.KEPT = 10**9
core_quota.WAITING_S, core_quota.RENEW_S, core_quota.RESERVED_S = 3.0, 0.5, 2.0


def hold_after(count: int, path: Path) -> None:
    reserve = log_quota.Quotas.reserve
    had = 0

    def holding(self: log_quota.Quotas, *arguments: Any, **named: Any) -> Grant | None:
        nonlocal had
        grant, had = reserve(self, *arguments, **named), had + 1
        if had == count:
            path.with_suffix(".holding").touch()
            time.sleep(600)
        return grant

    log_quota.Quotas.reserve = holding  # type: ignore[method-assign]


def main(root: str, destination: str, name: str, file: str, hold: str = "0") -> None:
    path = Path(file)
    hold_after(int(hold), path)
    with connect(root, housekeeping=False) as context, open(path, "a", buffering=1, encoding="utf-8") as out:
        producer = context.producer(destination, send_timeout="60s")
        n = 0
        while not path.with_suffix(".stop").exists():
            out.write(f"try {name}:{n}\n")
            producer.send(text=f"{name}:{n}")
            out.write(f"sent {name}:{n}\n")
            n += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
