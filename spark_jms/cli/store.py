"""`jmsq store`: the daemons of a replicated store (`up`, `down`, `daemons`, `regions`, `daemon`, `admin`), and one store of any
kind, by its URI or as the domain's store (`create`, `ddl`, `check`, `dump`, `compact`, `migrate`, `lock`, `own`, `resolve`); and
`storeadmin`.

Features: C14, C16, R3, R4, R6, S1 (docs/FEATURES.md)
"""

from __future__ import annotations

import base64
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_jms.cli.command import CommandGroup, CommandSettings, announce, command, dry_run_option
from spark_jms.settings.table import MissingExtraError, needs
from spark_jms.store.errors import shown_uri

if TYPE_CHECKING:
    from spark_jms.store import Store

DIRECTORY_VARIABLE = "RS_DIRECTORY"
EXIT_PROBLEMS = 1

_directory = click.option(
    "--dir",
    "directory",
    metavar="PATH",
    envvar=DIRECTORY_VARIABLE,
    default="./replicated-store",
    show_default=True,
    show_envvar=True,
    help="The Global Directory, with its rs_daemons.cfg.",
)


@command("up", short_help="Start the daemons of this machine and wait until they are healthy.")
@_directory
@click.option(
    "--daemons",
    type=click.IntRange(1, 32),
    help="How many, if there is no rs_daemons.cfg yet.  [default: 3]",
)
@click.option("--memory", help="The shared memory limit of each, as in rs_daemons.cfg.  [default: 1G]")
@click.option(
    "--port",
    type=click.IntRange(1024, 49151),
    default=7100,
    show_default=True,
    help="The first port to try for a new rs_daemons.cfg.",
)
@click.option(
    "--webhdfs",
    "door_port",
    type=click.IntRange(0, 65000),
    default=9870,
    show_default=True,
    help="Port of the first daemon's WebHDFS door; the other daemons take the next ones. 0 = none.",
)
def up(
    settings: CommandSettings, directory: str, daemons: int | None, memory: str | None, port: int, door_port: int
) -> None:
    """Write rs_daemons.cfg if it does not exist, start each daemon of this machine that does not run, and wait until
    all of them answer. Run it again to restart daemons that have ended. --daemons and --memory are refused when they
    differ from an rs_daemons.cfg that exists."""
    from spark_jms.store.regions.admin.cluster import Cluster

    cluster = Cluster(directory)
    cluster.write_config(daemons, memory, port)
    started = cluster.up(door_port=door_port)
    lost = cluster.lost_regions()
    uri = f"replicated://{cluster.path}"
    if settings.as_json:
        settings.out.document(
            {
                "directory": str(cluster.path),
                "store": uri,
                "started": list(started.started),
                "doors": list(started.doors),
                "lost_regions": list(lost),
                "daemons": [asdict(info) for info in started.daemons],
            }
        )
        return
    out = settings.out
    count = len(started.started)
    out.say(f"{len(started.daemons)} daemons run, {count} of them started now; directory {cluster.path}")
    for info in started.daemons:
        out.say(f"  daemon {info.index}  {info.address}:{info.port}  {info.memory_limit_bytes >> 20} MB")
    if not started.locks_memory:
        out.say(
            "their memory is not locked, so the system may page it out: the memlock limit (ulimit -l) is below theirs"
        )
    if lost:
        out.say(f"LOST: {', '.join(lost)}; remove them with `storeadmin rmr`")
    out.say(f"store of a domain:          {uri}")
    for door in started.doors[:1]:
        out.say(
            f"checkpointLocation of Spark: webhdfs://{door}/path    (other doors: {', '.join(started.doors[1:]) or 'none'})"
        )
    out.say(f"look at it:                 jmsq store daemons --dir {directory}")
    out.say(f"stop it:                    jmsq store down --dir {directory}")


