"""Senders to a destination with a quota that is full, to be killed: one for each of SIZES, in a thread and a context of its own.

    python overload_sender.py ROOT DESTINATION FILE TIMEOUT HOLD SIZES...

Sender k appends to FILE.k `try N SIZE` before it sends batch N, `sent N SIZE` after it, and `late N SIZE ERROR` when its time-out
is over: then it sends the batch again. It ends when FILE.stop appears. Once it has had HOLD reservations (0: never) it keeps the
last one and sleeps; FILE.holding tells. The times after which other senders take the place of a dead one are short.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spark_jms import connect
from spark_jms.errors import QuotaExceededError
from spark_jms.log.limits import quota_ledger
from tests.harness.programs.quota_sender import hold_after  # which shortens the times

quota_ledger.KEPT = 1_000  # entries, until the test has copied them


def produce(root: str, destination: str, timeout: str, path: Path, size: int) -> None:
    stop = path.with_suffix(".stop")
    with connect(root, housekeeping=False) as context, open(path, "a", buffering=1, encoding="utf-8") as out:
        producer, n = context.producer(destination, send_timeout=timeout), 0
        while not stop.exists():
            out.write(f"try {n} {size}\n")
            try:
                producer.send_many([{"text": f"{path.name}:{n}:{i}"} for i in range(size)], chunk_messages=size)
            except QuotaExceededError as late:
                out.write(f"late {n} {size} {late}\n")
                continue
            out.write(f"sent {n} {size}\n")
            n += 1


def main(root: str, destination: str, file: str, timeout: str, hold: str, *sizes: str) -> None:
    hold_after(int(hold), Path(file))
    with ThreadPoolExecutor(len(sizes)) as threads:
        paths = [Path(f"{file}.{k}") for k in range(len(sizes))]
        running = [
            threads.submit(produce, root, destination, timeout, path, int(size))
            for path, size in zip(paths, sizes, strict=True)
        ]
        for one in running:
            one.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
