"""`jmsq services`: expiration, housekeeping, forwarding and lag in one process (T6, C13, C14, D5)."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import CommandSettings, command, destinations_argument, every_option, names_or_all

if TYPE_CHECKING:
    from spark_jms.admin.services import DomainServices, ServiceRunner

_NAMES = ("expiration", "housekeeping", "forwarding", "lag")


@command("services", short_help="Run expiration, housekeeping, forwarding and lag in one process.")
@destinations_argument
@click.option("--only", multiple=True, type=click.Choice(_NAMES), help="This service alone; may be repeated.")
@click.option("--once", is_flag=True, help="One round of each, then stop; exit code 1 if one failed.")
@every_option("10s", 0.1)
def services(
    settings: CommandSettings, destinations: tuple[str, ...], only: tuple[str, ...], once: bool, every_s: float
) -> None:
    """Run the services of all destinations, or of those named, until SIGTERM or Ctrl-C, and show what they have done, their last
    errors and the lag, whenever that has changed; with --json in every round.

    Each service has a loop of its own: one that fails holds up no other, and is tried again. It may be killed at any moment,
    and several processes may run: what one does, the others leave. Expired messages are searched by housekeeping, so these two
    are one loop.
    """
    from spark_jms.admin.forward import STORE_LIMIT_S
    from spark_jms.admin.services import SERVICES, DomainServices, ServiceRunner

    with settings.opened(STORE_LIMIT_S) as (domain, store):
        names_or_all(domain, destinations)  # a wrong name ends the command now
        work = DomainServices(domain, store, destinations, once=once)
        runner = ServiceRunner(work.loops(only or SERVICES))
        try:
            if once:
                runner.run_once()
                _show(settings, work, runner)
                if any(status.failing_since for status in runner.status()):
                    raise click.exceptions.Exit(1)
                return
            _run(settings, work, runner, every_s)
        finally:
            late = runner.stop()
            if late:
                click.echo(f"jmsq: still busy, and ended with this process: {', '.join(late)}", err=True)
            work.close()


def _run(settings: CommandSettings, work: DomainServices, runner: ServiceRunner, every_s: float) -> None:
    """Until SIGTERM."""
    ends = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: ends.set())
    try:
        runner.start()
        shown = None
        while not ends.wait(every_s):
            now = [(s.service, s.state, s.done, s.error) for s in runner.status()], work.lag
            if settings.as_json or now != shown:
                _show(settings, work, runner)
            shown = now
        runner.stop()
        _show(settings, work, runner)
    finally:
        signal.signal(signal.SIGTERM, before)


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


COMMANDS = (services,)
