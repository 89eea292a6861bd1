"""`jmsq apply` and `jmsq list`: what destinations there are.

Features: C3, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import click

from spark_jms.cli.settings import CommandSettings, command


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
    from spark_jms.claims.views import moment

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
    from spark_jms.cli.output import human_bytes, human_ms
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
