"""`jmsq store up`, `down`, `daemons`, `regions`, `daemon`, `admin`: the daemons of a replicated store.

Features: R3, R4, R6 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_jms.cli.settings import CommandSettings, announce, command, dry_run_option

DIRECTORY_VARIABLE = "RS_DIRECTORY"

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
    from spark_jms.store.regions.admin import Admin
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
    from spark_jms.store.regions.admin import Admin
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
        from spark_jms.store.regions.command_line import HELP
        from spark_jms.store.regions.daemon.options import START_TABLE, STOP_TABLE, help_text

        program = "jmsq store daemon"
        if action not in HELP:
            raise click.UsageError(f"{program} {action or '…'}: give start or stop; {program} -help lists the options")
        click.echo(
            f"{help_text(f'{program} start', START_TABLE)}\n{help_text(f'{program} stop', STOP_TABLE)}", nl=False
        )
        return
    if action == "start":
        from spark_jms.store.regions.daemon.__main__ import main as start

        raise SystemExit(start(words))
    from spark_jms.store.regions.daemon.stop import main as stop

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
