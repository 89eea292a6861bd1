"""Bugs to plant in distributed topics, one at a time: the model of tests/models/topics must notice each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_jms.claims.consumers import branches
from spark_jms.claims.messages import scan
from spark_jms.claims.records import subscriptions
from spark_jms.claims.servers import stores
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.core.destinations import servers as core_servers
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.servers import Outages
from spark_jms.errors import ServerDownError
from spark_jms.log.destinations import servers as log_servers
from tests.models.planted.patch import Patch, PlantedPatch


def outages_are_not_noted(patch: Patch) -> None:
    patch.setattr(log_servers, "with_outages", lambda snapshot, after: after)


def outages_end_with_the_outage(patch: Patch) -> None:
    original = Outages.from_json
    patch.setattr(Outages, "from_json", lambda stored: replace(original(stored), over={}))


def outage_begins_late(patch: Patch) -> None:
    original = core_servers._behind
    patch.setattr(core_servers, "_behind", lambda members: {m: first + 1 for m, first in original(members).items()})


def persistent_messages_are_skipped_too(patch: Patch) -> None:
    def missed(batch: Any, sequences: pa.Int64Array, ranges: Any) -> pa.BooleanArray:
        return pa.array([n in ranges for n in sequences.to_pylist()])

    patch.setattr(scan, "_missed", missed)


def one_server_that_is_down_stops_senders(patch: Patch) -> None:
    def check_up(self: Destination, members: Any) -> None:
        if self.down:
            raise ServerDownError()

    patch.setattr(Destination, "check_up", check_up)


def purge_does_not_ask_who_listens(patch: Patch) -> None:
    patch.setattr(Housekeeper, "live_names", lambda self: [])


def positions_are_looked_for_at_the_member(patch: Patch) -> None:
    patch.setattr(stores, "record_server", lambda declared, name, member: declared.server_of(member))


def new_subscription_begins_at_the_front(patch: Patch) -> None:
    original = subscriptions.start_floors
    patch.setattr(subscriptions, "start_floors", lambda snapshot, position: original(snapshot, "earliest"))


def members_are_looked_for_at_their_server(patch: Patch) -> None:
    patch.setattr(branches, "recorded_on", lambda declared, server, name: declared.members_on(server))


PLANTED_IN_TOPICS = [
    PlantedPatch("outages are not noted", "got what its server has missed", outages_are_not_noted),
    PlantedPatch("outages end with the outage", "got what its server has missed", outages_end_with_the_outage),
    PlantedPatch("an outage begins late", "got what its server has missed", outage_begins_late),
    PlantedPatch(
        "persistent messages are skipped", "has lost|which it has not received", persistent_messages_are_skipped_too
    ),
    PlantedPatch("one down server stops senders", "one server is enough", one_server_that_is_down_stops_senders),
    PlantedPatch("purge does not ask who listens", "DataLossError|has lost", purge_does_not_ask_who_listens),
    PlantedPatch(
        "positions are looked for at the member",
        "the purge has left|which it has not received|was purged|DataLossError",
        positions_are_looked_for_at_the_member,
    ),
    PlantedPatch(
        "a new subscription begins at the front",
        "got what was sent before it began",
        new_subscription_begins_at_the_front,
    ),
    PlantedPatch(
        "members are looked for at their server", "has lost|got a message twice", members_are_looked_for_at_their_server
    ),
]
