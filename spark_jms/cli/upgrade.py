"""`jmsq upgrade`: bring a domain of an earlier release to this version's form.

Features: C16 (docs/FEATURES.md)
"""

from __future__ import annotations

from spark_jms.cli.settings import CommandSettings, command, dry_run_option


@command("upgrade", short_help="Convert a domain of an earlier release to this version's format.")
@dry_run_option
def upgrade(settings: CommandSettings, dry_run: bool) -> None:
    """Convert a domain of an earlier release to this version's format. Messages are not changed.

    Tables get a property that names the statistics for other programs: until then filters of delta-rs, DuckDB or Polars
    on some columns find no rows. Jobs, clients and earlier releases may run meanwhile.

    In a domain of format version 1, the command converts positions, claims and waiting acknowledgements. Stop all jobs
    and clients of the domain first. Queries continue with their checkpoints. Earlier versions of spark-jms cannot open
    the domain afterwards: keep a backup until you are sure.
    """
    from spark_jms.admin.upgrade import plan_tables, plan_upgrade, upgrade_tables
    from spark_jms.admin.upgrade import upgrade as run_upgrade
    from spark_jms.claims.stores import open_home
    from spark_jms.log.domain import Domain

    domain, out = Domain(settings.root, upgrading=True), settings.out
    if new_format := domain.needs_upgrade:
        with open_home(domain) as store:
            plan = plan_upgrade(domain, store) if dry_run else run_upgrade(domain, store)
    else:
        plan = plan_tables(domain) if dry_run else upgrade_tables(domain)
    needed = new_format or bool(plan.tables)
    if settings.as_json:
        out.document(
            {
                "root": domain.root,
                "needed": needed,
                "dry_run": dry_run,
                "records": list(plan.records),
                "queries": list(plan.queries),
                "tables": list(plan.tables),
            }
        )
    elif needed:
        positions = f"{len(plan.records)} record set(s), {len(plan.queries)} query position(s) and "
        what = f"{positions if new_format else ''}the properties of {len(plan.tables)} table(s) of {domain.root}"
        out.say(f"{'would upgrade' if dry_run else 'upgraded'} {what}")
    else:
        out.say(f"{domain.root} is up to date")
