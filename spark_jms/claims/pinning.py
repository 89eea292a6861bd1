"""Pins a new receiver or browser of a distributed queue to one of its members (D3). core/pinning.py has the rules."""

from __future__ import annotations

import random

from spark_jms.claims.lane import Lane, LaneBusyError
from spark_jms.claims.stores import prefix_of, record_of
from spark_jms.core.destination import QUEUE_SUBSCRIPTION, Destination
from spark_jms.core.pinning import Reachable, chosen
from spark_jms.errors import MemberUnavailableError, OptionError
from spark_jms.log.snapshot import Snapshot
from spark_jms.store import RecordInfo, Store, StoreError

ANSWER_S = 2.0


def check_pinning(declared: Destination) -> None:
    """Raises OptionError for a topic: its subscriptions are not in one member."""
    if declared.is_topic:
        raise OptionError(f"{declared.name} is a {declared.kind}: pin is for queues; leave it out")


def pinned_member(store: Store, snapshot: Snapshot, home: str | None = None, *, receives: bool = True) -> Reachable:
    """The member for a new receiver, or for a browser. Raises MemberUnavailableError, which names the servers, when none can
    be reached."""
    declared = snapshot.destination
    check_pinning(declared)
    reachable: list[Reachable] = []
    unreachable: list[str] = []
    for server in declared.servers_in_use():
        try:
            infos = _infos(store, snapshot, server)
        except _ServerUnreachableError as error:
            unreachable.append(f"server {server}: {error}")
            continue
        for member in declared.members_on(server):
            info = infos.get(record_of(snapshot, QUEUE_SUBSCRIPTION, member))
            reachable.append(Reachable(member, server, _consumers(info) if receives else 0))
    if not reachable:
        raise MemberUnavailableError(
            f"no member of {declared.name} can be reached, so there is none to pin to: {'; '.join(unreachable)}. Try again later"
        )
    return chosen(reachable, home, random.randrange(2**31))


class _ServerUnreachableError(Exception):
    """`args`: why."""


def _infos(store: Store, snapshot: Snapshot, server: str) -> dict[str, RecordInfo]:
    if server in snapshot.destination.down:
        raise _ServerUnreachableError("it is down")
    lane = Lane(f"server {server}")
    try:
        return lane.run(lambda: store.infos(prefix_of(snapshot, QUEUE_SUBSCRIPTION, server)), ANSWER_S)
    except LaneBusyError:
        raise _ServerUnreachableError(f"its store does not answer within {ANSWER_S:g} s") from None
    except StoreError as error:
        raise _ServerUnreachableError(f"{type(error).__name__}: {error}") from error
    finally:
        lane.close()


def _consumers(info: RecordInfo | None) -> int:
    return 0 if info is None else len(info.waiters) + (info.holder is not None)
