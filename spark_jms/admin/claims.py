"""Revoke a claim.

Features: C16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_jms.claims import views
from spark_jms.claims.open_records import opened_records
from spark_jms.claims.record_sets import label_of
from spark_jms.claims.stores import record_of
from spark_jms.errors import JmsqError
from spark_jms.log.domain import Domain
from spark_jms.store import Store


def find_claim(domain: Domain, store: Store, destinations: Sequence[str], claim: str) -> list[views.ClaimRow]:
    """The parts of an open claim, one per member. Raises JmsqError when there is none."""
    rows = [row for name in destinations for row in views.claims(domain, store, name) if row.claim == claim]
    return _known(rows, claim)


def release_claim(domain: Domain, store: Store, rows: Sequence[views.ClaimRow], wait_s: float) -> list[views.ClaimRow]:
    """Revoke the claim that `find_claim` found on every member, in one write. Returns the revoked parts."""
    claim = rows[0].claim
    names = {record_of(domain.log(row.destination).snapshot, row.subscription, row.member): row for row in rows}
    labels = {record: label_of(row.destination, row.subscription, row.member) for record, row in names.items()}
    logged = any(domain.log(row.destination).snapshot.destination.message_logging_enabled for row in rows)
    with opened_records(store, labels, wait_s, "claims --release", logged=logged) as records:
        there = [name for name in names if claim in records.states[name].claims]
        revoked = [replace(names[name], messages=records.states[name].claims[claim].picks.count) for name in there]
        records.change({name: records.states[name].revoke(claim) for name in there})
    return _known(revoked, claim)


def _known(rows: list[views.ClaimRow], claim: str) -> list[views.ClaimRow]:
    if not rows:
        raise JmsqError(
            f"there is no open claim {claim!r} (`jmsq claims` lists them): it was acknowledged or released already"
        )
    return rows
