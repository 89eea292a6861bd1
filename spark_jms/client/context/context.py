"""An application's connection to a domain: the store, the background threads, the producers and consumers.

Features: C10, C11, C15, D2, D3, T8, T9, T11, T16, T17, M1, M5 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_jms.claims.records.subscriptions import Sharing, claim_client_id
from spark_jms.claims.servers.stores import open_stores, store_of
from spark_jms.claims.transactions.last_resource import LastResource
from spark_jms.claims.transactions.transaction import Coordinators
from spark_jms.claims.upkeep.housekeeping import BackgroundThread
from spark_jms.claims.upkeep.power_loss import open_given_domain
from spark_jms.claims.upkeep.views import drop_subscription, droppable_subscription
from spark_jms.client.context.clients import ConnectionDefaults, ContextConsumers, ContextProducers, choices_of
from spark_jms.client.context.destinations import ContextDestinations, OwnedDestinations, TemporaryDestination
from spark_jms.client.context.metrics import ContextStatistics
from spark_jms.client.messages.message import (
    Closable,
    ExceptionListener,
    Message,
    MessageArguments,
    MessageListener,
    OwningProcess,
    seconds_of,
)
from spark_jms.client.receiving.browser import Browser
from spark_jms.client.receiving.consumer import (
    Consumer,
    GivenConsumer,
    StartingPosition,
    check_listener,
    check_mode,
    check_resource,
    end_with_context,
)
from spark_jms.client.receiving.receiver import AcknowledgeMode
from spark_jms.client.receiving.request import Replies, ReplyWait, Requestor
from spark_jms.client.sending.asynchronous_send import AsynchronousSender
from spark_jms.client.sending.producer import DEFAULT_SEND_TIMEOUT_S, Producer
from spark_jms.client.transactions.session import TransactedSession
from spark_jms.client.transactions.transaction import SessionTransaction
from spark_jms.core.destinations.destination import Subscription
from spark_jms.core.destinations.routing import DestinationAddress
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import ClientIdentity, ClientIdPolicy
from spark_jms.core.selector import Selector
from spark_jms.errors import ClosedError, IllegalStateException, InvalidDestinationError, OptionError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.paging import MessageBuffer, buffer_of
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.table import needs
from spark_jms.settings.types import DurationLike
from spark_jms.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from spark_jms.client.context.metrics import ContextCollector
    from spark_jms.log.changes.feed import ChangeFeed

TRANSACTION_TIMES_EVERY_S = 1.0
UNSUBSCRIBE_TIMEOUT_S = 15.0  # wait for a record of the subscription


def connect(
    root: str | os.PathLike[str] | None = None,
    *,
    housekeeping: bool = True,
    client_id: str | None = None,
    client_id_policy: ClientIdPolicy = "restricted",
    connection_factory: str | ConnectionFactory | None = None,
    server: str | None = None,
) -> Context:
    """Open the domain at `root`, or at the environment variable JMSQ_ROOT. Use it in a `with` statement.

    `housekeeping=False` leaves purge and compaction to other processes: for short-lived programs. The `client_id` and
    its policy qualify the names of subscriptions. While a connection with a restricted id is open, another one with
    that id is refused (InvalidClientIDException); any number of connections may have an unrestricted id.
    `connection_factory` is the name of one in the module file, or a ConnectionFactory. `server` is the home server,
    which senders and pinned receivers prefer (None: the environment variable JMSQ_SERVER). Raises DomainError when
    there is no domain, connection factory or server of that name.
    """
    identity = ClientIdentity(client_id, client_id_policy)
    domain = open_given_domain(root)
    pa.array([0])  # the first array makes pyarrow import pandas (a third of a second): pay for it here
    choices = choices_of(domain, connection_factory, server)
    return Context(domain, housekeeping, identity, choices, buffer_of(choices.factory))


class Context(Closable):
    """Thread-safe; one per process is enough. Closing it closes everything that it has created. In a forked child its
    calls, and those of all objects that it has created, raise ForkedProcessError, and closing them has no effect: the
    child connects for itself.

    Failures of the background work are in `statistics()` and in the log. A consumer's next call raises an error of its own
    hand-over, and of the acknowledgement table when that could not be written for a minute; nothing else of the
    background work raises.
    """

    def __init__(
        self,
        domain: Domain,
        housekeeping: bool,
        identity: ClientIdentity,
        choices: ConnectionDefaults,
        buffer: MessageBuffer,
    ) -> None:
        self.root, self.client_id = domain.root, identity.client_id
        self._process = OwningProcess()
        self._domain, self._choices = domain, choices
        self._store: Store = open_stores(domain)
        try:
            self._client = claim_client_id(self._store, identity)
        except BaseException:
            self._store.close()
            raise
        self._closed = False
        self._lock = threading.RLock()
        self._background = BackgroundThread("client")
        self._asynchronous = AsynchronousSender(linger_s=choices.factory.asynchronous_send_linger_ms / 1000)
        self._buffer = buffer
        self._sessions: list[TransactedSession] = []
        self._coordinators = Coordinators(domain, self._store)
        self._owned = OwnedDestinations(domain, store_of(self._store, HOME), choices.factory.max_message_bytes)
        self._destinations = ContextDestinations(
            domain, identity, self._store, self._owned.store, self._background, self._check, housekeeping=housekeeping
        )
        self._producers = ContextProducers(domain, self._destinations, choices, self._asynchronous, buffer, self._check)
        reply = Replies(self._producers.create_for_replies).send
        self._consumers = ContextConsumers(
            domain, self._destinations, choices, buffer, self._background, reply, self._check
        )
        self._requestor = Requestor(self._open_inbox, self._discard_inbox, self._producers.create_for_requests)

    # -- producers, consumers, browsers --------------------------------------------------------------------------------------------
    def producer(
        self,
        destination: str,
        *,
        send_timeout: DurationLike = DEFAULT_SEND_TIMEOUT_S,
        exception_listener: ExceptionListener | None = None,
        compression_threshold: int | None = None,
        producer_id: str | None = None,
    ) -> Producer:
        """A producer for a destination, or for its member on a server (`server@destination`), which then gets all
        messages.

        `send_timeout` is how long a send waits while insertion is paused; 0: not at all. `exception_listener` is called
        with the error of a failed one-way send, which closes the producer. Bodies of at least `compression_threshold`
        bytes are compressed (None: the value of the connection factory, never). With `producer_id` the table counts the
        producer's messages and ignores repeated ones; the producer sends nothing one-way, and fences producers that
        were created with this id before (by one commit). Raises OptionError, and InvalidDestinationError, which lists
        the existing destinations, or the servers of this one."""
        self._check()
        send_timeout_s = seconds_of("send_timeout", send_timeout)
        check_listener("exception_listener", exception_listener)
        address = DestinationAddress.parse(destination)
        threshold = self._choices.threshold(compression_threshold)
        one_way = self._choices.one_way(address, exception_listener) if producer_id is None else None
        return self._producers.create(address, send_timeout_s, one_way, threshold, producer_id)

    def consumer(
        self,
        destination: str,
        *,
        selector: str | None = None,
        subscription: str | None = None,
        durable: bool | None = None,
        sharing: Sharing = "sharable",
        starting_position: StartingPosition | None = None,
        acknowledge: AcknowledgeMode = "client",
        prefetch: int | None = None,
        members: int | Iterable[int] | None = None,
        pin: bool | None = None,
        listener: MessageListener | None = None,
        exception_listener: ExceptionListener | None = None,
        fail_on_data_loss: bool = True,
    ) -> Consumer:
        """A consumer of a queue, or of a topic's `subscription`. A named subscription is durable unless `durable` is False;
        one that is not durable ends with its last consumer. Without a name the consumer has a subscription of its own, which
        is not durable. Consumers that name the same subscription share its messages; `sharing="exclusive"` excludes others
        (SubscriptionInUseError).

        A new durable subscription starts at `starting_position` (default "latest": messages sent from now on): "earliest", a
        datetime, {"sequence": 17} or {"sequence": {0: 17, 2: 5}} by member.

        The consumer shares all members with the other consumers, unless `members` pins it to some. `server@destination` pins
        it to the member on that server, and `pin=True` to a member of a queue that is chosen now (None: as the connection
        factory says). Such a consumer ends with a MemberLostException when it cannot reach that member any more.

        `acknowledge` is "client", "individual", "auto" or "dups-ok": see client/receiving/consumer.py. The consumer
        claims `prefetch` messages at a time (None: the value of the connection factory, 10; -1: any number), at most
        `maxMessageSize` of the connection factory together, and no other consumer gets them: keep it small if
        processing a message takes long. With `fail_on_data_loss=False` the consumer skips messages deleted from the
        table; otherwise they raise DataLossError.

        With a `listener`, a thread of the consumer calls it with each message until the consumer is closed.
        Raises OptionError, InvalidSelectorError, InvalidDestinationError, SubscriptionInUseError, and MemberUnavailableError
        when there is no member to pin to.
        """
        self._check()
        check_mode(acknowledge)
        given = GivenConsumer(
            destination,
            selector,
            subscription,
            durable,
            sharing,
            starting_position,
            prefetch,
            members,
            pin,
            listener,
            exception_listener,
            fail_on_data_loss,
        )
        return self._consumers.create(given, acknowledge)

    def last_resource(self, name: str, connect: Callable[[], Any], *, create: bool = False) -> None:
        """Register a database that can decide transactions, under a name that all processes of the domain use for it.
        `connect` gives a new connection of the Python database interface, to SQLite or PostgreSQL. With `create`, its
        table is created if it does not exist. The call completes transactions that are in doubt for this database.
        Raises OptionError and LastResourceError."""
        self._check()
        check_resource(name, connect)
        resource = LastResource(name, connect)
        if create:
            resource.create_table()
        self._coordinators.resources.add(resource)
        self._coordinators.recover()

    def transacted_session(
        self, *, timeout: DurationLike | None = None, last_resource: str | None = None
    ) -> TransactedSession:
        """A session whose sends and acknowledgements, over any number of destinations, are one transaction up to its
        next `commit()` or `rollback()`. A transaction that takes longer than `timeout` is rolled back (None: the
        `transactionTimeout` of the connection factory, 1 h, or its `databaseTransactionTimeout`, 30 s). With
        `last_resource`, the application's changes through the session's `connection` are part of it. Raises OptionError
        and LastResourceError."""
        self._check()
        timeout_s = self._choices.transaction_timeout_s(timeout, database=last_resource is not None)
        resource = None if last_resource is None else self._coordinators.resources.find(last_resource)
        transaction = SessionTransaction(self._coordinators, timeout_s, self._destinations.sent, self._buffer, resource)
        producers, consumers = self._producers.create_transacted, self._consumers.create_transacted
        session = TransactedSession(transaction, producers, consumers, self._session_closed)
        with self._lock:
            self._sessions.append(session)
        self._background.add("time-outs of a transacted session", session.end_late, TRANSACTION_TIMES_EVERY_S)
        return session

    def browser(
        self,
        destination: str,
        *,
        selector: str | None = None,
        subscription: str | None = None,
        limit: int | None = None,
        include_finished: bool = False,
        pin: bool | None = None,
    ) -> Browser:
        """Look at the messages of a destination, or of its member on a server (`server@destination`), without consuming
        them; with `include_finished`, also at those that are finished and still in the table. With `pin=True` the browser
        shows one member of a queue, which is chosen now (None: as the connection factory says).

        Raises InvalidDestinationError, InvalidSelectorError, OptionError, and MemberUnavailableError when there is no member
        to pin to.
        """
        self._check()
        address = DestinationAddress.parse(destination)
        subscription = self._destinations.kept_at(address, subscription)
        if limit is not None and (type(limit) is not int or limit < 0):
            raise OptionError(f"limit is {limit!r}, but must be a whole number, 0 or more")
        if include_finished and subscription is not None:
            raise OptionError("include_finished shows every message, whatever the subscription: give one of the two")
        wanted = Selector.parse(selector)
        store = self._destinations.store_of(address.destination)
        shown = self._choices.pinning.browser(store, self._destinations.log(address.destination), address, pin)
        return Browser(self._domain, store, shown, subscription, wanted, limit, include_finished, self._check)

    def changes(self, destination: str | None = None, since: str = "earliest") -> ChangeFeed:
        """What happened to the messages of a destination (None: of all): sent, finished, expired, moved and so on, a row for each
        range. It consumes nothing. Iterate over it for what is there now; `since` is "earliest", "latest", or the `position` of an
        earlier feed. Raises InvalidDestinationError, OffsetError, OptionError."""
        from spark_jms.log.changes.feed import ChangeFeed

        self._check()
        return ChangeFeed(self._domain, destination, since)

    # -- request and reply -----------------------------------------------------------------------------------------
    def create_temporary_queue(self) -> TemporaryDestination:
        """A queue that is deleted when this context is closed or dies. Any context may send to it, by its `name`; only this
        one may consume from it."""
        return self._create_temporary("queue")

    def create_temporary_topic(self) -> TemporaryDestination:
        """A topic that is deleted when this context is closed or dies. Any context may send to it, by its `name`; only this
        one may subscribe to it."""
        return self._create_temporary("topic")

    def request(
        self, destination: str, *, timeout: DurationLike | None = None, **arguments: Unpack[MessageArguments]
    ) -> Message:
        """Send a message, with the arguments of `Producer.send`, and wait for its reply. The receiver replies with
        `message.reply(…)`, or sends to the message's `reply_to` with its correlation id. Several threads may wait at once.

        Raises RequestTimeoutError when no reply comes within `timeout` (None waits for ever), and what `Producer.send` raises.
        """
        return self._request(destination, timeout, arguments, ReplyWait())

    def _request(
        self, destination: str, timeout: DurationLike | None, arguments: Mapping[str, object], waiting: ReplyWait
    ) -> Message:
        timeout_s = None if timeout is None else seconds_of("timeout", timeout)
        self._check()
        return self._requestor.request(destination, arguments, timeout_s, waiting)

    def destinations(self) -> list[str]:
        """Their names, in order. Raises ClosedError."""
        self._check()
        return self._domain.destinations()

    def subscriptions(self, topic: str) -> list[Subscription]:
        """The durable subscriptions of a topic. Raises InvalidDestinationError."""
        self._check()
        declared = self._destinations.log(topic).snapshot.destination
        return [declared.subscriptions[name] for name in declared.subscription_names() if declared.is_topic]

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Drop a durable subscription and its backlog. Raises InvalidDestinationError when there is none, and
        IllegalStateException while a consumer uses it."""
        self._check()
        address = DestinationAddress.parse(topic)
        kept = self._destinations.kept_at(address, subscription)
        if not isinstance(kept, str):
            raise InvalidDestinationError(f"{topic} has no subscription {subscription!r}: give its name")
        store = self._destinations.store_of(address.destination)
        found = droppable_subscription(self._domain, store, address.destination, kept)
        drop_subscription(self._domain, store, found, UNSUBSCRIBE_TIMEOUT_S)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _session_closed(self, session: TransactedSession) -> None:
        self._background.remove(session.end_late)
        with self._lock:
            if session in self._sessions:
                self._sessions.remove(session)

    def _create_temporary(self, kind: str) -> TemporaryDestination:
        self._check()
        return TemporaryDestination(self._owned.create(kind), kind, self._delete_temporary)

    def _delete_temporary(self, name: str) -> None:
        consumers = [consumer.name for consumer in self._consumers.open.all() if consumer.destination == name]
        if consumers:
            raise IllegalStateException(f"{name} has open consumers ({', '.join(consumers)}): close them first")
        self._destinations.stop_using(name)
        self._producers.forget(name)
        self._owned.delete(name)

    def _open_inbox(self, listener: MessageListener, exception_listener: ExceptionListener) -> Consumer:
        queue = self.create_temporary_queue()
        return self.consumer(queue.name, acknowledge="auto", listener=listener, exception_listener=exception_listener)

    def _discard_inbox(self, inbox: Consumer) -> None:
        inbox.close()
        self._delete_temporary(inbox.destination)

    def _check(self) -> None:
        """Raises ClosedError when the context is closed, and ForkedProcessError in a forked child."""
        self._process.check()
        if self._closed:
            raise ClosedError("this context is closed: connect again")

    # -- the end --------------------------------------------------------------------------------------------------
    def statistics(self) -> ContextStatistics:
        """What is open now, how much was open, and which background work fails. Raises IllegalStateException in a forked child."""
        self._process.check()
        producers, consumers = self._producers.open, self._consumers.open
        return ContextStatistics(
            len(producers),
            len(consumers),
            self._destinations.with_housekeeping(),
            (*self._destinations.failures(), *self._background.health.failures.values()),
            self._destinations.failed_attempts() + self._background.health.failed_attempts,
            producers.high,
            consumers.high,
            producers.total,
            consumers.total,
            self._asynchronous.failures,
            self._buffer.statistics(),
        )

    def reset_statistics(self) -> None:
        """The high marks begin with what is open now, and the totals at 0."""
        self._process.check()
        self._producers.open.reset()
        self._consumers.open.reset()

    def metrics(self) -> ContextCollector:
        """What its producers and consumers have done, for Prometheus: `prometheus_client.REGISTRY.register(context.metrics())`. Needs
        `spark-jms[metrics]`."""
        with needs("metrics"):
            from spark_jms.client.context.metrics import ContextCollector
        return ContextCollector(self.statistics, self._producers.open, self._consumers.open, self._process)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the consumers, as their own `close` does, then the producers, once their asynchronous sends are complete, then
        everything else. Raises the first error of closing them, and IllegalStateException in a completion listener."""
        self._end(orderly=True)

    def _end(self, *, orderly: bool) -> None:
        if self._process.is_parent:
            return
        self._asynchronous.refuse_in_listener("Context.close")
        with self._lock:
            if self._closed:
                return
            sessions = list(self._sessions)
        consumers, producers = self._consumers.open.all(), self._producers.open.all()
        self._requestor.close()
        unreported: list[Exception] = []
        closing: list[Callable[[], None]] = [
            *(session.close for session in sessions),
            *(partial(end_with_context, consumer, orderly=orderly) for consumer in consumers),
            *(producer.close for producer in producers),
        ]
        for close in closing:
            try:
                close()
            except Exception as error:  # noqa: BLE001 - raised below, after the others are closed
                unreported.append(error)
        self._asynchronous.close()
        with self._lock:
            self._closed = True
        self._consumers.stop_watching()
        self._background.close()
        self._destinations.close()
        self._coordinators.close()
        self._owned.close()
        self._store.close()
        self._buffer.close()
        if unreported:
            raise unreported[0]

    def __repr__(self) -> str:
        made = f"{len(self._producers.open)} producer(s), {len(self._consumers.open)} consumer(s)"
        state = "of the parent process" if self._process.is_parent else "closed" if self._closed else made
        return f"<Context {self.root}: {state}>"
