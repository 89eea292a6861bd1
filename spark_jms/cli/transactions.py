"""`jmsq transactions`: open transactions of transacted sessions.

Features: C14, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_jms.cli.settings import CommandSettings, command


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
        from spark_jms.claims.last_resource import DDL

        click.echo(DDL)
        return
    if commit and rollback:
        raise click.UsageError("give --commit or --rollback, not both")
    from spark_jms.admin.transactions import complete_transactions, decide_transaction
    from spark_jms.admin.transactions import transactions as rows_of

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
