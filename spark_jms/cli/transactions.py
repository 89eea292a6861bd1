"""`jmsq transactions`: open transactions of transacted sessions.

Features: C14, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_jms.cli.settings import CommandSettings, command


@command("transactions", short_help="Open transactions, and what they wait for.")
@click.option("--complete", is_flag=True, help="First complete those whose owner is dead.")
@click.option("--commit", metavar="ID", help="Commit this one, whatever its lost database has decided.")
@click.option("--rollback", metavar="ID", help="Roll this one back, whatever its lost database has decided.")
@click.option("--ddl", is_flag=True, help="Print the statement that makes the table of a last resource, and end.")
def transactions(
    settings: CommandSettings, complete: bool, commit: str | None, rollback: str | None, ddl: bool
) -> None:
    """List the transactions of transacted sessions that have begun to commit and have not ended, the oldest first.

    One that is "committed" is completed, one that is "preparing" or "rolling back" is rolled back: by its owner while that lives,
    otherwise by housekeeping, by the next transacted session, or by this command with --complete. With --complete, the exit code
    is 1 when some do not end.

    One that is "in doubt" is decided by a database. Only where that is lost use --commit or --rollback: if the database has decided
    otherwise, its changes and the messages contradict each other from then on.

    One that is "damaged" is a coordinator that cannot be read; the others work all the same.
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
