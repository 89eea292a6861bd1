"""`jmsq store create`, `ddl`, `check`, `dump`, `compact`, `migrate`, `lock`, `resolve`: a store of any kind, by its URI or as
the store of the domain (C14, C16, S1)."""

from __future__ import annotations

import base64
from dataclasses import asdict

import click

from spark_jms.cli.settings import Settings, command

EXIT_PROBLEMS = 1
_uri = click.argument("uri", metavar="[URI]", required=False)


def _store_of(settings: Settings, uri: str | None) -> str:
    return uri or settings.domain().store_uri


@command("create", short_help="Make an empty store, its directory or its tables.")
@click.argument("uri", metavar="URI")
def create(settings: Settings, uri: str) -> None:
    """Make the store that URI names: file:///path, jdbc:sqlite:///path/file.db, jdbc:postgresql://user@host/db …

    One that is there is left as it is. `jmsq store ddl` prints what is made in a database.
    """
    from spark_jms.store import open_store

    with open_store(uri) as store:
        count = store.statistics().record_count
    if settings.as_json:
        settings.out.document({"store": uri, "records": count})
        return
    settings.out.say(f"{uri} is there, with {count:,} record set(s)")


@command("ddl", short_help="Print the SQL that makes the tables of a store in a database.")
@click.argument("uri", metavar="URI")
def ddl(settings: Settings, uri: str) -> None:
    """For an administrator who makes the tables; then use the store with create_tables=no. Nothing is connected to."""
    from spark_jms.store.jdbc.settings import parse_jdbc
    from spark_jms.store.jdbc.tables import ddl

    statements = ddl(parse_jdbc(uri))
    if settings.as_json:
        settings.out.document({"store": uri, "ddl": statements})
        return
    settings.out.say(statements.rstrip())


@command("check", short_help="Read everything and compare every checksum; change nothing.")
@_uri
def check(settings: Settings, uri: str | None) -> int:
    """What is damaged is named, and left as it is. Exit code 1 when something is."""
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
        for problem in found.problems or ("all checksums right",):
            settings.out.say(problem)
    return EXIT_PROBLEMS if found.problems else 0


@command("dump", short_help="Print every record set.")
@_uri
@click.option("--values", is_flag=True, help="With the objects' values, in base64.")
def dump(settings: Settings, uri: str | None, values: bool) -> None:
    """As one moment has them. With --json one record set a line."""
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


@command("compact", short_help="Give back room, in place, while others use the store.")
@_uri
def compact(settings: Settings, uri: str | None) -> None:
    """The file store begins a new journal; a database vacuums the tables."""
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
@click.option("--salvage", is_flag=True, help="SOURCE is damaged: take all that is readable, name what is not.")
def migrate(settings: Settings, source: str, target: str, salvage: bool) -> int:
    """Every record set with its epoch, every object, every prepared transaction; compared at the end.

    Both must be out of use. Interrupted, do it again: what is there already is left. The source stays as it is.

    With --salvage also of a file store or database that does not open any more: what is damaged is left out and named,
    with the record sets that may have lost changes. Exit code 1 when something was left out.
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


@command("lock", short_help="Who has the store: which process, since when, which incarnation.")
@_uri
def lock(settings: Settings, uri: str | None) -> None:
    """Takes no lock and changes nothing, also while the owner hangs."""
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
        state = "answers" if found.answers else "does not answer" if found.held else "is gone"
        settings.out.say(f"owner        {found.owner}; it {state}")
    for info in found.sessions:
        settings.out.say(f"session      {info.session_id}  {info.label}")


@command("resolve", short_help="Commit or roll back a prepared transaction; without one, list them.")
@_uri
@click.option("--transaction", metavar="ID", help="Which one.")
@click.option("--commit/--rollback", default=None, help="What its coordinator has decided.")
def resolve(settings: Settings, uri: str | None, transaction: str | None, commit: bool | None) -> None:
    """A prepared transaction locks the keys it names until it is resolved, whatever died in between."""
    from spark_jms.store import open_store

    if transaction is not None and commit is None:
        raise click.UsageError("say --commit or --rollback")
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


COMMANDS = (create, ddl, check, dump, compact, migrate, lock, resolve)
