"""`jmsq apply`, `list`, `describe`, `drop`, `pause`, `resume` and `rename`: destinations and their changes.

Features: C3, C14, C16, C18, T14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_jms.cli.command import (
    CommandSettings,
    announce,
    command,
    complete_destination,
    destination_argument,
    destinations_argument,
    dry_run_option,
    names_or_all,
    wait_option,
)

if TYPE_CHECKING:
    from spark_jms.admin.destinations import DropPlan, Paused
    from spark_jms.admin.servers import PausedServer

_Function = TypeVar("_Function", bound=Callable[..., Any])


@command("apply", short_help="Create and change destinations from a module file.")
@click.argument("module", metavar="MODULE.yaml", type=click.Path(dir_okay=False))
def apply(settings: CommandSettings, module: str) -> None:
    """Create and change destinations from a module file.

    Applying it again changes nothing. You may add members while jobs run; removing a member requires that it is empty.
    Destinations that the file does not name do not change.
    """
    from spark_jms.module import apply as apply_module

    changes = apply_module(settings.root, module)
    if settings.as_json:
        settings.out.document(changes)
    else:
        rows = [(change.destination, change.what, change.detail) for change in changes]
        settings.out.table("", ("destination", "", "detail"), rows, "")


@command("list", short_help="List the destinations and their declarations.")
@click.option("--temporary", is_flag=True, help="List the temporary destinations instead, which other commands hide.")
@click.option("--factories", is_flag=True, help="List the connection factories instead.")
def list_destinations(settings: CommandSettings, temporary: bool, factories: bool) -> None:
    """List the destinations and their declarations."""
    if temporary and factories:
        raise click.UsageError("--temporary and --factories are two lists: give one of them")
    if factories:
        _list_factories(settings)
    elif temporary:
        _list_temporary(settings)
    else:
        _list_declared(settings)


def _list_temporary(settings: CommandSettings) -> None:
    from spark_jms.claims.upkeep.views import moment

    with settings.opened() as (domain, store):
        entries, live = domain.temporary.entries(), store.sessions()
    if settings.as_json:
        settings.out.document(
            [
                {
                    "name": e.name,
                    "kind": e.kind,
                    "created": moment(e.created_ms),
                    "owner": e.session,
                    "live": e.session in live,
                }
                for e in entries
            ]
        )
        return
    rows = [(e.name, e.kind, moment(e.created_ms), e.session, "live" if e.session in live else "dead") for e in entries]
    columns = ("temporary destination", "kind", "created", "owner's session", "owner")
    settings.out.table("", columns, rows, f"{domain.root} has no temporary destinations")


def _list_factories(settings: CommandSettings) -> None:
    from spark_jms.settings.connection_factory import FACTORY_KEYS, to_stored

    domain = settings.domain()
    found = {name: to_stored(domain.connection_factories.get(name)) for name in domain.connection_factories.names()}
    if settings.as_json:
        settings.out.document([{"name": name, **values} for name, values in found.items()])
        return
    rows = [(name, *(FACTORY_KEYS[key].show(value) for key, value in values.items())) for name, values in found.items()]
    settings.out.table("", ("connection factory", *FACTORY_KEYS), rows, f"{domain.root} has no connection factories")


def _list_declared(settings: CommandSettings) -> None:
    from spark_jms.cli.command import human_bytes, human_ms
    from spark_jms.module import declare

    domain = settings.domain()
    found = [domain.log(name).refresh().destination for name in domain.destinations()]
    if settings.as_json:
        settings.out.document(
            [{"name": d.name, **declare(d), "subscriptions": sorted(d.subscriptions), "epoch": d.epoch} for d in found]
        )
        return
    columns = ("destination", "kind", "members", "routing", "max message", "retention", "in doubt", "subscriptions")
    rows = [
        (
            d.name,
            d.kind,
            d.members,
            f"{d.routing} {list(d.weights)}" if d.weights else d.routing,
            human_bytes(d.max_message_bytes),
            human_ms(d.retention_ms),
            human_ms(d.in_doubt_timeout_ms),
            ", ".join(sorted(d.subscriptions)),
        )
        for d in found
    ]
    settings.out.table(
        "", columns, rows, f"{domain.root} has no destinations: jmsq apply --root {domain.root} MODULE.yaml"
    )


# -- describe ----------------------------------------------------------------------------------------------------------


@command("describe", short_help="Show the settings of destinations, with where each value came from.")
@destinations_argument
@click.option("--settings", "every_setting", is_flag=True, help="List all settings of spark-jms instead.")
def describe(settings: CommandSettings, destinations: tuple[str, ...], every_setting: bool) -> None:
    """Show the settings of destinations: the value in effect, where it came from, and the default if it differs.

    Without DEST it shows all destinations. --settings lists every setting of spark-jms, with unit, range and meaning: keys of
    the module file, options of format("jmsq"), environment variables, options of store URIs.
    """
    if not every_setting:
        _describe_destinations(settings, destinations)
    elif destinations:
        raise click.UsageError("--settings lists every setting: leave out DEST")
    else:
        _list_settings(settings)


def _describe_destinations(settings: CommandSettings, names: tuple[str, ...]) -> None:
    from spark_jms.admin.destinations import pause_rows
    from spark_jms.core.ordering.units_of_order import by_member
    from spark_jms.settings.destination import KEYS
    from spark_jms.settings.document import describe as describe_settings

    domain = settings.domain()
    found = [domain.log(name).refresh().destination for name in names_or_all(domain, names)]
    if settings.as_json:
        settings.out.document(
            [
                {
                    "name": d.name,
                    "epoch": d.epoch,
                    "subscriptions": sorted(d.subscriptions),
                    "paused": list(pause_rows(d)),
                    "leaving": sorted(d.leaving),
                    "paths": {str(member): len(units) for member, units in sorted(by_member(d.paths).items())},
                    "barriers": [barrier.to_json() for barrier in d.slots.barriers] if d.slots else [],
                    "settings": describe_settings(d),
                }
                for d in found
            ]
        )
        return
    for d in found:
        settings.out.say()
        rows = [
            (each.name, each.shown or default, each.origin, None if each.origin == "default" else default)
            for each in describe_settings(d)
            for default in (KEYS[each.name].shown_default,)
        ]
        settings.out.table(d.name, ("setting", "value", "from", "default"), rows, "")
        for pause in pause_rows(d):
            scope = d.name if pause.member is None else f"{d.name}, member {pause.scope}"
            settings.out.say(f"{scope}: {pause.operation} is paused since {pause.since:%Y-%m-%d %H:%M:%SZ}")
        for member in sorted(d.leaving):
            slots = d.slot_map.owners.count(member)
            but = (
                f" but units of order of {slots} slot(s), which follow the others when they wait no more"
                if slots
                else ""
            )
            settings.out.say(
                f"{d.name}, member {member}: leaves when it is empty, and gets nothing new{but}; apply again then"
            )
        for member, units in sorted(by_member(d.paths).items()):
            settings.out.say(
                f"{d.name}, member {member}: {len(units):,} unit(s) of order stay here that began while their own member was down"
            )
        for barrier in d.slots.barriers if d.slots else ():
            settings.out.say(
                f"{d.name}, member {barrier.new}: units of order of {len(barrier.slots)} slot(s) wait, from sequence "
                f"{barrier.new_first:,} on, for those of member {barrier.old} up to {barrier.old_last:,}"
            )


def _list_settings(settings: CommandSettings) -> None:
    from spark_jms.settings.document import GROUPS, all_settings

    if settings.as_json:
        settings.out.document(list(all_settings()))
        return
    for group in GROUPS.values():
        settings.out.say()
        rows = [
            (row.name, row.shown_default, row.type.unit, row.type.range, row.since, row.doc)
            for row in group.settings.values()
        ]
        settings.out.table(group.title, ("setting", "default", "unit", "range", "since", "meaning"), rows, "")


# -- drop --------------------------------------------------------------------------------------------------------------


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
    from spark_jms.cli.command import human_bytes

    if plan.begun:
        return f"the rest of {plan.destination}, whose drop was interrupted"
    parts = [f"{plan.stored_messages:,} stored message(s) in {human_bytes(plan.bytes)}, {plan.unfinished:,} unfinished"]
    parts += [f"subscription(s) {', '.join(plan.subscriptions)}"] * bool(plan.subscriptions)
    parts += [f"used by {', '.join(plan.consumers)}"] * bool(plan.consumers)
    return f"{plan.destination}: {'; '.join(parts)}"


# -- pause and resume --------------------------------------------------------------------------------------------------


def _pause_options(function: _Function) -> _Function:
    for name, what in (
        ("consumption", "The claims of consumers."),
        ("insertion", "Messages becoming available: from sends under way, transfers, and delays that end."),
        ("production", "New sends."),
    ):
        function = click.option(f"--{name}", is_flag=True, help=what)(function)
    function = click.option("--server", metavar="NAME", help="A server as a whole, in place of a destination.")(
        function
    )
    function = click.option(
        "--member", "members", type=click.IntRange(0), multiple=True, help="Only this member. Repeatable."
    )(function)
    return click.argument("destination", metavar="[DEST]", required=False, shell_complete=complete_destination)(
        function
    )


def _check_scope(destination: str | None, server: str | None, members: tuple[int, ...]) -> None:
    if (destination is None) == (server is None):
        raise click.UsageError("give a destination or --server: one of the two")
    if server is not None and members:
        raise click.UsageError("--server concerns all members on it: leave --member out, or name a destination")


@command("pause", short_help="Stop production, insertion or consumption of a destination.")
@_pause_options
def pause(
    settings: CommandSettings,
    destination: str | None,
    members: tuple[int, ...],
    server: str | None,
    production: bool,
    insertion: bool,
    consumption: bool,
) -> None:
    """Stop production, insertion or consumption of a destination, of some members, or of all members on a server; all three by
    default.

    Production: new sends fail with ProductionPausedError, unless they can go to other members. Insertion: senders that
    are under way wait, transfers stay open, and a message whose delay ends stays invisible. Consumption: consumers and
    queries keep running and receive nothing; they can acknowledge the messages they have, and browsing works. `jmsq
    apply` changes no pause.

    A paused server concerns destinations that come to it later, too; temporary ones it does not.
    """
    _check_scope(destination, server, members)
    with settings.administrator() as admin:
        if destination is None:
            _report_server(settings, admin.pause_server(server or "", *_operations(production, insertion, consumption)))
            return
        _report(
            settings,
            admin.pause(destination, *_operations(production, insertion, consumption), members=members or None),
        )


@command("resume", short_help="Resume what `jmsq pause` has stopped.")
@_pause_options
def resume(
    settings: CommandSettings,
    destination: str | None,
    members: tuple[int, ...],
    server: str | None,
    production: bool,
    insertion: bool,
    consumption: bool,
) -> None:
    """Restart production, insertion or consumption; all three by default.

    Without --member it resumes the destination and all its members. A member stays paused while the destination or its server
    is.
    """
    _check_scope(destination, server, members)
    with settings.administrator() as admin:
        if destination is None:
            _report_server(
                settings, admin.resume_server(server or "", *_operations(production, insertion, consumption))
            )
            return
        _report(
            settings,
            admin.resume(destination, *_operations(production, insertion, consumption), members=members or None),
        )


def _operations(*chosen: bool) -> list[str]:
    """In the order of OPERATIONS; none chosen means all."""
    from spark_jms.core.destinations.pause import OPERATIONS

    return [name for name, wanted in zip(OPERATIONS, chosen, strict=True) if wanted or not any(chosen)]


def _report_server(settings: CommandSettings, paused: PausedServer) -> None:
    if settings.as_json:
        settings.out.document(asdict(paused))
        return
    settings.out.say(
        f"server {paused.server}: {', '.join(paused.paused) or 'nothing'} is paused; changed: {', '.join(paused.changed) or 'nothing'}"
    )
    if paused.consumed:
        settings.out.say(
            f"{', '.join(paused.consumed)}: consumption continues, because messages of a replicated topic's member belong to the "
            "subscriptions on all servers; `jmsq server stop` stops those on one"
        )


def _report(settings: CommandSettings, paused: Paused) -> None:
    if settings.as_json:
        settings.out.document(
            {"destination": paused.destination, "changed": paused.changed, "paused": list(paused.pauses)}
        )
        return
    rows = [(row.operation, row.scope, row.since) for row in paused.pauses]
    settings.out.table("", ("paused", "member", "since"), rows, f"nothing of {paused.destination} is paused")


# -- rename ------------------------------------------------------------------------------------------------------------


@command("rename", short_help="Give a destination another name; positions and checkpoints stay valid.")
@click.argument("old", metavar="OLD", shell_complete=complete_destination)
@click.argument("new", metavar="NEW")
@click.option("--force", is_flag=True, help="Rename even while consumers use it: they fail, and can continue as NEW.")
def rename(settings: CommandSettings, old: str, new: str, force: bool) -> None:
    """Give a destination another name. No data moves: subscriptions, positions, claims and checkpoints stay valid.

    Stop its senders and consumers first, and start them with the new name. Change the name in the module file too: `apply`
    with the old name would create a new destination. A rename that was interrupted is finished by the next one.
    """
    from dataclasses import asdict

    with settings.administrator() as admin:
        renamed = admin.rename(old, new, force=force)
    if settings.as_json:
        settings.out.document(asdict(renamed))
    else:
        settings.out.say(f"renamed {old} to {new}; its table stays at {renamed.path}")
