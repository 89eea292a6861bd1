"""`jmsq move`: messages go to another destination or member, exactly once.

Features: C18 (docs/FEATURES.md)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import CommandSettings, announce, command, complete_destination, dry_run_option, wait_option

if TYPE_CHECKING:
    from spark_jms.core.address import DestinationAddress
    from spark_jms.log.domain import Domain


@command("move", short_help="Move messages to another destination or member.")
@click.argument("source", shell_complete=complete_destination)
@click.argument("target", shell_complete=complete_destination)
@click.option("--selector", help="Only messages that this selector takes.")
@click.option("--subscription", help="Of a topic: the subscription whose messages move.")
@click.option("--member", "members", type=click.IntRange(0), multiple=True, help="Only this member. Repeatable.")
@click.option("--to-member", type=click.IntRange(0), help="The member of the target that gets them all.")
@click.option("--limit", type=click.IntRange(1), help="At most so many messages.")
@dry_run_option
@wait_option
def move(
    settings: CommandSettings,
    source: str,
    target: str,
    selector: str | None,
    subscription: str | None,
    members: tuple[int, ...],
    to_member: int | None,
    limit: int | None,
    dry_run: bool,
    wait_s: float,
) -> None:
    """Move available messages of SOURCE to TARGET; a message keeps its id, headers, properties and body. Both may name the
    member on a server, as server@destination.

    Each message is in the end in exactly one of the two, also when this command, a consumer or the machine dies in between:
    whichever process opens the record next finishes the transfer. Claimed messages stay with their consumers, and messages
    that are sent meanwhile stay in SOURCE. Consumers of SOURCE continue to run.
    """
    from spark_jms.admin.move import MoveOrder, plan_move
    from spark_jms.admin.move import move as run_move
    from spark_jms.core.address import DestinationAddress
    from spark_jms.core.selector import Selector
    from spark_jms.core.subscription_place import kept_at

    origin, goal = DestinationAddress.parse(source), DestinationAddress.parse(target)
    where = f"{target}, member {to_member}" if to_member is not None else target
    with settings.opened() as (domain, store):
        declared = domain.log(origin.destination).refresh().destination
        request = MoveOrder(
            origin.destination,
            goal.destination,
            None if subscription is None else kept_at(declared, origin.server, subscription),
            tuple(origin.consumed(declared, members)) if members or origin.server else None,
            _one_member(domain, goal, to_member),
            Selector.parse(selector),
            limit,
        )
        if dry_run:
            done = plan_move(domain, store, request)
        else:
            announce(settings, f"moving messages of {source} to {where}")
            done = run_move(domain, store, request, wait_s)
    if settings.as_json:
        settings.out.document(
            {"source": source, "target": target, "moved": done.moved, "claimed": done.claimed, "dry_run": dry_run}
        )
        return
    settings.out.say(f"{'would move' if dry_run else 'moved'} {done.moved:,} message(s) of {source} to {where}")
    if done.claimed:
        settings.out.say(f"{done.claimed:,} claimed message(s) stay with their consumers: see `jmsq claims {source}`")


def _one_member(domain: Domain, target: DestinationAddress, member: int | None) -> int | None:
    """None: the target's routing decides, also between several members on the named server."""
    declared = domain.log(target.destination).refresh().destination
    found = target.narrowed(declared, None if member is None else [member])
    return found[0] if found is not None and (len(found) == 1 or target.server is None) else None
