"""python -m tests.models.regions --seeds 100 --first 1 [--trace]"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.models.regions.world import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.models.regions", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=None, help="the first seed; by default a different one each time")
    parser.add_argument("--trace", action="store_true", help="print every event")
    options = parser.parse_args()
    first = options.first if options.first is not None else time.time_ns() // 1000 % 1_000_000_000
    failures, acks, lost, faults = 0, 0, 0, Counter[str]()
    began = time.perf_counter()
    for seed in range(first, first + options.seeds):
        try:
            outcome = run(seed, trace=options.trace)
        except Exception as error:  # noqa: BLE001 - any error belongs to its seed, and the next seed still runs
            failures += 1
            print(
                f"seed {seed}: {type(error).__name__}: {error}\n  replay: {parser.prog} --seeds 1 --first {seed} --trace"
            )
        else:
            acks, lost = acks + outcome.acks, lost + outcome.lost
            faults += outcome.faults
    took_s = time.perf_counter() - began
    print(
        f"{options.seeds} seeds from {first}: {failures} failures, {acks} acknowledged writes, {lost} regions lost as "
        f"expected, {sum(faults.values())} faults, {took_s:.1f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
