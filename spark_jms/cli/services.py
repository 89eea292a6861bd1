"""`jmsq services`, `housekeep`, `metrics` and `console`: processes that look after a domain, or show it.

Features: C13, C14, D5, M5, M8, T3, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from spark_jms.cli.command import (
    CommandSettings,
    command,
    destinations_argument,
    every_option,
    log_file_option,
    logs_to_file,
    names_or_all,
    served_at,
)

if TYPE_CHECKING:
    from spark_jms.admin.services import DomainServices, Round, ServiceReporter, ServiceRunner
    from spark_jms.log.destinations.domain import Domain
    from spark_jms.store import Store

STREAMED = ("expiration", "usage")  # what the engine `spark` runs as queries
SPARK, THREADS = "spark", "threads"
_NAMES = ("expiration", "housekeeping", "forwarding", "lag", "usage")


@command("services", short_help="Run expiration, housekeeping, forwarding, lag and the usage history in one process.")
@destinations_argument
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="Run only this service. Repeatable.")
@click.option("--once", is_flag=True, help="One round of each, then stop; exit code 1 if one failed.")
@click.option("--status", is_flag=True, help="Only show the state of the services of running processes.")
@click.option(
    "--engine",
    type=click.Choice((SPARK, THREADS)),
    help="Expiration and usage as streaming queries of Spark, or as threads without Java. Default: spark where Spark and "
    "Java are installed.",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="The checkpoint of the queries, for one process at a time. Default: a temporary one.",
)
@log_file_option
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
    the process at any moment, and run several, which share the work. A part of expiration, units of work, is
    housekeeping's; with --once housekeeping searches for all expired messages.
    """
    if status:
        _show_status(settings)
        return
    from spark_jms.admin.services import SERVICES, DomainServices, ServiceReporter, ServiceRunner
    from spark_jms.claims.upkeep.move import STORE_LIMIT_S

    with _until_sigterm(once=once) as ends, settings.opened(STORE_LIMIT_S) as (domain, store):
        names_or_all(domain, destinations)  # a wrong name ends the command now
        wanted, chosen = only or SERVICES, THREADS if once else engine or default_engine()
        queries = streamed(wanted, to_file=logs_to_file()) if chosen == SPARK else []
        work = DomainServices(domain, store, destinations, once=once, queries=queries)
        runner = ServiceRunner(work.loops(wanted), others=queries)
        try:
            if once:
                runner.run_once()
                _show(settings, work, runner)
                if any(status.failing_since for status in runner.status()):
                    raise click.exceptions.Exit(1)
                return
            said = f"streaming queries of Spark ({', '.join(queries)}) and " if queries else ""
            click.echo(f"jmsq: the services run as {said}threads of this process", err=True)
            with ExitStack() as stack:
                look = (
                    _queries(stack, domain, store, runner, destinations, queries, checkpoint) if queries else _nothing
                )
                _run(settings, work, runner, ServiceReporter(domain, chosen, every_s), look, every_s, ends)
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
    from spark_jms.setup.machine import SetupError, find_java

    try:
        find_java()
    except SetupError:
        return THREADS
    return SPARK


def streamed(wanted: Collection[str], *, to_file: bool) -> list[str]:
    """The services that run as queries of Spark, whose tasks are processes of their own: expired messages reach the log file of this
    process only from a thread."""
    return [name for name in STREAMED if name in wanted and not (to_file and name == "expiration")]


def _nothing() -> None:
    pass


def _queries(
    stack: ExitStack,
    domain: Domain,
    store: Store,
    runner: ServiceRunner,
    destinations: Sequence[str],
    wanted: Sequence[str],
    checkpoint: str | None,
) -> Callable[[], None]:
    """What starts them, and starts those that have ended again. The stack ends them."""
    from spark_jms.settings.table import needs

    with needs("spark"):
        from spark_jms.jobs.services import DomainQueries, ServiceQueries, check_operators, service_session

    check_operators()
    spark = stack.enter_context(service_session())
    place = checkpoint or stack.enter_context(TemporaryDirectory(prefix="jmsq-services-"))
    queries = ServiceQueries(DomainQueries(spark, domain, store, runner, destinations).made(wanted), place)
    stack.callback(queries.stop)
    return queries.start


def _run(
    settings: CommandSettings,
    work: DomainServices,
    runner: ServiceRunner,
    reporter: ServiceReporter,
    look: Callable[[], None],
    every_s: float,
    ends: threading.Event,
) -> None:
    """Until `ends`. A report that cannot be written is tried again, and a reader of the output that is slow holds up no service: the
    services depend on neither."""
    try:
        if not ends.is_set():
            look()
            runner.start()
        with _looking(look, every_s, ends) as check:
            shown, unwritten = None, ""
            while not ends.wait(every_s):
                check()
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


@contextmanager
def _looking(look: Callable[[], None], every_s: float, ends: threading.Event) -> Iterator[Callable[[], None]]:
    """A thread looks at the queries until `ends`, which the end of the block sets. Gives what raises the error of a look."""

    def look_on() -> None:
        while not ends.wait(every_s):
            look()

    with ThreadPoolExecutor(1, "jmsq-queries") as pool:
        looks = pool.submit(look_on)
        try:
            yield lambda: looks.result() if looks.done() else None
        finally:
            ends.set()
    looks.result()


