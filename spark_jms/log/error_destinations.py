"""Which destination is the error destination of which, and whether it takes what the other one does.

Features: C3, C8 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

from spark_jms.core.destination import Destination
from spark_jms.errors import InvalidDestinationError, JmsqError, ModuleFileError
from spark_jms.log.domain import Domain

log = logging.getLogger("spark_jms")


def check_error_destinations(domain: Domain, declared: Sequence[Destination]) -> None:
    """An error destination is another queue: a topic keeps nothing that no subscription wants. ModuleFileError."""
    kinds = {d.name: d.kind for d in declared}
    for destination in declared:
        name = destination.error_destination
        if name is None:
            continue
        kind = kinds.get(name)
        if kind is None and name in domain.destinations():
            kind = domain.log(name).refresh().destination.kind
        wrong = "is itself" if name == destination.name else f"is a {kind}" if kind and kind.endswith("topic") else ""
        wrong = wrong or ("" if kind else "does not exist")
        if wrong:
            raise ModuleFileError(
                f"destination {destination.name}: errorDestination {name!r} {wrong}, but must be another queue of this "
                "domain, in this file or applied before"
            )
    _warn_of_circles(domain, declared)


def _warn_of_circles(domain: Domain, declared: Sequence[Destination]) -> None:
    """A message that fails in each of such queues goes round for ever."""
    targets = {d.name: d.error_destination for d in declared}
    told: set[str] = set()
    for first in targets:
        circle, name = [first], targets[first]
        while name is not None and name not in circle:
            circle.append(name)
            if name not in targets:
                targets = {**targets, name: _error_destination_of(domain, name)}
            name = targets[name]
        if name == first and told.isdisjoint(circle):
            told.update(circle)
            log.warning(
                "%s: each is the errorDestination of the one before it, so a message that fails in all of them goes round for "
                "ever: give one of them an errorDestination that nothing moves out of, or none",
                " -> ".join([*circle, first]),
            )


def _error_destination_of(domain: Domain, name: str) -> str | None:
    """None also when it cannot be read: another destination's damage prevents no change of this one."""
    try:
        return domain.log(name).refresh().destination.error_destination
    except (JmsqError, OSError) as error:
        log.warning("whether %s has an errorDestination is unknown: %s", name, error)
        return None


def warn_of_narrow_ones(domain: Domain, declared: Sequence[Destination], changed: Collection[str]) -> None:
    """Log the error destinations that take less than a destination whose messages they shall take. `declared` are applied, and of
    these `changed` may be error destinations of others."""
    known = {one.name: one for one in declared}
    others = [one for one in _existing(domain, changed, known) if one.error_destination in changed]
    for source in [*declared, *others]:
        name = source.error_destination
        if name is not None and (target := known.get(name) or domain.log(name).refresh().destination):
            for narrow in _narrow(domain, source, target):
                log.warning(
                    "destination %s has the errorDestination %s, which takes less: %s. A larger message that fails is refused for "
                    "good there: it stays in %s, and `jmsq stat` lists it. Declare the error destination at least as large",
                    source.name,
                    name,
                    narrow,
                    source.name,
                )


def _narrow(domain: Domain, source: Destination, target: Destination) -> Iterator[str]:
    most = source.max_message_bytes
    if target.max_message_bytes < most:
        yield f"its maxMessageSize is {target.max_message_bytes} bytes, and that of {source.name} is {most}"
    for quota in sorted(target.quotas - source.quotas):
        limit = domain.quotas.limit(quota)
        if 0 <= limit.bytes < most:
            yield f"its quota {quota} has room for {limit.bytes} bytes, and the maxMessageSize of {source.name} is {most}"


def _existing(domain: Domain, wanted: Collection[str], known: Collection[str]) -> Iterator[Destination]:
    """The destinations that are not `known`, if any are of interest to those that are wanted. One that cannot be read is left out,
    with a warning that names it: another destination's damage prevents no change of this one."""
    for name in domain.register.names() if wanted else ():
        try:
            entry = domain.register.entry(name)
            if name not in known and entry is not None and entry.dropping is None:
                yield domain.log(name).refresh().destination
        except InvalidDestinationError:  # dropped meanwhile
            continue
        except (JmsqError, OSError) as error:
            log.warning(
                "whether %s is the errorDestination of %s is unknown: %s", ", ".join(sorted(wanted)), name, error
            )


def referring(domain: Domain, name: str) -> list[str]:
    """The destinations whose error destination is `name`."""
    return [one.name for one in _existing(domain, [name], [name]) if one.error_destination == name]
