"""What a connection's factory and home server decide: the members of its senders and receivers, the pipeline of its
consumers, and whether its senders wait.

Features: D2, D3, T9, T11 (docs/FEATURES.md)
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from spark_jms.client.durations import seconds_of
from spark_jms.client.listener import ExceptionListener
from spark_jms.client.one_way import OneWaySends
from spark_jms.client.pinning import Pinning
from spark_jms.client.pipeline import Pipeline
from spark_jms.core.address import DestinationAddress
from spark_jms.core.balancing import Balancing, balancing_of
from spark_jms.core.one_way import OneWayRule
from spark_jms.errors import OptionError
from spark_jms.log.domain import Domain
from spark_jms.log.message_buffer import MessageBuffer
from spark_jms.log.servers import home_server
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.duration import DurationLike


@dataclass(frozen=True)
class Choices:
    """`home` None: the connection prefers no server."""

    factory: ConnectionFactory
    home: str | None

    @property
    def pinning(self) -> Pinning:
        return Pinning(self.factory.pin_receivers, self.home if self.factory.server_affinity_enabled else None)

    def balancing(self, server: str | None) -> Balancing:
        """Of a new producer; `server` when its address names one."""
        return balancing_of(self.factory, server, self.home, secrets.token_hex(8))

    def threshold(self, given: int | None) -> int | None:
        """From how many bytes on a new producer compresses a body; None: never. Raises OptionError."""
        if given is not None and (type(given) is not int or given < 0):
            raise OptionError(f"compression_threshold is {given!r}, but must be a number of bytes, 0 or more")
        return self.factory.default_compression_threshold if given is None else given

    def transaction_timeout_s(self, given: DurationLike | None, *, database: bool) -> float:
        """Of a new transacted session, with a last resource or without. Raises OptionError."""
        if given is None and database:
            return self.factory.database_transaction_timeout_ms / 1000
        if given is None:
            return self.factory.transaction_timeout_ms / 1000
        return seconds_of("timeout", given)

    def pipeline(self, prefetch: int | None, buffer: MessageBuffer, *, listener: bool, topic: bool) -> Pipeline:
        """Of a new consumer; `prefetch` None: as the connection factory says."""
        maximum = self.factory.pipeline(listener=listener, topic=topic) if prefetch is None else prefetch
        return Pipeline(maximum, self.factory.max_message_bytes, buffer)

    def one_way(self, address: DestinationAddress, listener: ExceptionListener | None) -> OneWaySends | None:
        """Of a new producer; None: each of its sends waits."""
        if not self.factory.sends_one_way:
            return None
        return OneWaySends(OneWayRule(self.factory, address, self.home), listener)


def choices_of(domain: Domain, factory: str | ConnectionFactory | None, server: str | None) -> Choices:
    """Raises DomainError when the domain has no connection factory or server of that name, OptionError for anything else."""
    home = home_server(domain.servers, server)
    if factory is not None and not isinstance(factory, str | ConnectionFactory):
        raise OptionError(f"connection_factory is {factory!r}, but must be a name or a ConnectionFactory")
    made = domain.connection_factories.get(factory) if isinstance(factory, str) else factory or ConnectionFactory()
    return Choices(made, home)
