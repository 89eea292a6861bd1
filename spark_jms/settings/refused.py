"""Names of WebLogic's texts that have no counterpart here, with the reason. A module file, an option of Spark or an acknowledge mode
that uses one is refused with it; docs/OPTIONS.md lists them.

Features: T18 (docs/FEATURES.md)
"""

from __future__ import annotations

from typing import NamedTuple


class RefusedName(NamedTuple):
    """`title`: as the texts call it; `keys`: as it may be written, in any case."""

    title: str
    keys: tuple[str, ...]
    reason: str


REFUSED = (
    RefusedName(
        "XA Enabled",
        ("xaEnabled", "xaConnectionFactoryEnabled"),
        "no transaction manager enlists a connection; a [transacted session](TRANSACTIONS.md) spans destinations and servers by "
        "itself",
    ),
    RefusedName(
        "weblogic.ThreadPoolSize",
        ("threadPoolSize",),
        "each consumer with a listener has a thread of its own, so no listener waits for others",
    ),
    RefusedName(
        "MULTICAST_NO_ACKNOWLEDGE", ("MULTICAST_NO_ACKNOWLEDGE",), "messages are read from a log, not broadcast"
    ),
    RefusedName(
        "Store-and-Forward agents",
        ("safAgent", "safAgents"),
        "a sender writes into the destination's table, which needs no server to be up, so nothing is stored to be forwarded",
    ),
    RefusedName(
        "SAF remote context",
        ("safRemoteContext", "safImportedDestinations"),
        "a program reaches a domain by its root, from everywhere; its compression is `defaultCompressionThreshold`",
    ),
    RefusedName(
        "Messaging Bridge",
        ("bridge", "bridges", "messagingBridge"),
        "a Spark query reads from one domain, or from any other source, and writes to another",
    ),
    RefusedName(
        "Connection factory targets",
        ("target", "targets", "subDeploymentName", "defaultTargetingEnabled"),
        "no server routes messages: each process reads and writes the tables itself; `servers` of a destination says where "
        "positions are",
    ),
    RefusedName(
        "Resource references",
        ("resourceReference", "resourceReferences"),
        "no container wraps connections: `spark_jms.connect_pool` pools them",
    ),
    RefusedName(
        "Dispatch policy, work managers",
        ("dispatchPolicy", "workManager", "maxThreadsConstraint"),
        "no threads of a server run listeners: each has a thread of its own",
    ),
    RefusedName(
        "Restart on Failure",
        ("restartOnFailure", "restartInPlace"),
        "a server has no process to restart: another process takes over as the engine of its store",
    ),
    RefusedName(
        "Maximum message size of a protocol",
        ("maxT3MessageSize", "maxIIOPMessageSize", "maxHTTPMessageSize", "maxCOMMessageSize"),
        "messages pass through no protocol of a server; `maxMessageSize` of destinations and connection factories limits them",
    ),
)
_REASONS = {key.casefold(): one.reason for one in REFUSED for key in one.keys}


def refusal_of(name: str) -> str | None:
    """Why this name is refused, as people read it in an error; None: it is no name of the texts without a counterpart."""
    reason = _REASONS.get(name.casefold())
    return None if reason is None else reason.replace("[transacted session](TRANSACTIONS.md)", "transacted session")
