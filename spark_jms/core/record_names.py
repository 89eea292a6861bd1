"""The names of records in the store. They carry the id of the destination's table, not its name: a destination
that is dropped and created again starts with records of its own, and renaming one moves nothing.

Features: C9, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

MEMBERS_PREFIX = "members/"
DOMAIN_RECORD = "domain"  # of the domain's own store: which domain it serves


def member_record(table_id: str, subscription: str, member: int) -> str:
    """The record set of a member."""
    return f"{members_prefix(table_id, subscription)}{member}"


def members_prefix(table_id: str, subscription: str) -> str:
    return f"{MEMBERS_PREFIX}{table_id}/{subscription}/"


def consumer_record(table_id: str, subscription: str, consumer: str) -> str:
    """The record that a running query holds for life."""
    return f"{consumers_prefix(table_id)}{subscription}/{consumer}"


def consumers_prefix(table_id: str) -> str:
    return f"consumers/{table_id}/"


def uses_record(table_id: str) -> str:
    """Which consumers use which subscriptions of a topic."""
    return f"subscribers/{table_id}"


def client_record(client_id: str) -> str:
    """Held by the one connection with a restricted client id."""
    return f"clients/{client_id}"


def lease_record(table_id: str) -> str:
    """The lease of the one process that does the destination's housekeeping."""
    return f"housekeeping/{table_id}"


def prefixes_of_table(table_id: str) -> list[str]:
    """Every record of a destination begins with one of these."""
    return [f"members/{table_id}/", consumers_prefix(table_id), lease_record(table_id), uses_record(table_id)]
