"""`jmsq services`: expiration, housekeeping, forwarding, lag and the usage history in one process.

Features: C13, C14, D5, T3, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import CommandSettings, command, destinations_argument, every_option, names_or_all

if TYPE_CHECKING:
    from spark_jms.admin.service_reports import ServiceReporter
    from spark_jms.admin.services import DomainServices, ServiceLoop, ServiceRunner

SPARK, THREADS = "spark", "threads"
_RUNS_AS = {SPARK: "streaming queries of Spark", THREADS: "threads of this process, without Spark"}
_NAMES = ("expiration", "housekeeping", "forwarding", "lag", "usage")


@command("services", short_help="Run expiration, housekeeping, forwarding, lag and the usage history in one process.")
@destinations_argument
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="Run only this service. Repeatable.")
@click.option("--once", is_flag=True, help="One round of each, then stop; exit code 1 if one failed.")
@click.option("--status", is_flag=True, help="Only show the state of the services of running processes.")
@click.option(
    "--engine",
    type=click.Choice((SPARK, THREADS)),
    help="Streaming queries of Spark, or threads without Java. Default: spark where Spark and Java are installed.",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="The checkpoint of the queries, for one process at a time. Default: a temporary one.",
)
@every_option("10s", 0.1)
def services(
    settings: CommandSettings,
    destinations: tuple[str, ...],
    only: tuple[str, ...],
    once: bool,
    status: bool,
    engine: str | None,
    checkpoint: str | None,
    every_s: float,
) -> None:
    """Run the services of all destinations, or of those named, until SIGTERM or Ctrl-C, and show their results, last
    errors and the lag whenever these change; with --json in every round.

    Each service has its own query or thread: one that fails does not block the others, and is tried again. You may kill
    the process at any moment, and run several, which share the work. Housekeeping searches for expired messages, so
    these two share one query.
    """
    if status:
        _show_status(settings)
        return
    from spark_jms.admin.forward import STORE_LIMIT_S
    from spark_jms.admin.service_reports import ServiceReporter
    from spark_jms.admin.services import SERVICES, DomainServices, ServiceRunner

    with _until_sigterm(once=once) as ends, settings.opened(STORE_LIMIT_S) as (domain, store):
        names_or_all(domain, destinations)  # a wrong name ends the command now
        work = DomainServices(domain, store, destinations, once=once)
        loops = work.loops(only or SERVICES)
        runner = ServiceRunner(loops)
        try:
            if once:
                runner.run_once()
                _show(settings, work, runner)
                if any(status.failing_since for status in runner.status()):
                    raise click.exceptions.Exit(1)
                return
            chosen = engine or default_engine()
            click.echo(f"jmsq: the services run as {_RUNS_AS[chosen]}", err=True)
            with ExitStack() as stack:
                if chosen == SPARK:
                    begin, look = _queries(stack, runner, loops, checkpoint)
                else:
                    begin, look = runner.start, lambda: None
                _run(settings, work, runner, ServiceReporter(domain, chosen, every_s), begin, look, every_s, ends)
        finally:
            late = runner.stop()
            if late:
                click.echo(f"jmsq: still busy, and ended with this process: {', '.join(late)}", err=True)
            work.close()


@contextmanager
def _until_sigterm(*, once: bool) -> Iterator[threading.Event]:
    """It is set by SIGTERM, from the first second on: Spark, which takes some to start, is then ended as after hours. `once`: never,
    because the signal ends the process."""
    ends = threading.Event()
    if once:
        yield ends
        return
    before = signal.signal(signal.SIGTERM, lambda *_: ends.set())
    try:
        yield ends
    finally:
        signal.signal(signal.SIGTERM, before)


def default_engine() -> str:
    """Where the command leaves it open."""
    from importlib.util import find_spec

    if find_spec("pyspark") is None:
        return THREADS
    from spark_jms.setup.errors import SetupError
    from spark_jms.setup.java import find_java

    try:
        find_java()
    except SetupError:
        return THREADS
    return SPARK


def _queries(
    stack: ExitStack, runner: ServiceRunner, loops: Sequence[ServiceLoop], checkpoint: str | None
) -> tuple[Callable[[], None], Callable[[], None]]:
    """How they begin, and what to do now and then. The stack ends them."""
    from spark_jms.jobs.service_queries import ServiceQueries, ServiceQuery, service_session

    spark = stack.enter_context(service_session())
    place = checkpoint or stack.enter_context(TemporaryDirectory(prefix="jmsq-services-"))
    queries = ServiceQueries(
        spark,
        [
            ServiceQuery(loop.services[0], loop.every_s, partial(runner.tick, loop), partial(runner.failed, loop))
            for loop in loops
        ],
        place,
    )
    stack.callback(queries.stop)
    return queries.start, queries.start


def _run(
    settings: CommandSettings,
    work: DomainServices,
    runner: ServiceRunner,
    reporter: ServiceReporter,
    begin: Callable[[], None],
    look: Callable[[], None],
    every_s: float,
    ends: threading.Event,
) -> None:
    """Until `ends`. A report that cannot be written is tried again: the services do not depend on it."""
    try:
        if not ends.is_set():
            begin()
        shown, unwritten = None, ""
        while not ends.wait(every_s):
            look()
            failed, unwritten = unwritten, reporter.report(runner.status(), work.lag)
            if unwritten and not failed:
                click.echo(f"jmsq: {unwritten}", err=True)
            now = [(s.service, s.state, s.done, s.error) for s in runner.status()], work.lag
            if settings.as_json or now != shown:
                _show(settings, work, runner)
            shown = now
        runner.stop()
        _show(settings, work, runner)
    finally:
        reporter.end()


def _show_status(settings: CommandSettings) -> None:
    from spark_jms.admin.service_reports import service_reports

    found = service_reports(settings.domain())
    if settings.as_json:
        settings.out.document([asdict(report) for report in found])
        return
    columns = ("process", "engine", "service", "state", "rounds", "done", "last error", "at", "lag of the process")
    rows = [
        (
            report.process,
            report.engine,
            one["service"],
            "no sign of life" if report.silent else one["state"],
            one["rounds"],
            ", ".join(f"{name} {count:,}" for name, count in one["done"].items()),
            one["error"],
            one["error_at"],
            f"{sum(row['backlog'] for row in report.lag):,}",
        )
        for report in found
        for one in report.services
    ]
    settings.out.table("", columns, rows, "no process runs services of this domain")


def _show(settings: CommandSettings, work: DomainServices, runner: ServiceRunner) -> None:
    status = runner.status()
    if settings.as_json:
        rows = [{**vars(one), "state": one.state} for one in status]
        settings.out.record({"services": rows, "lag": list(work.lag)})
        return
    columns = ("service", "state", "rounds", "done", "last error", "at")
    settings.out.table(
        "Services",
        columns,
        [
            (
                one.service,
                one.state,
                one.rounds,
                ", ".join(f"{name} {count:,}" for name, count in one.done.items()),
                one.error,
                one.error_at,
            )
            for one in status
        ],
        "",
    )
    if work.lag:
        lags = [(row.destination, row.backlog, row.claimed, row.oldest) for row in work.lag]
        settings.out.table("Lag", ("destination", "backlog", "claimed", "oldest"), lags, "")
