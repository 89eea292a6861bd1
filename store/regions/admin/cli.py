"""storeadmin: without a command it starts a session; with one it runs it and returns its exit code. And `top`, its view.

    storeadmin
    storeadmin lsd -dir /shared/rs_global_dir -format list

Exit codes: 0 done, 1 the command failed, 2 it was no command. `top` shows the daemons and regions of a cluster and refreshes
itself; it imports rich only when it is shown.

Features: R6 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jms.store.errors import DaemonUnavailableError
from spark_jms.store.regions.admin.api import Admin, Attach, default_attach
from spark_jms.store.regions.admin.commands import Arguments, help_on
from spark_jms.store.regions.admin.formats import MIB, time_text, up_time_text
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo
from spark_jms.store.regions.admin.session import FAILED, OK, AdminSession, Surroundings, interact, now_us, run_lines
from spark_jms.store.regions.daemon.options import HELP
from spark_jms.store.regions.directory.global_directory import CONFIG

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


DIRECTORY_VARIABLE, USUAL_DIRECTORY = "RS_DIRECTORY", "replicated-store"

USAGE = """\
Usage: storeadmin                      a session; rshelp in it lists the commands
       storeadmin command [options]    one command, with -dir and -localindex for where to attach

"""
MAX_REGIONS = 40  # on the screen: those in trouble first, then the fullest
YELLOW, RED = 80, 90
STATUS_STYLE = {"OPEN": "green", "CLOSED": "", "RESILVERING": "yellow", "SINGLE": "yellow"}  # anything else is red


def main(argv: Sequence[str] | None = None, attach: Attach = default_attach) -> int:
    """`argv` does not contain the program's name; by default it is taken from sys.argv."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in HELP:
        sys.stdout.write(USAGE + help_on(""))
        return OK
    one_shot = bool(words)
    err = sys.stderr if one_shot else sys.stdout  # a session's output is one conversation
    directory = usual_directory(os.environ, Path.cwd())
    around = Surroundings(sys.stdout, err, lambda: time.time_ns() // 1000, None, watch, directory)
    admin = Admin(attach=attach)
    try:
        session = AdminSession(admin, around)
        if one_shot:
            code = session.run(words, one_shot=True)
        elif sys.stdin.isatty():
            code = interact(session, Path.home())
        else:
            code = run_lines(session, sys.stdin, sys.stdout, err)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `storeadmin lsr | head`: what is left of the output goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    finally:
        _close(admin)


def usual_directory(environment: Mapping[str, str], here: Path) -> str:
    """The Global Directory where no -dir is given: RS_DIRECTORY; else "."; else, when only that one has an rs_daemons.cfg,
    the directory that `jmsq store up` creates."""
    if DIRECTORY_VARIABLE in environment:
        return environment[DIRECTORY_VARIABLE]
    if not (here / CONFIG).exists() and (here / USUAL_DIRECTORY / CONFIG).exists():
        return USUAL_DIRECTORY
    return "."


# -- top ---------------------------------------------------------------------------------------------------------------


def watch(
    admin: Admin, arguments: Arguments, around: Surroundings, wait: Callable[[float], object] | None = None
) -> None:
    """Refreshes until Control-C. Prints once with -once, or when the output is not a terminal. A StoreError ends it."""
    import time

    from rich.console import Console
    from rich.live import Live

    def look() -> Group:
        daemons = admin.daemons()
        return render(daemons, admin.regions(), now_us(admin, daemons, around), around.zone)

    terminal = around.out.isatty()
    console = Console(file=around.out, width=None if terminal else 160)
    if arguments.once or not terminal:
        console.print(look())
        return
    try:
        with Live(look(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                (wait or time.sleep)(arguments.refresh_seconds)
                live.update(look(), refresh=True)
    except KeyboardInterrupt:
        return


def render(daemons: Sequence[DaemonInfo], regions: Sequence[RegionInfo], now: int, zone: tzinfo | None) -> Group:
    """One screen."""
    from rich.console import Group
    from rich.markup import escape
    from rich.text import Text

    up = sum(daemon.up for daemon in daemons)
    title = Text(f"{time_text(now, zone)}   daemons {up} of {len(daemons)} up   regions {len(regions)}", style="bold")
    first = _table("Idx", "Address", "State", "Memory", "Up", "MB", "Closed", "Prima", "Rplca", "Resilvers", left=4)
    for daemon in daemons:
        place = f"{escape(daemon.address)}:{daemon.port}"
        if not daemon.up:
            first.add_row(f"{daemon.index:03d}", place, "[red]DOWN[/]", *["-"] * 7)
            continue
        first.add_row(
            f"{daemon.index:03d}",
            place,
            "[yellow]DRAINING[/]" if daemon.draining else "[green]UP[/]",
            _use(daemon.memory_used_bytes, daemon.memory_limit_bytes),
            up_time_text(daemon.now_us - daemon.started_us),
            f"{daemon.memory_used_bytes // MIB} of {daemon.memory_limit_bytes // MIB}",
            str(daemon.regions_closed),
            str(daemon.regions_open_primary),
            str(daemon.regions_open_replica),
            str(daemon.resilvers_in_progress),
        )
    second = _table("Region", "Status", "Opened by", "Use", "MB", "Prima", "Rplca", "Epoch", left=4)
    for region in worst_first(regions)[:MAX_REGIONS]:
        style = STATUS_STYLE.get(region.status, "red")
        second.add_row(
            escape(region.name),
            Text(region.status, style=style),
            escape(region.opener or "-"),
            _use(region.used_bytes, region.size_bytes),
            str(region.size_bytes // MIB),
            "-" if region.primary is None else f"{region.primary:03d}",
            "-" if region.secondary is None else f"{region.secondary:03d}",
            str(region.epoch),
        )
    more = len(regions) - MAX_REGIONS
    return Group(title, first, second, *([Text(f"and {more} more")] if more > 0 else []))


def worst_first(regions: Sequence[RegionInfo]) -> list[RegionInfo]:
    """LOST and UNAVAILABLE first, then SINGLE and RESILVERING, then the others; each by used bytes."""
    ranks = {"OPEN": 2, "CLOSED": 2, "SINGLE": 1, "RESILVERING": 1}
    return sorted(regions, key=lambda region: (ranks.get(region.status, 0), -region.used_bytes, region.name))


def _use(used: int, total: int) -> str:
    percent = used * 100 / total if total else 0.0
    style = "red" if percent > RED else "yellow" if percent > YELLOW else "green"
    filled = min(10, round(percent / 10))
    return f"[{style}]{'█' * filled}{'░' * (10 - filled)} {percent:6.2f} %[/]"


def _table(*headers: str, left: int) -> Table:
    """The first `left` columns are text, the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number < left else "right", no_wrap=True)
    return table


def _close(admin: Admin) -> None:
    try:
        admin.close()
    except DaemonUnavailableError:
        return  # gone is closed
