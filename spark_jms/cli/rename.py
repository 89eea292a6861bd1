"""`jmsq rename`: give a destination another name.

Features: C14, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import click

from spark_jms.cli.settings import CommandSettings, command, complete_destination


@command("rename", short_help="Give a destination another name; positions and checkpoints stay valid.")
@click.argument("old", metavar="OLD", shell_complete=complete_destination)
@click.argument("new", metavar="NEW")
@click.option("--force", is_flag=True, help="Rename even while consumers use it: they fail, and can continue as NEW.")
def rename(settings: CommandSettings, old: str, new: str, force: bool) -> None:
    """Give a destination another name. No data moves: subscriptions, positions, claims and checkpoints stay valid.

    Stop its senders and consumers first, and start them with the new name. Change the name in the module file too: `apply`
    with the old name would create a new destination. A rename that was interrupted is finished by the next one.
    """
    from dataclasses import asdict

    with settings.administrator() as admin:
        renamed = admin.rename(old, new, force=force)
    if settings.as_json:
        settings.out.document(asdict(renamed))
    else:
        settings.out.say(f"renamed {old} to {new}; its table stays at {renamed.path}")
