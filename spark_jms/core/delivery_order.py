"""The order in which a destination delivers: FIFO, its destination keys, or units of work together. Pure.

Features: T12, T15 (docs/FEATURES.md)
"""

from __future__ import annotations

from spark_jms.core.sort_order import SortOrder
from spark_jms.core.unit_of_work import UnitOfWorkOrder
from spark_jms.settings.destination import DestinationSettings

DeliveryOrder = SortOrder | UnitOfWorkOrder


def delivery_order(destination: DestinationSettings) -> DeliveryOrder:
    return UnitOfWorkOrder() if destination.handles_units_of_work else SortOrder.of(destination.destination_keys)