@command("down", short_help="Stop the daemons of this machine.")
@_directory
@click.option("--force", is_flag=True, help="Stop even if regions are open or hold data: all of it is lost.")
@dry_run_option
def down(settings: CommandSettings, directory: str, force: bool, dry_run: bool) -> None:
    """Stop the daemons of this machine safely. The command is refused while a region is open, or while no other daemon
    has room for the data. Stopping all daemons loses their memory with everything in it; unless there are no regions,
    that needs --force."""
    from spark_jms.store.regions.admin.cluster import Cluster
    from spark_jms.store.regions.admin.port import waiting_text

    cluster = Cluster(directory)
    if force or dry_run:
        found = cluster.stopping()
        names = [region.name for region in found.regions]
        which = ", ".join(map(str, found.daemons)) or "no daemon"
        lost = f"{len(names):,} region(s) with all their data{': ' if names else ''}{', '.join(names)}"
        refused = "" if force else found.refusal
        if dry_run and settings.as_json:
            stopping = [] if refused else list(found.daemons)
            settings.out.document(
                {"stopped": stopping, "refused": refused or None, "lost_regions": names, "dry_run": True}
            )
        elif dry_run:
            settings.out.say(f"would refuse to stop {which}: {refused}" if refused else f"would stop: {which}")
            settings.out.say(f"would lose {lost}" if force else f"only these daemons hold {lost}")
        if dry_run:
            return
        if found.daemons:
            announce(settings, f"stopping daemons {which}; this loses {lost}")
    stopped = cluster.down(force, lambda index, reason: announce(settings, waiting_text(index, reason)))
    if settings.as_json:
        settings.out.document({"stopped": list(stopped)})
    else:
        settings.out.say(f"stopped: {', '.join(map(str, stopped)) or 'no daemon ran'}")


@command("daemons", short_help="Show the daemons of a cluster.")
@_directory
@click.option("--format", "form", type=click.Choice(["table", "list"]), default="table", show_default=True)
def daemons(settings: CommandSettings, directory: str, form: str) -> None:
    """Show the daemons of a cluster, like storeadmin's lsd."""
    from spark_jms.store.regions.admin.api import Admin
    from spark_jms.store.regions.admin.cli import main as storeadmin

    if settings.as_json:
        with Admin(directory, _localindex(directory)) as admin:
            settings.out.document([asdict(info) for info in admin.daemons()])
        return
    raise SystemExit(
        storeadmin(["lsd", "-dir", directory, "-localindex", str(_localindex(directory)), "-format", form])
    )


@command("regions", short_help="Show the regions of a cluster.")
@_directory
@click.option("--format", "form", type=click.Choice(["table", "list"]), default="table", show_default=True)
@click.argument("expression", default="*")
def regions(settings: CommandSettings, directory: str, form: str, expression: str) -> None:
    """Show the regions of a cluster, like storeadmin's lsr; * in EXPRESSION matches any characters."""
    from spark_jms.store.regions.admin.api import Admin
    from spark_jms.store.regions.admin.cli import main as storeadmin

    if settings.as_json:
        with Admin(directory, _localindex(directory)) as admin:
            settings.out.document([asdict(info) for info in admin.regions(expression)])
        return
    raise SystemExit(
        storeadmin(["lsr", "-dir", directory, "-localindex", str(_localindex(directory)), "-format", form, expression])
    )


