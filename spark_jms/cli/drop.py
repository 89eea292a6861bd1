"""`jmsq drop`: delete a destination with its messages and state.

Features: C14, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import (
    CommandSettings,
    announce,
    command,
    destination_argument,
    dry_run_option,
    wait_option,
)

if TYPE_CHECKING:
    from spark_jms.admin.drop import DropPlan


@command("drop", short_help="Delete a destination with its messages, subscriptions and positions.")
@destination_argument
@click.option("--force", is_flag=True, help="Drop it even with unfinished messages, or while consumers use it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@wait_option
def drop(settings: CommandSettings, destination: str, force: bool, yes: bool, dry_run: bool, wait_s: float) -> None:
    """Delete a destination with its messages, subscriptions, positions and acknowledgements.

    The command is refused while messages are unfinished or consumers are alive, unless you force it. Senders and
    consumers of a dropped destination get DestinationDroppedError. A destination that is created under this name later
    is another one: checkpoints of the dropped one cannot continue with it. A drop that was interrupted is finished by
    the next one.
    """
    with settings.administrator() as admin:
        plan = admin.drop(destination, force=force, dry_run=True)
        if dry_run:
            if settings.as_json:
                settings.out.document({**asdict(plan), "dry_run": True})
            else:
                settings.out.say(f"would drop {_what(plan)}")
            return
        if force or not (plan.unfinished or plan.consumers):  # else it is refused
            if not yes:
                click.confirm(f"Drop {_what(plan)}?", abort=True, err=True)
            else:
                announce(settings, f"dropping {_what(plan)}")
        plan = admin.drop(destination, force=force, wait=wait_s)
    if settings.as_json:
        settings.out.document(asdict(plan))
    else:
        settings.out.say(f"dropped {_what(plan)}")


def _what(plan: DropPlan) -> str:
    from spark_jms.cli.output import human_bytes

    if plan.begun:
        return f"the rest of {plan.destination}, whose drop was interrupted"
    parts = [f"{plan.stored_messages:,} stored message(s) in {human_bytes(plan.bytes)}, {plan.unfinished:,} unfinished"]
    parts += [f"subscription(s) {', '.join(plan.subscriptions)}"] * bool(plan.subscriptions)
    parts += [f"used by {', '.join(plan.consumers)}"] * bool(plan.consumers)
    return f"{plan.destination}: {'; '.join(parts)}"
