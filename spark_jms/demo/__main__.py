"""python -m spark_jms.demo: run the story, print the account; exit code 1 if anything was lost, doubled or out of order."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from spark_jms.demo import flights
from spark_jms.demo.errors import DemoError
from spark_jms.demo.processes import end_descendants
from spark_jms.demo.report import show
from spark_jms.demo.screen import Screen
from spark_jms.demo.story import DemoResult, Story
from spark_jms.setup.session import LOCAL_MASTER
from spark_jms.setup.step import output_to

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    given = _arguments(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
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
            outcome = _play(work, given, screen)
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


def _play(work: Path, given: argparse.Namespace, screen: Screen) -> DemoResult:
    """The story and its account. No process that it has started is left, however it ends."""
    story = None
    started = time.monotonic()
    try:
        with screen:
            story = Story(work, given.rows, screen, given.master)
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the clean-up
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
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


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


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


if __name__ == "__main__":
    sys.exit(main())
