"""Opening a domain on this host: every program that sends, receives or changes something does it so.

Features: C5 (docs/FEATURES.md)
"""

from __future__ import annotations

import errno
import os

from spark_jms.errors import DomainError
from spark_jms.log.boots import Boots
from spark_jms.log.domain import Domain
from spark_jms.log.local_storage import LocalStorage
from spark_jms.settings.environment import ROOT_VARIABLE


def open_given_domain(root: str | os.PathLike[str] | None) -> Domain:
    """What a program connects to: the domain at `root`, or at the environment variable JMSQ_ROOT. Raises as `open_domain`."""
    where = os.fspath(root) if root is not None else os.environ.get(ROOT_VARIABLE, "")
    if not where:
        raise DomainError(f"no root: give connect(root) the domain's directory or URL, or set {ROOT_VARIABLE}")
    return open_domain(where)


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
