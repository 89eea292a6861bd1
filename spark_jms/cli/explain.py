"""`jmsq explain`: what a selector reads and what it skips.

Features: C7, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import click

from spark_jms.cli.settings import CommandSettings, command, complete_destination


@command("explain", short_help="Show what a selector reads and what it skips.")
@click.argument("destination", shell_complete=complete_destination)
@click.argument("selector")
@click.option("--subscription", help="Of a topic: the subscription whose messages to examine.")
def explain(settings: CommandSettings, destination: str, selector: str, subscription: str | None) -> None:
    """Show what a consumer of DESTINATION with this SELECTOR reads of the unfinished messages, and what it skips.

    Consumers skip a file when its statistics prove that the selector takes none of its messages: by conditions on
    JMSPriority, JMSTimestamp, JMSXGroupID and promoted properties that are joined with AND. Of every other file they
    read the columns of the selector. This command does the same, and claims nothing.

    In a queue, a message that the selector refuses holds back the later ones of its unit of order: the last line says
    how many matching messages wait for that reason, and what to do.
    """
    from spark_jms.admin.explain import explain as explained
    from spark_jms.core.selector import Selector

    wanted = Selector.parse(selector)
    if wanted is None:
        raise click.UsageError("the selector is empty: a consumer without a selector takes every message unread")
    with settings.opened() as (domain, store):
        plan = explained(domain, store, destination, wanted, subscription)
    if settings.as_json:
        settings.out.document(plan)
        return
    from spark_jms.core.held_back import told as told_of

    rows = [(r.member, r.files, r.messages, r.skipped_files, r.skipped, r.parsed, r.matching) for r in plan.members]
    columns = ("member", "files", "messages", "files skipped", "skipped", "read", "matching")
    settings.out.table(destination, columns, rows, "no message was ever sent")
    for condition, skipped in plan.prunes.items():
        settings.out.say(f"{condition}: skips {skipped:,} message(s) by statistics")
    if not plan.prunes:
        settings.out.say("no condition of the selector can be judged by statistics: every file is read")
    settings.out.say(f"columns read of the other files: {', '.join(plan.columns) or 'none'}")
    for name, reading in plan.promoted.items():
        told = f"{name}: read from its column for {reading.by_column:,} message(s)"
        if reading.by_properties:
            told += (
                f", from the properties for {reading.by_properties:,}: their files were written before it was promoted, or hold "
                "a value of another type"
            )
        settings.out.say(told)
    if plan.parses:
        settings.out.say(f"without statistics: {', '.join(plan.parses)}")
    if plan.held_back:
        settings.out.say(told_of(plan.held_back))
