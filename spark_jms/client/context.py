"""An application's connection to a domain: the store, the background threads, the producers and consumers (C11)."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from spark_jms.claims.background import BackgroundThread
from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.client_claim import claim_client_id
from spark_jms.claims.distributed import AnySubscriber, open_subscriber
from spark_jms.claims.housekeeper import Housekeeper
from spark_jms.claims.stores import open_stores, store_of
from spark_jms.claims.subscription_request import Sharing, subscription_request
from spark_jms.claims.subscriptions import drop_subscription, droppable_subscription
from spark_jms.claims.usage import PUBLISH_EVERY_S, UsagePublisher
from spark_jms.client.asynchronous_send import AsynchronousSender
from spark_jms.client.browser import Browser
from spark_jms.client.choices import Choices, choices_of
from spark_jms.client.consumer import Consumer
from spark_jms.client.consumer_arguments import (
    StartingPosition,
    check_delivery,
    check_listener,
    check_listeners,
    named_members,
    starting_position_option,
)
from spark_jms.client.durations import seconds_of
from spark_jms.client.flow import Flows
from spark_jms.client.listener import ExceptionListener, ListenerThread, MessageListener
from spark_jms.client.message import Message, MessageArguments
from spark_jms.client.one_way import OneWaySends
from spark_jms.client.producer import DEFAULT_SEND_TIMEOUT_S, Producer
from spark_jms.client.receiver import AcknowledgeMode, Receiver
from spark_jms.client.reply import Replies
from spark_jms.client.request import Requestor
from spark_jms.client.shared_send import SharedSender
from spark_jms.client.temporary import OwnedDestinations, TemporaryDestination
from spark_jms.core.address import DestinationAddress
from spark_jms.core.client_identity import ClientIdentity, ClientIdPolicy
from spark_jms.core.destination import Subscription, is_temporary
from spark_jms.core.health import BackgroundFailure
from spark_jms.core.placement import HOME
from spark_jms.core.selector import Selector
from spark_jms.core.subscription_place import kept_at
from spark_jms.errors import (
    ClosedError,
    DomainError,
    IllegalStateException,
    InvalidDestinationError,
    ModuleFileError,
    OptionError,
)
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.sender_housekeeping import SenderHousekeeping
from spark_jms.log.watch import LogWatch
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.duration import DurationLike
from spark_jms.settings.environment import ROOT_VARIABLE
from spark_jms.store import Store

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T", Producer, Consumer)

HAND_OVER_EVERY_S = 0.1
HOUSEKEEPING_EVERY_S = 2.0
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

    `housekeeping=False` leaves purge and compaction to other processes: for short-lived programs. The names of subscriptions
    belong to the `client_id` and its policy. While a connection with a restricted id is open, another one with it is refused
    (InvalidClientIDException); unrestricted ones may be many (C10). `connection_factory` is the name of one in the module
    file, or one made here (D2). `server` is the home server, which senders and pinned receivers prefer (None: the environment
    variable JMSQ_SERVER).
    Raises DomainError when there is no domain, connection factory or server of that name.
    """
    identity = ClientIdentity(client_id, client_id_policy)
    where = os.fspath(root) if root is not None else os.environ.get(ROOT_VARIABLE, "")
    if not where:
        raise DomainError(f"no root: give connect(root) the domain's directory or URL, or set {ROOT_VARIABLE}")
    domain = Domain(where)
    pa.array([0])  # the first array makes pyarrow import pandas (a third of a second): pay for it here
    return Context(domain, housekeeping, identity, choices_of(domain, connection_factory, server))


@dataclass(frozen=True)
class ContextStatistics:
    """`…_high` and `…_total`: the most that were open at once, and how many were opened, since the context was opened or its
    statistics were reset (T17)."""

    producers: int
    consumers: int
    destinations: tuple[str, ...]  # those under this context's housekeeping
    failures: tuple[BackgroundFailure, ...] = ()  # background work that fails now
    failed_attempts: int = 0  # of background work, since the context was opened
    producers_high: int = 0
    consumers_high: int = 0
    producers_total: int = 0
    consumers_total: int = 0
    listener_failures: int = 0  # completion listeners that raised

    @property
    def healthy(self) -> bool:
        return not self.failures


