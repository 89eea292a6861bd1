"""The destinations that a command or call is about.

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_jms.core.address import DestinationAddress
from spark_jms.log.domain import Domain


def names_or_all(domain: Domain, given: Sequence[str], *, addresses: bool = False) -> list[str]:
    """The named destinations, once each, or all of them; with `addresses` also members, as server@destination. Raises
    InvalidDestinationError for an unknown name."""
    for name in given:
        domain.log(DestinationAddress.parse(name).destination if addresses else name)
    return list(dict.fromkeys(given)) or domain.destinations()
