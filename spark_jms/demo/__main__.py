"""python -m spark_jms.demo: run the story, print the account; exit code 1 if anything was lost, doubled or out of order."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from spark_jms.demo import flights
from spark_jms.demo.account import DemoResult, DepthSample, QueueAccount
from spark_jms.demo.flights import DemoError
from spark_jms.demo.interrupts import Interrupts
from spark_jms.demo.processes import end_descendants
from spark_jms.demo.story import Screen, Story, sparkline
from spark_jms.setup.session import LOCAL_MASTER
from spark_jms.setup.step import output_to

INTERRUPTED = 130
_WIDTH = 72


def main(arguments: list[str] | None = None) -> int:
    given = _arguments(arguments)
    interrupts = Interrupts()
    interrupts.take()
    if given.keep is not None:
        work = given.keep.absolute()
        if work.exists() and any(work.iterdir()):
            print(f"{given.keep} is not empty: name a new directory", file=sys.stderr)
            return 2
    else:
        work = Path(tempfile.mkdtemp(prefix="jmsq-demo-"))
    (work / "logs").mkdir(parents=True, exist_ok=True)
    screen = Screen(given.plain)
    failed = True
    try:
        with output_to(work / "logs" / "demo.log", (2,)):  # Spark's own lines, up to the end of its processes
            outcome = _play(work, given, screen, interrupts)
        if given.keep is not None:
            _write(outcome, work / "account.json")
        failed = bool(outcome.problems)
        return int(failed)
    except DemoError as error:
        print(f"\nThe demo could not continue: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        failed = False
        return INTERRUPTED
    finally:
        if given.keep is not None:
            print(
                f"\nKept: {given.keep} (domain/ is the root for `jmsq stat --root`, received/ the Delta tables, logs/)"
            )
        else:
            _remove(work, but={"logs"} if failed else set())
            if failed:
                print(f"\nWhat its applications logged: {work / 'logs'}", file=sys.stderr)


def _play(work: Path, given: argparse.Namespace, screen: Screen, interrupts: Interrupts) -> DemoResult:
    """The story and its account. No process that it has started is left, however it ends."""
    story = None
    started = time.monotonic()
    try:
        with screen, interrupts.told():
            story = Story(work, given.rows, screen, given.master, interrupts)
            outcome = story.run()
        show(screen, outcome, time.monotonic() - started)
        return outcome
    except KeyboardInterrupt:
        screen.console.print("\nInterrupted; cleaning up.")
        raise
    except DemoError:
        raise
    except Exception as error:
        with (work / "logs" / "demo.log").open("a") as log:  # while Spark is there, which words its errors
            traceback.print_exc(file=log)
        raise DemoError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error
    finally:
        interrupts.ignore()  # a second Ctrl-C must not interrupt the clean-up
        if story is not None:
            story.close()
        end_descendants()


def _remove(work: Path, but: set[str]) -> None:
    for entry in work.iterdir():
        if entry.name not in but:
            shutil.rmtree(entry, ignore_errors=True)
    if not but:
        shutil.rmtree(work, ignore_errors=True)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jms.demo",
        description="A year of flights through a queue and a topic, with a kill in the middle and a computed account.",
    )
    parser.add_argument("--rows", type=_rows, metavar="N", help=f"only the first N flights (all: {flights.ROWS:,})")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work there and leave everything, with account.json")
    parser.add_argument(
        "--master",
        default=LOCAL_MASTER,
        metavar="URL",
        help=f"where Spark runs, such as spark://host:7077 (default {LOCAL_MASTER}); docs/SCALING.md",
    )
    parser.add_argument(
        "--plain", action="store_true", help="lines instead of moving bars (so it is without a terminal)"
    )
    return parser.parse_args(arguments)


def _rows(text: str) -> int:
    rows = int(text)
    if not 2000 <= rows <= flights.ROWS:
        raise argparse.ArgumentTypeError(f"must be 2,000 to {flights.ROWS:,}: with fewer the run ends before the kill")
    return rows


def _write(outcome: DemoResult, path: Path) -> None:
    values = {
        "queue": asdict(outcome.queue),
        "subscriptions": [asdict(s) for s in outcome.subscriptions],
        "speeds": [asdict(s) for s in outcome.speeds],
        "marks": outcome.marks,
        "depth": [[round(s.second, 2), s.sent, s.backlog] for s in outcome.samples],
        "in_doubt": outcome.in_doubt,
        "taken_over": outcome.taken_over,
        "application_s": outcome.application_s,
        "start_up_s": outcome.start_up_s,
        "problems": outcome.problems,
    }
    path.write_text(json.dumps(values, indent=1))


# -- the account, printed ----------------------------------------------------------------------------------------------


def show(screen: Screen, outcome: DemoResult, seconds: float) -> None:
    screen.table("The queue `flights`", ("", "", "computed"), _queue_rows(outcome))
    names = list(outcome.queue.received)
    screen.table(
        "Messages by member and receiver",
        ("member", *names, "together"),
        [(member, *by.values(), sum(by.values())) for member, by in outcome.queue.by_member.items()],
    )
    screen.table(
        "The topic `delays`",
        ("subscription", "selector", "expected", "received", "lost", "duplicated"),
        [(s.name, s.selector or "none", s.expected, s.received, s.lost, s.duplicated) for s in outcome.subscriptions],
    )
    screen.table(
        "Start-up and speed (two Spark applications on this machine)",
        ("stage", "messages", "seconds", "of them start-up", "a second, after it"),
        [
            (
                s.stage,
                s.rows,
                round(s.seconds, 1),
                round(s.start_up_s, 1),
                s.per_second,
            )
            for s in outcome.speeds
        ],
    )
    screen.console.print(
        f"Before the first stage Spark started for {outcome.application_s:.0f} s. The application of `a` took "
        f"{outcome.start_up_s:.0f} s to start again\nafter the kill, which is in that stage's seconds. A stage's start-up lasts "
        "until its first micro-batch is done: Spark plans\nand compiles the query and starts Python. What the queue can do: "
        "docs/BENCHMARKS.md.",
        markup=False,
        soft_wrap=True,
    )
    for line in lag(outcome.samples, outcome.marks):
        screen.console.print(line, markup=False)
    screen.console.print()
    if outcome.problems:
        screen.console.print(f"Promises broken after {seconds:.0f} s: {'; '.join(outcome.problems)}", style="bold red")
    else:
        screen.console.print(f"Nothing lost, nothing twice, order kept. {seconds:.0f} s in all.", style="bold green")


def _queue_rows(outcome: DemoResult) -> list[tuple[str, object, str]]:
    q: QueueAccount = outcome.queue
    rows: list[tuple[str, object, str]] = [("sent", q.sent, "last sequence numbers of the members, from the Delta log")]
    rows += [
        (f"received by {name}", count, f"rows of its Delta table, in {q.commits[name]} commits")
        for name, count in q.received.items()
    ]
    return [
        *rows,
        ("lost", q.lost, "sequences 1 to last of each member, and flights of the feed, in neither table"),
        ("duplicated", q.duplicated, "sequences, and flights, that are there more than once"),
        ("altered", q.altered, "20 columns of every flight compared with the feed"),
        ("in hand at the kill", outcome.in_doubt, "open claims of `a`, kept for it until it was back"),
        ("taken over", outcome.taken_over, "what `b` received while the application of `a` started again"),
        ("redelivered", q.redelivered, f"flagged JMSRedelivered (most deliveries of one message: {q.most_deliveries})"),
        (
            "order kept",
            f"{q.in_order:,} of {q.aircraft:,}",
            "aircraft whose legs arrived as 1, 2, 3 … by commit time of the outputs, then place in file",
        ),
        ("  of them by both", q.by_several, "aircraft whose flights went partly to `a`, partly to `b`"),
        (
            "in two hands",
            q.in_two_hands,
            f"aircraft in open claims of both at once; {q.samples} samples, "
            f"{q.samples_shared} with a member in both hands",
        ),
        ("without aircraft", q.without_unit, "flights with no tail number: no unit of order, dealt out round robin"),
    ]


def lag(samples: list[DepthSample], marks: list[tuple[float, str]]) -> list[str]:
    """Waiting messages over time, with the events below."""
    if not samples:
        return []
    values, end = [sample.backlog for sample in samples], samples[-1].second
    last_change = next((i for i in range(len(values) - 1, 0, -1) if values[i]), 0)
    values, end = values[: last_change + 2], samples[min(last_change + 1, len(samples) - 1)].second
    line = sparkline(values, _WIDTH)
    below = [" "] * (len(line) + 24)
    free = 0
    for second, what in marks:
        at = max(min(int(second / end * len(line)), len(line) - 1), free)
        label = f"^{what}"
        below[at : at + len(label)] = label
        free = at + len(label) + 1
    return [
        "",
        f"Waiting over time (0 to {end:.0f} s, highest {max(values):,})",
        f"  {line}",
        f"  {''.join(below).rstrip()}",
    ]


if __name__ == "__main__":
    sys.exit(main())
