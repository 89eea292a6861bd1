"""`jmsq upgrade`: bring a domain of an earlier format to this version's (C16)."""

from __future__ import annotations

from spark_jms.cli.settings import CommandSettings, command, dry_run_option


@command("upgrade", short_help="Bring a domain of an earlier format to this version's.")
@dry_run_option
def upgrade(settings: CommandSettings, dry_run: bool) -> None:
    """Adopt the positions, claims and waiting acknowledgements of an earlier format version.

    Stop all jobs and clients of the domain first. Messages are not touched. Queries continue with their checkpoints.
    Earlier versions of spark-jms cannot open the domain afterwards: keep a backup until you are content.
    """
    from spark_jms.admin.upgrade import UpgradePlan, plan_upgrade
    from spark_jms.admin.upgrade import upgrade as run_upgrade
    from spark_jms.log.domain import Domain
    from spark_jms.store import open_store

    domain, out = Domain(settings.root, upgrading=True), settings.out
    needed = domain.needs_upgrade
    plan = UpgradePlan((), ())
    if needed:
        with open_store(domain.store_uri) as store:
            plan = plan_upgrade(domain, store) if dry_run else run_upgrade(domain, store)
    if settings.as_json:
        out.document(
            {
                "root": domain.root,
                "needed": needed,
                "dry_run": dry_run,
                "records": list(plan.records),
                "queries": list(plan.queries),
            }
        )
    elif needed:
        what = f"{len(plan.records)} record set(s) and {len(plan.queries)} query position(s) of {domain.root}"
        out.say(f"{'would upgrade' if dry_run else 'upgraded'} {what}")
    else:
        out.say(f"{domain.root} is up to date")


COMMANDS = (upgrade,)
