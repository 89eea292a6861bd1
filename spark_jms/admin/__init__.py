"""For people who administer a domain, from Python: what waits, who has claimed what, and the changes of `jmsq`.

with spark_jms.admin.connect(root) as admin:
    sum(row.backlog for row in admin.backlog("orders"))
    admin.pause("orders", "consumption")
    admin.redrive("errors", dry_run=True)

Importing this package is light: the rest is imported when it is used.

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_jms.admin.administrator import Administrator
    from spark_jms.admin.claims import ConsumerRow
    from spark_jms.admin.destinations import DropPlan, Paused, PauseRow, RenamedDestination
    from spark_jms.admin.purge import Purged
    from spark_jms.admin.quota import QuotaEntryRow, QuotaRequestRow, QuotaRow
    from spark_jms.admin.servers import PausedServer, ServerRow
    from spark_jms.admin.services import Round
    from spark_jms.admin.statistics import DestinationStatistics, MemberStatistics
    from spark_jms.admin.transfer import Moved, Redriven
    from spark_jms.claims.upkeep.life_cycle_view import EventRow
    from spark_jms.claims.upkeep.views import ClaimRow, SubscriptionRow

__all__ = [
    "Administrator",
    "ClaimRow",
    "ConsumerRow",
    "DestinationStatistics",
    "DropPlan",
    "EventRow",
    "MemberStatistics",
    "Moved",
    "PauseRow",
    "Paused",
    "PausedServer",
    "Purged",
    "QuotaEntryRow",
    "QuotaRequestRow",
    "QuotaRow",
    "Redriven",
    "RenamedDestination",
    "Round",
    "ServerRow",
    "SubscriptionRow",
    "connect",
]

_MODULES = {
    "spark_jms.admin.administrator": ("Administrator",),
    "spark_jms.admin.claims": ("ConsumerRow",),
    "spark_jms.admin.destinations": (
        "DropPlan",
        "PauseRow",
        "Paused",
        "RenamedDestination",
    ),
    "spark_jms.admin.purge": ("Purged",),
    "spark_jms.admin.quota": (
        "QuotaEntryRow",
        "QuotaRequestRow",
        "QuotaRow",
    ),
    "spark_jms.admin.servers": ("PausedServer", "ServerRow"),
    "spark_jms.admin.services": ("Round",),
    "spark_jms.admin.statistics": (
        "DestinationStatistics",
        "MemberStatistics",
    ),
    "spark_jms.admin.transfer": (
        "Moved",
        "Redriven",
    ),
    "spark_jms.claims.upkeep.life_cycle_view": ("EventRow",),
    "spark_jms.claims.upkeep.views": (
        "ClaimRow",
        "SubscriptionRow",
    ),
}


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module

        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def connect(root: str | os.PathLike[str] | None = None) -> Administrator:
    """Open the domain at `root`, or at the environment variable JMSQ_ROOT, for administration. Use it in a `with` statement.

    It opens the domain's store, so it needs the rights of a consumer. It sends and receives nothing, and starts no background
    work. Raises DomainError when there is no domain.
    """
    from spark_jms.admin.administrator import connect as opened

    return opened(root)