@dataclass
class _Opened:
    high: int = 0
    total: int = 0

    def count(self, current: int) -> None:
        self.high, self.total = max(self.high, current), self.total + 1


class Context:
    """Thread-safe; one per process is enough. Closing it closes everything it has made.

    Failures of the background work are in `statistics()` and in the log. A consumer's next call raises an error of its own
    hand-over, and of the acknowledgement table when that could not be written for a minute; nothing else of the
    background work raises.
    """

    def __init__(self, domain: Domain, housekeeping: bool, identity: ClientIdentity, choices: Choices) -> None:
        self.root, self.client_id = domain.root, identity.client_id
        self._domain, self._identity, self._choices = domain, identity, choices
        self._store: Store = open_stores(domain)
        try:
            self._client = claim_client_id(self._store, identity)
        except BaseException:
            self._store.close()
            raise
        self._background = BackgroundThread("client")
        # A thread of its own: compaction must not delay a hand-over.
        self._housekeeping_thread = BackgroundThread("client housekeeping")
        self._lock = threading.RLock()
        self._housekeeping = housekeeping
        self._housekeepers: dict[str, Housekeeper] = {}
        self._sending = SenderHousekeeping(domain)
        self._shared: dict[str, SharedSender] = {}
        self._publishers: dict[str, UsagePublisher] = {}
        self._asynchronous = AsynchronousSender()
        self._flows = Flows(domain, choices.factory)
        self._watch = LogWatch()
        self._producers: list[Producer] = []
        self._consumers: list[Consumer] = []
        self._opened: dict[type, _Opened] = {Producer: _Opened(), Consumer: _Opened()}
        self._owned = OwnedDestinations(domain, store_of(self._store, HOME))
        self._replies = Replies(self._reply_producer)
        self._requestor = Requestor(self._open_inbox, self._discard_inbox, self._request_producer)
        self._closed = False

    # -- producers, consumers, browsers --------------------------------------------------------------------------------------------
    def producer(
        self,
        destination: str,
        *,
        send_timeout: DurationLike = DEFAULT_SEND_TIMEOUT_S,
        exception_listener: ExceptionListener | None = None,
        compression_threshold: int | None = None,
    ) -> Producer:
        """Of a destination, or of its member on a server (`server@destination`), to which all messages go then (D3).

        `send_timeout` is how long a send waits while insertion is paused; 0: not at all. `exception_listener` is called with the
        error when a one-way send has failed and the producer is closed for it (T11). Bodies of at least `compression_threshold`
        bytes are compressed (None: as the connection factory says, never; T8). Raises OptionError, and
        InvalidDestinationError, which lists the existing destinations, or the servers of this one."""
        send_timeout_s = seconds_of("send_timeout", send_timeout)
        check_listener("exception_listener", exception_listener)
        address = DestinationAddress.parse(destination)
        threshold = self._choices.threshold(compression_threshold)
        return self._producer(address, send_timeout_s, self._choices.one_way(address, exception_listener), threshold)

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
        it to the member on that server, and `pin=True` to a member of a queue that is chosen now (D3; None: as the connection
        factory says). Such a consumer ends with a MemberLostException when it cannot reach that member any more.

        `acknowledge` is "client", "individual", "auto" or "dups-ok": see spark_jms/client/consumer.py. The consumer claims
        `prefetch` messages at a time (None: as the connection factory says, 10; -1: any number), at most `maxMessageSize` of
        the connection factory together, and no other consumer gets them: keep it small where processing a message takes long
        (T9). With `fail_on_data_loss=False` the consumer skips messages deleted from the table; otherwise they raise
        DataLossError.

        With a `listener`, a thread of the consumer calls it with each message until the consumer is closed.
        Raises OptionError, InvalidSelectorError, InvalidDestinationError, SubscriptionInUseError, and MemberUnavailableError
        when there is no member to pin to.
        """
        address = DestinationAddress.parse(destination)
        destination = address.destination
        log = self._use(destination)
        check_delivery(acknowledge, prefetch)
        check_listeners(listener, exception_listener)
        wanted = Selector.parse(selector)
        settings = ConsumerSettings(wanted, False, fail_on_data_loss, members=named_members(log, members))
        store = self._store_of(destination)
        settings = self._choices.pinning.receiver(settings, store, log, address, pin)
        request = subscription_request(
            log,
            self._kept(log, subscription),
            starting_position_option(starting_position),
            wanted,
            durable=durable,
            sharing=sharing,
            server=address.server,
            home=self._choices.pinning.home,
            members=settings.members,
        )
        consumer_name = f"client-{secrets.token_hex(6)}"
        subscriber = open_subscriber(self._domain, store, destination, request, consumer_name, settings)
        if settings.pinned:
            _take_up(subscriber)
        bell, check = threading.Event(), partial(self._check_consumer, consumer_name)
        pipeline = self._choices.pipeline(
            prefetch, listener=listener is not None, topic=log.snapshot.destination.is_topic
        )
        receiver = Receiver(subscriber, acknowledge, pipeline, check, bell, self._replies.send)
        thread = ListenerThread(receiver, listener, exception_listener) if listener is not None else None
        return self._started(log, receiver, thread, bell)

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
        shows one member of a queue, which is chosen now (D3; None: as the connection factory says).

        Raises InvalidDestinationError, InvalidSelectorError, OptionError, and MemberUnavailableError when there is no member
        to pin to.
        """
        address = DestinationAddress.parse(destination)
        subscription = self._kept_at(address, subscription)
        if limit is not None and (type(limit) is not int or limit < 0):
            raise OptionError(f"limit is {limit!r}, but must be a whole number, 0 or more")
        if include_finished and subscription is not None:
            raise OptionError("include_finished shows every message, whatever the subscription: give one of the two")
        wanted = Selector.parse(selector)
        store = self._store_of(address.destination)
        shown = self._choices.pinning.browser(store, self._log(address.destination), address, pin)
        return Browser(self._domain, store, shown, subscription, wanted, limit, include_finished, self._check)

    # -- request and reply -----------------------------------------------------------------------------------------
    def create_temporary_queue(self) -> TemporaryDestination:
        """A queue that is deleted when this context is closed or dies. Any context may send to it, by its `name`; only this
        one may consume from it (C15)."""
        return self._create_temporary("queue")

    def create_temporary_topic(self) -> TemporaryDestination:
        """A topic that is deleted when this context is closed or dies. Any context may send to it, by its `name`; only this
        one may subscribe to it (C15)."""
        return self._create_temporary("topic")

    def request(
        self, destination: str, *, timeout: DurationLike | None = None, **arguments: Unpack[MessageArguments]
    ) -> Message:
        """Send a message, with the arguments of `Producer.send`, and wait for its reply (C15). The receiver replies with
        `message.reply(…)`, or sends to the message's `reply_to` with its correlation id. Several threads may wait at once.

        Raises RequestTimeoutError when no reply comes within `timeout` (None waits for ever), and what `Producer.send` raises.
        """
        timeout_s = None if timeout is None else seconds_of("timeout", timeout)
        self._check()
        return self._requestor.request(destination, arguments, timeout_s)

    def destinations(self) -> list[str]:
        self._check()
        return self._domain.destinations()

    def subscriptions(self, topic: str) -> list[Subscription]:
        """The durable subscriptions of a topic. Raises InvalidDestinationError."""
        declared = self._log(topic).snapshot.destination
        return [declared.subscriptions[name] for name in declared.subscription_names() if declared.is_topic]

    def unsubscribe(self, topic: str, subscription: str) -> None:
        """Drop a durable subscription and its backlog. Raises InvalidDestinationError when there is none, and
        IllegalStateException while a consumer uses it (C10)."""
        address = DestinationAddress.parse(topic)
        kept = self._kept_at(address, subscription)
        assert kept is not None
        store = self._store_of(address.destination)
        found = droppable_subscription(self._domain, store, address.destination, kept)
        drop_subscription(self._domain, store, found, UNSUBSCRIBE_TIMEOUT_S)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _log(self, destination: str) -> DeltaLog:
        self._check()
        try:
            log = self._domain.log(destination)
        except (ModuleFileError, TypeError) as error:
            raise InvalidDestinationError(f"{destination!r} is not a destination: {error}") from None
        log.verify()  # what is made now belongs to the table of now
        return log

    def _kept_at(self, address: DestinationAddress, subscription: str | None) -> str | None:
        """What an existing subscription is kept as, of a topic or on its server."""
        log = self._log(address.destination)
        kept = self._kept(log, subscription, exists=True)
        return None if kept is None else kept_at(log.snapshot.destination, address.server, kept)

    def _kept(self, log: DeltaLog, subscription: str | None, *, exists: bool = False) -> str | None:
        """What a subscription of this client is kept as. One that `exists` may be named by any context without a client id.
        That a queue has none is found later."""
        given = exists and self.client_id is None
        if subscription is None or given or not log.snapshot.destination.is_topic:
            return subscription
        return self._identity.kept(subscription)

    def _use(self, destination: str) -> DeltaLog:
        log = self._log(destination)
        with self._lock:
            if self._housekeeping and destination not in self._housekeepers:
                self._housekeepers[destination] = Housekeeper(self._domain, self._store_of(destination), destination)
                run = self._housekeepers[destination].run
                self._housekeeping_thread.add(f"housekeeping of {destination}", run, HOUSEKEEPING_EVERY_S)
        return log

    def _store_of(self, destination: str) -> Store:
        """The store with its record sets."""
        return self._owned.store if is_temporary(destination) else self._store

    def _create_temporary(self, kind: str) -> TemporaryDestination:
        self._check()
        return TemporaryDestination(self._owned.create(kind), kind, self._delete_temporary)

    def _delete_temporary(self, name: str) -> None:
        with self._lock:
            consumers = [consumer.name for consumer in self._consumers if consumer.destination == name]
            if consumers:
                raise IllegalStateException(f"{name} has open consumers ({', '.join(consumers)}): close them first")
            housekeeper = self._housekeepers.pop(name, None)
            self._shared.pop(name, None)
        if housekeeper is not None:
            self._housekeeping_thread.remove(housekeeper.run)
            housekeeper.close()
        self._owned.delete(name)

    def _producer(
        self,
        address: DestinationAddress,
        send_timeout_s: float,
        one_way: OneWaySends | None = None,
        threshold: int | None = None,
    ) -> Producer:
        name = address.destination
        if is_temporary(name) and name not in self._domain.temporary.own:
            return self._keep(self._producers, self._temporary_producer(name, send_timeout_s, threshold))
        log = self._use(name)
        address.members(log.snapshot.destination)
        with self._lock:
            shared = self._shared.setdefault(name, SharedSender(log))
        producer = Producer(
            log,
            shared,
            self._asynchronous,
            self._check,
            self._after_send,
            self._forget(self._producers),
            send_timeout_s,
            self._choices.balancing(address.server),
            one_way,
            self._flows.of(log),
            threshold,
        )
        return self._keep(self._producers, producer)

    def _request_producer(self, destination: str) -> Producer:
        """Each of its sends waits: a request needs its message's id, and its errors."""
        address, threshold = DestinationAddress.parse(destination), self._choices.threshold(None)
        return self._producer(address, DEFAULT_SEND_TIMEOUT_S, threshold=threshold)

    def _reply_producer(self, destination: str) -> Producer:
        """Of a destination to which this context perhaps sends once: nothing of it is kept here."""
        if not is_temporary(destination):
            return self._request_producer(destination)
        return self._temporary_producer(destination, DEFAULT_SEND_TIMEOUT_S, self._choices.threshold(None))

    def _temporary_producer(self, destination: str, send_timeout_s: float, threshold: int | None) -> Producer:
        self._check()
        log = self._domain.temporary.log(destination)
        log.verify()
        return Producer(
            log,
            SharedSender(log),
            self._asynchronous,
            self._check,
            lambda *_: None,
            self._forget(self._producers),
            send_timeout_s,
            threshold=threshold,
        )

    def _open_inbox(self, listener: MessageListener, exception_listener: ExceptionListener) -> Consumer:
        queue = self.create_temporary_queue()
        return self.consumer(queue.name, acknowledge="auto", listener=listener, exception_listener=exception_listener)

    def _discard_inbox(self, inbox: Consumer) -> None:
        inbox.close()
        self._delete_temporary(inbox.destination)

    def _after_send(self, log: DeltaLog, version: int) -> None:
        if not self._housekeeping:
            self._sending.sent(log, version)

    def _keep(self, among: list[T], made: T) -> T:
        with self._lock:
            among.append(made)
            self._opened[type(made)].count(len(among))
        return made

    def _forget(self, among: list[T]) -> Callable[[T], None]:
        def forget(one: T) -> None:
            with self._lock:
                if one in among:
                    among.remove(one)

        return forget

    def _started(
        self, log: DeltaLog, receiver: Receiver, thread: ListenerThread | None, bell: threading.Event
    ) -> Consumer:
        consumer = Consumer(receiver, thread, partial(self._consumer_closed, receiver, bell))
        self._watch.add(log, bell.set)
        self._keep(self._consumers, consumer)
        self._background.add_consumer(
            receiver.name,
            receiver.hand_over,
            HAND_OVER_EVERY_S,
            receiver.flush_outbox,
            receiver.make_room,
            receiver.flush_life_cycle,
        )
        self._publish_usage(receiver.destination)
        if thread is not None:
            thread.start()
        return consumer

    def _publish_usage(self, destination: str) -> None:
        """Of a destination with a consumer here, from now on (T1)."""
        with self._lock:
            if destination not in self._publishers and not is_temporary(destination):
                publisher = self._publishers[destination] = UsagePublisher(self._domain, self._store, destination)
                self._background.add(f"usage of {destination}", publisher.publish, PUBLISH_EVERY_S)

    def _consumer_closed(self, receiver: Receiver, bell: threading.Event, consumer: Consumer) -> None:
        self._watch.remove(bell.set)
        self._background.remove(receiver.hand_over)
        self._background.remove(receiver.flush_outbox)
        self._background.remove(receiver.make_room)
        self._background.remove(receiver.flush_life_cycle)
        if receiver.destination in self._publishers:
            self._publishers[receiver.destination].publish_last()
        self._forget(self._consumers)(consumer)

    def _check(self) -> None:
        """Raises ClosedError when the context is closed."""
        if self._closed:
            raise ClosedError("this context is closed: connect again")

    def _check_consumer(self, name: str) -> None:
        self._check()
        self._background.check(name)

    # -- the end --------------------------------------------------------------------------------------------------
    def statistics(self) -> ContextStatistics:
        with self._lock:
            watched = [self._background.health, self._housekeeping_thread.health]
            watched += [housekeeper.health for housekeeper in self._housekeepers.values()]
            return ContextStatistics(
                len(self._producers),
                len(self._consumers),
                tuple(sorted(self._housekeepers)),
                (*self._sending.failures, *(failure for health in watched for failure in health.failures.values())),
                self._sending.failed_attempts + sum(health.failed_attempts for health in watched),
                self._opened[Producer].high,
                self._opened[Consumer].high,
                self._opened[Producer].total,
                self._opened[Consumer].total,
                self._asynchronous.failures,
            )

    def reset_statistics(self) -> None:
        """The high marks begin with what is open now, and the totals at 0 (T17)."""
        with self._lock:
            self._opened = {Producer: _Opened(len(self._producers)), Consumer: _Opened(len(self._consumers))}

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Close the consumers, which release their unacknowledged messages, then the producers, once their asynchronous sends are
        complete, then everything else. Raises the first error of closing them, and IllegalStateException in a completion
        listener."""
        self._asynchronous.refuse_in_listener("Context.close")
        with self._lock:
            if self._closed:
                return
            consumers, producers = list(self._consumers), list(self._producers)
        self._requestor.close()
        unreported: list[Exception] = []
        for close in [one.close for one in consumers] + [one.close for one in producers]:
            try:
                close()
            except Exception as error:  # noqa: BLE001 - raised below, after the others are closed
                unreported.append(error)
        self._asynchronous.close()
        with self._lock:
            self._closed = True
        self._watch.close()
        self._background.close()
        self._housekeeping_thread.close()
        self._sending.close()
        for housekeeper in self._housekeepers.values():
            housekeeper.finish()
            housekeeper.close()
        self._owned.close()
        self._store.close()
        if unreported:
            raise unreported[0]

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        with self._lock:
            made = f"{len(self._producers)} producer(s), {len(self._consumers)} consumer(s)"
        return f"<Context {self.root}: {'closed' if self._closed else made}>"


def _take_up(subscriber: AnySubscriber) -> None:
    """A pinned consumer that cannot take up its member is not made."""
    try:
        subscriber.take_up()
    except BaseException:
        subscriber.close()
        raise
