"""`jmsq pause` and `jmsq resume`: stop and restart what a destination does.

Features: C14, T14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_jms.cli.settings import CommandSettings, command, destination_argument

if TYPE_CHECKING:
    from spark_jms.admin.pause import Paused

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _pause_options(function: _Function) -> _Function:
    for name, what in (
        ("consumption", "The claims of consumers."),
        ("insertion", "Messages becoming available: from sends under way, transfers, and delays that end."),
        ("production", "New sends."),
    ):
        function = click.option(f"--{name}", is_flag=True, help=what)(function)
    return click.option(
        "--member", "members", type=click.IntRange(0), multiple=True, help="Only this member. Repeatable."
    )(destination_argument(function))


@command("pause", short_help="Stop production, insertion or consumption of a destination.")
@_pause_options
def pause(
    settings: CommandSettings,
    destination: str,
    members: tuple[int, ...],
    production: bool,
    insertion: bool,
    consumption: bool,
) -> None:
    """Stop production, insertion or consumption of a destination or of some members; all three by default.

    Production: new sends fail with ProductionPausedError, unless they can go to other members. Insertion: senders that
    are under way wait, transfers stay open, and a message whose delay ends stays invisible. Consumption: consumers and
    queries keep running and receive nothing; they can acknowledge the messages they have, and browsing works. `jmsq
    apply` changes no pause.
    """
    with settings.administrator() as admin:
        _report(
            settings,
            admin.pause(destination, *_operations(production, insertion, consumption), members=members or None),
        )


@command("resume", short_help="Resume what `jmsq pause` has stopped.")
@_pause_options
def resume(
    settings: CommandSettings,
    destination: str,
    members: tuple[int, ...],
    production: bool,
    insertion: bool,
    consumption: bool,
) -> None:
    """Restart production, insertion or consumption; all three by default.

    Without --member it resumes the destination and all its members. A member stays paused while the destination is.
    """
    with settings.administrator() as admin:
        _report(
            settings,
            admin.resume(destination, *_operations(production, insertion, consumption), members=members or None),
        )


def _operations(*chosen: bool) -> list[str]:
    """In the order of OPERATIONS; none chosen means all."""
    from spark_jms.core.pause import OPERATIONS

    return [name for name, wanted in zip(OPERATIONS, chosen, strict=True) if wanted or not any(chosen)]


def _report(settings: CommandSettings, paused: Paused) -> None:
    if settings.as_json:
        settings.out.document(
            {"destination": paused.destination, "changed": paused.changed, "paused": list(paused.pauses)}
        )
        return
    rows = [(row.operation, "all" if row.member is None else row.member, row.since) for row in paused.pauses]
    settings.out.table("", ("paused", "member", "since"), rows, f"nothing of {paused.destination} is paused")
