"""`jmsq describe`: the settings of destinations, or every setting there is.

Features: C14, C16 (docs/FEATURES.md)
"""

from __future__ import annotations

import click

from spark_jms.cli.settings import CommandSettings, command, destinations_argument, names_or_all


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
    from spark_jms.admin.pause import pause_rows
    from spark_jms.core.unit_paths import by_member
    from spark_jms.settings.description import describe as describe_settings
    from spark_jms.settings.destination import KEYS

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
            scope = d.name if pause.member is None else f"{d.name}, member {pause.member}"
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
    from spark_jms.settings.description import all_settings
    from spark_jms.settings.tables import GROUPS

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
