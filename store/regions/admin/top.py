"""`top`: a view of the daemons and regions of a cluster that refreshes itself. Imports rich only when it is shown.

Features: R6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING

from spark_jms.store.regions.admin.api import Admin
from spark_jms.store.regions.admin.commands import Arguments
from spark_jms.store.regions.admin.formats import MIB, time_text, up_time_text
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo
from spark_jms.store.regions.admin.session import Surroundings, now_us

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

MAX_REGIONS = 40  # on the screen: those in trouble first, then the fullest
YELLOW, RED = 80, 90
STATUS_STYLE = {"OPEN": "green", "CLOSED": "", "RESILVERING": "yellow", "SINGLE": "yellow"}  # anything else is red


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
