"""python -m tests.models.queue --seeds 100 --first 1 [--often crash,start] [--trace]"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter

from tests.models.queue.world import often_of, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.models.queue", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=None, help="the first seed; by default a different one each time")
    parser.add_argument("--often", metavar="ACTIONS", help="happen ten times as often; by default as each seed has it")
    parser.add_argument("--trace", action="store_true", help="print every step, and where an error was raised")
    options = parser.parse_args()
    logging.getLogger("spark_jms").setLevel(logging.INFO if options.trace else logging.ERROR)
    first = options.first if options.first is not None else time.time_ns() // 1000 % 1_000_000_000
    failures, errors, delivered = 0, Counter[str](), 0
    began_s = time.process_time()
    for seed in range(first, first + options.seeds):
        try:
            often = often_of(seed) if options.often is None else [name for name in options.often.split(",") if name]
            world = run(seed, print if options.trace else lambda line: None, often)
        except Exception as error:  # noqa: BLE001 - any error belongs to its seed, and the next seed still runs
            failures += 1
            if options.trace:
                traceback.print_exc()
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:500]}")
            print(f"  replay: {parser.prog} --seeds 1 --first {seed} --often {','.join(often)!r} --trace", flush=True)
        else:
            for consumer in world.crowd.consumers:
                errors += consumer.errors
                delivered += len(consumer.delivered)
    took_s = time.process_time() - began_s
    print(
        f"{options.seeds} seeds from {first}: {failures} failures, {delivered} messages delivered, {took_s:.1f} s of CPU"
    )
    print("consumers ended by " + ", ".join(f"{name} {count}" for name, count in sorted(errors.items())))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
