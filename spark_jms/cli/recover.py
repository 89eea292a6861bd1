"""`jmsq recover`: repair a domain after a loss of power that no process has noticed.

Features: C5 (docs/FEATURES.md)
"""

from __future__ import annotations

from spark_jms.cli.settings import CommandSettings, command


@command("recover", short_help="Repair the domain after a loss of power that was not noticed.")
def recover(settings: CommandSettings) -> None:
    """Repair the domain after a loss of power that was not noticed.

    The first program that opens a domain after a boot of its host does this by itself. It does not notice the boot if
    the host has a new name, as many containers have, or if the directory is on a file server that lost its power.

    Stop all programs of the domain first. The command moves incomplete files to ROOT/_jmsq/lost/.
    """
    from spark_jms.claims.power_loss import recover_now

    domain = settings.domain()
    done = recover_now(domain)
    if settings.as_json:
        settings.out.document({"root": domain.root, "recovered": done})
    elif done:
        settings.out.say(f"{domain.root} is whole; what was lost is named above")
    else:
        settings.out.say(f"{domain.root} is an object store: it loses nothing that it has acknowledged")