def _show_status(settings: CommandSettings) -> None:
    from spark_jms.admin.services import service_reports

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


# -- housekeep ---------------------------------------------------------------------------------------------------------


@command("housekeep", short_help="Expire, purge, compact, checkpoint and clean up.")
@destinations_argument
@click.option("--once", is_flag=True, help="One round, with clean-up, then stop.")
@log_file_option
@every_option("5s", 0.1)
def housekeep(settings: CommandSettings, destinations: tuple[str, ...], once: bool, every_s: float) -> None:
    """Search for expired messages, purge finished ones, compact small files, write Delta checkpoints and clean up, until
    interrupted.

    Running jobs also do this; the command is for domains without jobs. One process at a time does it for a destination;
    this command waits while another process does. With --once, the exit code is 1 when a step failed.
    """
    from spark_jms.admin.services import Rounds

    with settings.opened() as (domain, store):
        rounds = Rounds(domain, store, clean_up=once)
        try:
            while True:
                done = rounds.run(names_or_all(domain, destinations))
                if settings.as_json:
                    (settings.out.document if once else settings.out.record)(done)
                elif once or any(d.busy is False and d.did_something for d in done):
                    columns = (
                        "destination",
                        "expired messages",
                        "purged messages",
                        "purged files",
                        "compacted files",
                        "checkpoints",
                        "deleted files",
                        "",
                    )
                    settings.out.table("", columns, [_row(d) for d in done], "there are no destinations")
                if once:
                    if any(d.failures for d in done):
                        raise click.exceptions.Exit(1)
                    return
                time.sleep(every_s)
        finally:
            rounds.close()


def _row(done: Round) -> tuple[object, ...]:
    if done.busy:
        result = f"another process does it{done.holder and f': {done.holder}'}"
    else:
        result = "; ".join(f"{failure.what} failed: {failure.error}" for failure in done.failures) or "done"
    return (
        done.destination,
        done.expired_messages,
        done.purged_messages,
        done.purged_files,
        done.compacted_files,
        done.checkpoints,
        done.deleted_files,
        result,
    )


# -- metrics -----------------------------------------------------------------------------------------------------------


@command("metrics", short_help="Serve the domain's figures to Prometheus.")
@served_at(8851)
@click.option("--once", is_flag=True, help="Print the figures instead, as a scrape has them.")
@every_option("10s", 0.1)
def metrics(
    settings: CommandSettings, host: str, port: int, token_file: Path | None, once: bool, every_s: float
) -> None:
    """Serve what `jmsq stat`, `jmsq claims`, `jmsq quota list`, `jmsq server list`, `jmsq services --status` and `jmsq transactions`
    show as metrics, in the text format of Prometheus, until SIGTERM or Ctrl-C.

    Scrapes read the domain at most once in `--every`. A destination that cannot be read and a server that does not answer are
    metrics of their own, 0 while that lasts; the other figures stay.
    """
    from spark_jms.admin.domain_sample import take
    from spark_jms.admin.servers import LOOK_S
    from spark_jms.settings.table import needs

    with needs("metrics"):
        from prometheus_client import CollectorRegistry, generate_latest

        from spark_jms.metrics import WAIT_S, DomainCollector, MetricsServer

    from spark_jms.admin.domain_sample import read_token

    token = read_token(token_file) if token_file else None
    with settings.opened(LOOK_S) as (domain, store):
        registry = CollectorRegistry()
        sampled = partial(take, domain, store)
        registry.register(DomainCollector(sampled, every_s, None if once else WAIT_S))
        if once:
            _print(settings, registry, generate_latest)
            return
        server = MetricsServer(registry, host, port, token)
        before = signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.stop).start())
        try:
            click.echo(f"the metrics are at {server.address}")
            server.serve()
        finally:
            signal.signal(signal.SIGTERM, before)
            server.close()


def _print(settings: CommandSettings, registry: Any, text: Any) -> None:
    if not settings.as_json:
        settings.out.say(text(registry).decode().rstrip("\n"))
        return
    settings.out.document(
        [
            {"name": sample.name, "labels": sample.labels, "value": sample.value}
            for family in registry.collect()
            for sample in family.samples
        ]
    )


# -- console -----------------------------------------------------------------------------------------------------------


@command("console", short_help="Serve a read-only web page about the domain.")
@served_at(8850)
def console(settings: CommandSettings, host: str, port: int, token_file: Path | None) -> None:
    """Serve a read-only page with destinations, backlog and rates over time, subscriptions, claims, servers, and the daemons
    and regions of a replicated store. Ctrl-C ends it."""
    import asyncio

    from spark_jms.settings.table import needs

    with needs("console"):
        from spark_jms.admin.domain_sample import take
        from spark_jms.console.server import serve

    from spark_jms.admin.domain_sample import read_token

    token = read_token(token_file) if token_file else None
    with settings.opened() as (domain, store):
        asyncio.run(serve(partial(take, domain, store), host, port, token, _announce))


def _announce(address: str) -> None:
    click.echo(f"the console is at {address}")
