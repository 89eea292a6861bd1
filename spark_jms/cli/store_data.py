"""`jmsq store create`, `ddl`, `check`, `dump`, `compact`, `migrate`, `lock`, `resolve`: one store of any kind, by its URI or as
the domain's store.

Features: C14, C16, S1 (docs/FEATURES.md)
"""

from __future__ import annotations

import base64
from dataclasses import asdict

import click

from spark_jms.cli.settings import CommandSettings, command
from spark_jms.store.shown_uri import shown_uri

EXIT_PROBLEMS = 1
_uri = click.argument("uri", metavar="[URI]", required=False)


def _store_of(settings: CommandSettings, uri: str | None) -> str:
    return uri or settings.domain().store_uri


@command("create", short_help="Create an empty store: its directory or its tables.")
@click.argument("uri", metavar="[URI]", required=False)
def create(settings: CommandSettings, uri: str | None) -> None:
    """Create the store that URI names: file:///path, jdbc:sqlite:///path/file.db, jdbc:postgresql://user@host/db …

    Without URI it is the domain's own store, after that was lost for good: what consumers had received and is still in
    the tables is delivered again. An existing store does not change. `jmsq store ddl` prints the tables of a store in a database.
    """
    from spark_jms.store import open_store

    uri = _store_of(settings, uri)
    with open_store(uri) as store:
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
    from spark_jms.store.admin import check

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
    from spark_jms.store import open_store
    from spark_jms.store.admin import dump

    with open_store(_store_of(settings, uri), create=False) as store:
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
    from spark_jms.store.admin import compact

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
    from spark_jms.store import admin

    done = admin.salvage(source, target) if salvage else admin.migrate(source, target)
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
    from spark_jms.store.admin import lock_status

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


@command("resolve", short_help="Commit or roll back a prepared transaction; without one, list them.")
@_uri
@click.option("--transaction", metavar="ID", help="Which one.")
@click.option("--commit/--rollback", default=None, help="The decision of its coordinator.")
def resolve(settings: CommandSettings, uri: str | None, transaction: str | None, commit: bool | None) -> None:
    """Commit or roll back a prepared transaction; without --transaction, list them. A prepared transaction locks its
    keys until you resolve it, even if every process involved has died."""
    from spark_jms.store import open_store

    if transaction is not None and commit is None:
        raise click.UsageError("give --commit or --rollback")
    with open_store(_store_of(settings, uri), create=False) as store:
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