@click.command(
    "daemon",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Start one daemon in the foreground, or stop it.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def daemon(words: tuple[str, ...]) -> None:
    """Start one daemon in the foreground, or stop it: jmsq store daemon start|stop -dir PATH [-localindex N] ..."""
    action, words = (words[0], words[1:]) if words else ("", ())
    if action not in ("start", "stop"):
        from spark_jms.store.regions.daemon.options import HELP, START_TABLE, STOP_TABLE, help_text

        program = "jmsq store daemon"
        if action not in HELP:
            raise click.UsageError(f"{program} {action or '…'}: give start or stop; {program} -help lists the options")
        click.echo(
            f"{help_text(f'{program} start', START_TABLE)}\n{help_text(f'{program} stop', STOP_TABLE)}", nl=False
        )
        return
    if action == "start":
        from spark_jms.store.kinds.daemon import main as start

        raise SystemExit(start(words))
    from spark_jms.store.regions.admin.cluster import stop_daemon as stop

    raise SystemExit(stop(words))


@click.command(
    "admin",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Run storeadmin: interactively, or one command.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def admin(words: tuple[str, ...]) -> None:
    """The administration utility; `rshelp` lists its commands."""
    from spark_jms.store.regions.admin.cli import main as storeadmin

    raise SystemExit(storeadmin(list(words)))


def _localindex(directory: str) -> int:
    from spark_jms.store.regions.admin.cluster import Cluster

    return Cluster(directory).running_localindex()


# -- one store ---------------------------------------------------------------------------------------------------------

_uri = click.argument("uri", metavar="[URI]", required=False)


def _store_of(settings: CommandSettings, uri: str | None) -> str:
    return uri or settings.domain().store_uri


def _opened(uri: str, *, create: bool = True) -> Store:
    from spark_jms.store import open_store
    from spark_jms.store.contract import COMMAND_LIMIT_S, StoreOpening

    return open_store(uri, create=create, opening=StoreOpening(COMMAND_LIMIT_S))


@command("create", short_help="Create an empty store: its directory or its tables.")
@click.argument("uri", metavar="[URI]", required=False)
def create(settings: CommandSettings, uri: str | None) -> None:
    """Create the store that URI names: file:///path, jdbc:sqlite:///path/file.db, jdbc:postgresql://user@host/db …

    Without URI it is the domain's own store, after that was lost for good: what consumers had received and is still in
    the tables is delivered again. An existing store does not change. `jmsq store ddl` prints the tables of a store in a database.
    """
    uri = _store_of(settings, uri)
    with _opened(uri) as store:
        count = store.statistics().record_count
    if settings.as_json:
        settings.out.document({"store": shown_uri(uri), "records": count})
        return
    settings.out.say(f"{shown_uri(uri)} exists, with {count:,} record set(s)")


@command("ddl", short_help="Print the SQL that creates the tables of a store in a database.")
@click.argument("uri", metavar="URI")
def ddl(settings: CommandSettings, uri: str) -> None:
    """Print the SQL for an administrator who creates the tables; then open the store with create_tables=false. The
    command connects to no database."""
    from spark_jms.store.jdbc.settings import parse_jdbc
    from spark_jms.store.jdbc.tables import ddl

    statements = ddl(parse_jdbc(uri))
    if settings.as_json:
        settings.out.document({"store": shown_uri(uri), "ddl": statements})
        return
    settings.out.say(statements.rstrip())


@command("check", short_help="Read everything and compare every checksum; change nothing.")
@_uri
def check(settings: CommandSettings, uri: str | None) -> int:
    """Read the whole store, compare every checksum and name every damaged place. It changes nothing. Exit code 1 if
    anything is damaged."""
    from spark_jms.store.kinds.administration import check

    found = check(_store_of(settings, uri))
    if settings.as_json:
        settings.out.document(asdict(found))
    else:
        settings.out.say(
            f"{found.store}: {found.record_count:,} record set(s), {found.object_count:,} object(s), {found.object_bytes:,} bytes"
        )
        for xid in found.in_doubt:
            settings.out.say(f"in doubt: transaction {xid} (jmsq store resolve)")
        for problem in found.problems or ("all checksums are correct",):
            settings.out.say(problem)
    return EXIT_PROBLEMS if found.problems else 0


@command("dump", short_help="Print every record set.")
@_uri
@click.option("--values", is_flag=True, help="With the objects' values, in base64.")
def dump(settings: CommandSettings, uri: str | None, values: bool) -> None:
    """Print every record set as of one moment; with --json one per line."""
    from spark_jms.store.kinds.administration import dump

    with _opened(_store_of(settings, uri), create=False) as store:
        for record in dump(store):
            if record.damage:
                if settings.as_json:
                    settings.out.record({"name": record.name, "damage": record.damage})
                else:
                    settings.out.say(record.damage)
                continue
            objects = {key: base64.b64encode(value).decode() if values else len(value) for key, value in record.objects}
            if settings.as_json:
                settings.out.record(
                    {"name": record.name, "epoch": record.epoch, "holder": record.holder, "objects": objects}
                )
                continue
            held = f", held by {record.holder}" if record.holder else ""
            settings.out.say(f"{record.name}  epoch {record.epoch}{held}")
            for key, value in objects.items():
                settings.out.say(f"    {key}  {value}{'' if values else ' bytes'}")


@command("compact", short_help="Free space in place, while other processes use the store.")
@_uri
def compact(settings: CommandSettings, uri: str | None) -> None:
    """Free space while other processes use the store: a file store begins a new journal, a database vacuums its tables."""
    from spark_jms.store.kinds.administration import compact

    store = _store_of(settings, uri)
    done = compact(store)
    if settings.as_json:
        settings.out.document({"store": store, "done": done})
        return
    settings.out.say(done)


@command("migrate", short_help="Copy everything into a store of another kind, without loss.")
@click.argument("source", metavar="SOURCE")
@click.argument("target", metavar="TARGET")
@click.option("--salvage", is_flag=True, help="SOURCE is damaged: copy everything readable, name the rest.")
def migrate(settings: CommandSettings, source: str, target: str, salvage: bool) -> int:
    """Copy every record set with its epoch, every object and every prepared transaction, and compare at the end.

    No process may use either store. After an interruption, run it again: it skips what the target has already. The
    source does not change.

    With --salvage the source may be a file store or database that cannot be opened any more: the command omits and names
    damaged places, and the record sets that may have lost changes. Exit code 1 if it omitted anything.
    """
    from spark_jms.store.kinds import administration

    done = administration.salvage(source, target) if salvage else administration.migrate(source, target)
    code = EXIT_PROBLEMS if done.left_out else 0
    if settings.as_json:
        settings.out.document(asdict(done))
        return code
    settings.out.say(
        f"{done.record_count:,} record set(s), {done.object_count:,} object(s), {done.object_bytes:,} bytes, "
        f"{done.prepared_count:,} prepared transaction(s) are in {target}; {done.there_already:,} were there before"
    )
    for place in done.left_out:
        settings.out.say(f"left out: {place}")
    if done.uncertain:
        settings.out.say(f"may have lost changes: {', '.join(done.uncertain)}")
    return code


@command("lock", short_help="Show the owner of the store: process, start time, incarnation.")
@_uri
def lock(settings: CommandSettings, uri: str | None) -> None:
    """Show the process that owns the store, its start time and its incarnation. The command takes no lock and changes
    nothing, so it works even if the owner hangs."""
    from spark_jms.store.kinds.administration import lock_status

    found = lock_status(_store_of(settings, uri))
    if settings.as_json:
        settings.out.document(asdict(found))
        return
    settings.out.say(f"{found.store}: {'held' if found.held else 'free'}")
    if found.engine:
        settings.out.say(f"engine       {found.engine}, store version {found.version}")
        settings.out.say(f"incarnation  {found.incarnation}")
    if found.owner:
        state = "answers" if found.answers else "does not answer" if found.held else "has ended"
        settings.out.say(f"owner        {found.owner}; it {state}")
    for info in found.sessions:
        settings.out.say(f"session      {info.session_id}  {info.label}")


@command("own", short_help="Take over the store of a domain that does not exist any more.")
@click.argument("uri", metavar="[URI]", required=False)
@click.option("--server", default="home", show_default=True, help="The server whose store it becomes.")
@dry_run_option
def own(settings: CommandSettings, uri: str | None, server: str, dry_run: bool) -> None:
    """Write into a store that it is this domain's, whichever domain had it. Without URI it is the store of --server; with it the
    server need not be declared yet.

    For a store that a ForeignOwnerError names, after you have made sure that no other domain uses it: that one is refused from
    then on. The store of a database also has the domain's id in SIBOWNER, which stays.
    """
    from spark_jms.log.destinations.owner import take_over

    domain = settings.domain()
    owner = domain.owner(server, uri or "")
    before, shown = take_over(owner, dry_run=dry_run), shown_uri(owner.uri)
    if settings.as_json:
        settings.out.document({"store": shown, "before": before or None, "dry_run": dry_run})
    elif before:
        settings.out.say(f"{shown} {'would be' if dry_run else 'is'} the store of {domain.root}; before: {before}")
    else:
        settings.out.say(f"{shown} is the store of {domain.root}, as before")


@command("resolve", short_help="Commit or roll back a prepared transaction; without one, list them.")
@_uri
@click.option("--transaction", metavar="ID", help="Which one.")
@click.option("--commit/--rollback", default=None, help="The decision of its coordinator.")
def resolve(settings: CommandSettings, uri: str | None, transaction: str | None, commit: bool | None) -> None:
    """Commit or roll back a prepared transaction; without --transaction, list them. A prepared transaction locks its
    keys until you resolve it, even if every process involved has died."""
    if transaction is not None and commit is None:
        raise click.UsageError("give --commit or --rollback")
    with _opened(_store_of(settings, uri), create=False) as store:
        if transaction is not None and commit is not None:
            store.resolve(transaction, commit)
        left = {xid: list(names) for xid, names in store.in_doubt().items()}
    if settings.as_json:
        settings.out.document({"in_doubt": left})
        return
    for xid, names in left.items():
        settings.out.say(f"in doubt: {xid}  {', '.join(names)}")
    if not left:
        settings.out.say("no transaction is in doubt")


# -- the group, and storeadmin -----------------------------------------------------------------------------------------


@click.group("store", cls=CommandGroup, short_help="Stores: create, check, move, and the daemons of a replicated one.")
def store() -> None:
    """Manage the stores that keep positions and claims: file, jdbc, replicated."""


_ONE_STORE = (create, ddl, check, dump, compact, migrate, lock, own, resolve)
for _command in (*_ONE_STORE, up, down, daemons, regions, daemon, admin):
    store.add_command(_command)


def storeadmin() -> int:
    """The entry point of `storeadmin`: names the extra of the replicated store when its packages are missing."""
    try:
        with needs("replicated"):
            from spark_jms.store.regions.admin.cli import main

            return main()
    except MissingExtraError as error:
        print(f"storeadmin: {error}", file=sys.stderr)
        return 1
