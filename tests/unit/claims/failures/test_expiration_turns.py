"""How many expired messages a consumer logs beside its deliveries (T6)."""

from __future__ import annotations

from typing import Any

from spark_jms.claims.failures import expiration
from spark_jms.core.destinations.destination import Destination

HOUR_MS = 3_600_000


def test_consumer_pauses_only_where_nothing_depends_on_the_expired_messages() -> None:
    """T4, T6, T12: not for a limit that counts them, a unit of work, or those that cost nothing but their record."""

    def most(**settings: Any) -> list[int | None]:
        declared = Destination("x", "topic", expiration_policy=settings.pop("expiration_policy", "Log"), **settings)
        made = expiration.Expiration(*[None] * 4, lambda: HOUR_MS, beside=True)  # type: ignore[arg-type]
        made._delivered_ms = HOUR_MS - 1
        return [made._most(declared) for _ in range(2)]

    assert most() == [expiration.DELIVERING, 0]
    assert most(expiration_policy="Discard") == [None, None]
    assert most(messages_limit_override=10) == [expiration.IDLE, expiration.IDLE]
    assert most(unit_of_work_handling_policy="SingleMessageDelivery") == [None, None]
