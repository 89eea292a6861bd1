"""What the parts of one daemon share. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.settings.store import DaemonSettings
from spark_jms.store.regions.core.clock import DaemonClock
from spark_jms.store.regions.core.copies import Copies
from spark_jms.store.regions.core.directory import Holder
from spark_jms.store.regions.core.directory_view import DirectoryView
from spark_jms.store.regions.core.outgoing import Outgoing
from spark_jms.store.regions.core.peers import Peers


@dataclass(frozen=True)
class Shared:
    """The leaves: none of them knows a primary, an opening or any other part that uses it."""

    me: Holder
    settings: DaemonSettings
    clock: DaemonClock
    out: Outgoing
    directory: DirectoryView
    peers: Peers
    copies: Copies
