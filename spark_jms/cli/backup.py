"""`jmsq backup` and `jmsq restore`.

Features: C19 (docs/FEATURES.md)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import CommandSettings, announce, command, dry_run_option

if TYPE_CHECKING:
    from spark_jms.admin.backup_files import Manifest


@command("backup", short_help="Copy the domain to an empty place, beside running jobs.")
@click.argument("target", metavar="TARGET")
def backup(settings: CommandSettings, target: str) -> None:
    """Copy the domain to TARGET, an empty or new directory or an object store's URL, while jobs run.

    Restored consumers find every message that was not finished when the backup began, flagged as redelivered. What was
    finished by then stays finished; what is sent after its destination was copied is not in the backup.
    """
    from spark_jms.admin.backup import back_up

    with settings.opened() as (domain, store):
        made = back_up(domain, store, target)
    if settings.as_json:
        settings.out.document({"backup": target, **_report(made)})
        return
    for table in made.tables:
        settings.out.say(
            f"{table.destination}: version {table.version}, {table.messages:,} messages, {table.backlog:,} unfinished"
        )
    settings.out.say(
        f"backup {target} is complete: {len(made.files):,} files, {made.bytes:,} bytes, {_seconds(made)} s"
    )


@command("restore", short_help="Restore a backup into an empty place.")
@click.argument("source", metavar="BACKUP")
@click.option("--store", metavar="URI", help="Keep positions and claims in this store, which must be empty.")
@click.option(
    "--server-store",
    "server_stores",
    metavar="NAME=URI",
    multiple=True,
    help="The same for a server; it too must be empty. May be given several times.",
)
@click.option("--force", is_flag=True, help="Delete everything at the root first. Refused while jobs use it.")
@dry_run_option
def restore(
    settings: CommandSettings,
    source: str,
    store: str | None,
    server_stores: tuple[str, ...],
    force: bool,
    dry_run: bool,
) -> None:
    """Restore BACKUP as the domain at --root, with its store and those of its servers.

    Start Spark queries with fresh checkpoints afterwards: their old ones belong to the lost domain.
    """
    from spark_jms.admin.restore import plan_restore
    from spark_jms.admin.restore import restore as restore_domain

    root, servers = settings.root, _by_server(server_stores)
    plan = plan_restore(source, root, store, servers)
    if dry_run or (force and plan.existing_files):
        announce(
            settings,
            f"{plan.existing_files:,} file(s) at {plan.root} go first" if force else _refusal(plan.existing_files),
        )
    if not dry_run:
        restore_domain(source, root, store, servers=servers, force=force)
    report = {
        "root": plan.root,
        "store": plan.store,
        "servers": dict(plan.servers),
        "dry_run": dry_run,
        "deleted_files": plan.existing_files if force else 0,
    }
    if settings.as_json:
        settings.out.document({**report, **_report(plan.manifest)})
        return
    backlog = sum(table.backlog for table in plan.manifest.tables)
    what = "would be restored" if dry_run else "is restored"
    settings.out.say(
        f"{plan.root} {what}: {len(plan.manifest.tables)} destination(s), {backlog:,} unfinished message(s), which are "
        f"flagged as redelivered; store {plan.store}"
        + "".join(f"; server {name} {own}" for name, own in plan.servers.items())
    )


def _by_server(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, uri = text.partition("=")
        if not (name and equals and uri) or name in found:
            raise click.BadParameter(f"{text!r} must be NAME=URI, each server once", param_hint="--server-store")
        found[name] = uri
    return found


def _refusal(existing: int) -> str:
    return f"the place is not empty ({existing:,} files): it would be refused" if existing else "the place is empty"


def _report(made: Manifest) -> dict[str, object]:
    return {
        "store_read_ms": made.store_read_ms,
        "seconds": _seconds(made),
        "files": len(made.files),
        "bytes": made.bytes,
        "destinations": list(made.tables),
    }


def _seconds(made: Manifest) -> float:
    return (made.finished_ms - made.store_read_ms) / 1000
