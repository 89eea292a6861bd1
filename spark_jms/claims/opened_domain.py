"""Opening a domain on this host: every program that sends, receives or changes something does it so.

Features: C5 (docs/FEATURES.md)
"""

from __future__ import annotations

import errno

from spark_jms.log.boots import Boots
from spark_jms.log.domain import Domain
from spark_jms.log.local_storage import LocalStorage


def open_domain(root: str) -> Domain:
    """Raises what `Domain` raises, DomainError when a repair by another process does not end in 30 s, and OSError."""
    return ready(Domain(root))


def ready(domain: Domain) -> Domain:
    """After a loss of power it is repaired. A process that may only read leaves that to others."""
    if isinstance(domain.storage, LocalStorage):
        boots = Boots(domain.storage)
        try:
            if boots.earlier() is None:
                boots.note()
            else:
                from spark_jms.claims.power_loss import recover

                recover(domain, domain.storage, boots)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
    return domain
