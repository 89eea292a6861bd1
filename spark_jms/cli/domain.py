"""`jmsq backup`, `restore`, `server`, `transactions`, `upgrade` and `recover`: what concerns a domain as a whole.

Features: C5, C14, C16, C19, D1, D4, M10, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_jms.cli.command import CommandGroup, CommandSettings, announce, command, dry_run_option

if TYPE_CHECKING:
    from spark_jms.admin.backup import Manifest
    from spark_jms.admin.servers import ServerRow
    from spark_jms.log.destinations.domain import Domain


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
    from spark_jms.admin.backup import plan_restore
    from spark_jms.admin.backup import restore as restore_domain

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


# -- server ------------------------------------------------------------------------------------------------------------


@click.group("server", cls=CommandGroup, short_help="The servers of the domain: list, stop, start, remove.")
def server() -> None:
    """Servers: names with stores of their own, declared in the module file. A destination has one member on each of its
    servers."""


@command("list", short_help="The servers, their members, and whether their stores answer.")
def list_all(settings: CommandSettings) -> None:
    """List the servers of the domain. `home` is the domain's own store. A server is down while an administrator has stopped it,
    or while it is away: no process that uses its store has renewed its lease. "lease" is the age of the last renewal."""
    from spark_jms.admin.servers import list_servers

    found = list_servers(settings.domain())
    if settings.as_json:
        settings.out.document([asdict(row) for row in found])
        return
    rows = [(row.server, row.store, ", ".join(row.members), row.state, _lease(row), row.reason) for row in found]
    settings.out.table("", ("server", "store", "members", "state", "lease", "reason"), rows, "")


def _lease(row: ServerRow) -> str:
    return "" if row.lease_age_s is None else f"{row.lease_age_s:.0f} s old"


@command("stop", short_help="Take a server out of use.")
@click.argument("name", metavar="SERVER")
def stop(settings: CommandSettings, name: str) -> None:
    """Stop a server: senders route to the other servers, sends of a unit of order that belongs to it fail with
    ServerDownError, and consumers release its members and continue with the others. Its messages wait until `jmsq
    server start`."""
    from spark_jms.admin.servers import stop_server

    _change(settings, stop_server, name, "down")


@command("remove", short_help="Remove a server from the domain.")
@click.argument("name", metavar="SERVER")
def remove(settings: CommandSettings, name: str) -> None:
    """Remove a server that no destination names. Destinations with `servers: all` leave it: while messages are there, the command
    fails and names them, and their members get nothing new; repeat it when they are consumed or moved.

    A store below the root is deleted with it; any other stays where it is. Take the server out of the module file too: `jmsq
    apply` would add it again.
    """
    from spark_jms.admin.servers import remove_server

    with settings.opened() as (domain, store):
        destinations = remove_server(domain, store, name)
    if settings.as_json:
        settings.out.document({"server": name, "removed": True, "changed": destinations})
        return
    settings.out.say(f"server {name} is removed; changed: {', '.join(destinations) or 'nothing'}")


@command("start", short_help="Take a stopped server back into use.")
@click.argument("name", metavar="SERVER")
def start(settings: CommandSettings, name: str) -> None:
    """Start a server that `jmsq server stop` has stopped: its messages return, and senders use it again."""
    from spark_jms.admin.servers import start_server

    _change(settings, start_server, name, "up")


def _change(settings: CommandSettings, change: Callable[[Domain, str], list[str]], name: str, state: str) -> None:
    destinations = change(settings.domain(), name)
    if settings.as_json:
        settings.out.document({"server": name, "state": state, "changed": destinations})
        return
    settings.out.say(f"server {name} is {state}; changed: {', '.join(destinations) or 'nothing'}")


for _command in (list_all, stop, start, remove):
    server.add_command(_command)


# -- transactions ------------------------------------------------------------------------------------------------------


@command("transactions", short_help="List open transactions, and what they wait for.")
@click.option("--complete", is_flag=True, help="First complete those whose owner is dead.")
@click.option("--commit", metavar="ID", help="Commit this transaction, whatever its lost database has decided.")
@click.option("--rollback", metavar="ID", help="Roll this transaction back, whatever its lost database has decided.")
@click.option("--ddl", is_flag=True, help="Print the SQL that creates the table of a last resource, and exit.")
def transactions(
    settings: CommandSettings, complete: bool, commit: str | None, rollback: str | None, ddl: bool
) -> None:
    """List the transactions of transacted sessions that have begun to commit and have not ended, the oldest first.

    A "committed" transaction will be completed, one that is "preparing" or "rolling back" will be rolled back: by its
    owner while that lives, otherwise by housekeeping, by the next transacted session, or by this command with
    --complete. With --complete, the exit code is 1 when some do not end.

    A database decides a transaction that is "in doubt". Use --commit or --rollback only if the database is lost: if it
    has decided otherwise, its changes and the messages contradict each other from then on.

    "damaged" marks a coordinator that cannot be read; the others work.
    """
    if ddl:
        from spark_jms.claims.transactions.last_resource import DDL

        click.echo(DDL)
        return
    if commit and rollback:
        raise click.UsageError("give --commit or --rollback, not both")
    from spark_jms.admin.servers import complete_transactions, decide_transaction
    from spark_jms.admin.servers import transactions as rows_of

    with settings.opened() as (domain, store):
        forced = commit or rollback
        problems = decide_transaction(domain, store, forced, commit=bool(commit)) if forced else ()
        problems += complete_transactions(domain, store) if complete else ()
        found = rows_of(domain, store)
    if settings.as_json:
        settings.out.document([asdict(row) for row in found])
    else:
        rows = [
            (
                row.transaction,
                row.state,
                row.made,
                row.owner if row.owner_lives or not row.owner else f"{row.owner} (dead)",
                ", ".join(row.targets),
                ", ".join(row.origins),
                "; ".join(row.waits),
            )
            for row in found
        ]
        columns = ("transaction", "state", "made", "owner", "to", "from", "waits for")
        settings.out.table("", columns, rows, "no transaction is open")
    for problem in problems:
        click.echo(f"jmsq: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)


# -- upgrade -----------------------------------------------------------------------------------------------------------


@command("upgrade", short_help="Convert a domain of an earlier release to this version's format.")
@dry_run_option
def upgrade(settings: CommandSettings, dry_run: bool) -> None:
    """Convert a domain of an earlier release to this version's format. Messages are not changed.

    Tables get a property that names the statistics for other programs: until then filters of delta-rs, DuckDB or Polars
    on some columns find no rows. Jobs, clients and earlier releases may run meanwhile.

    In a domain of format version 1, the command converts positions, claims and waiting acknowledgements. Stop all jobs
    and clients of the domain first. Queries continue with their checkpoints. Earlier versions of spark-jms cannot open
    the domain afterwards: keep a backup until you are sure.
    """
    from spark_jms.admin.upgrade import plan_tables, plan_upgrade, upgrade_tables
    from spark_jms.admin.upgrade import upgrade as run_upgrade
    from spark_jms.claims.servers.stores import open_home
    from spark_jms.log.destinations.domain import Domain

    domain, out = Domain(settings.root, upgrading=True), settings.out
    if new_format := domain.needs_upgrade:
        with open_home(domain) as store:
            plan = plan_upgrade(domain, store) if dry_run else run_upgrade(domain, store)
    else:
        plan = plan_tables(domain) if dry_run else upgrade_tables(domain)
    needed = new_format or bool(plan.tables)
    if settings.as_json:
        out.document(
            {
                "root": domain.root,
                "needed": needed,
                "dry_run": dry_run,
                "records": list(plan.records),
                "queries": list(plan.queries),
                "tables": list(plan.tables),
            }
        )
    elif needed:
        positions = f"{len(plan.records)} record set(s), {len(plan.queries)} query position(s) and "
        what = f"{positions if new_format else ''}the properties of {len(plan.tables)} table(s) of {domain.root}"
        out.say(f"{'would upgrade' if dry_run else 'upgraded'} {what}")
    else:
        out.say(f"{domain.root} is up to date")


# -- recover -----------------------------------------------------------------------------------------------------------


@command("recover", short_help="Repair the domain after a loss of power that was not noticed.")
def recover(settings: CommandSettings) -> None:
    """Repair the domain after a loss of power that was not noticed.

    The first program that opens a domain after a boot of its host does this by itself. It does not notice the boot if
    the host has a new name, as many containers have, or if the directory is on a file server that lost its power.

    Stop all programs of the domain first. The command moves incomplete files to ROOT/_jmsq/lost/.
    """
    from spark_jms.claims.upkeep.power_loss import recover_now

    domain = settings.domain()
    done = recover_now(domain)
    if settings.as_json:
        settings.out.document({"root": domain.root, "recovered": done})
    elif done:
        settings.out.say(f"{domain.root} is whole; what was lost is named above")
    else:
        settings.out.say(f"{domain.root} is an object store: it loses nothing that it has acknowledged")
