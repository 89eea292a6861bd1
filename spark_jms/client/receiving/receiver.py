"""Receives for a Consumer: claims a few messages, delivers them one by one, acknowledges or releases them.

Inside: applications see `Consumer` and `Message`. The consumer, its listener's thread and the context's background thread
call the receiver.

Features: C7, C8, C9, C11, T4 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.records.life_cycle import flush_at_close
from spark_jms.client.messages.columns import together
from spark_jms.client.messages.message import Message
from spark_jms.client.receiving.delivery import (
    AcknowledgementWriter,
    Aside,
    ConsumerStatistics,
    Delivery,
    HeldBackWarning,
    Return,
    TransactedDelivery,
    keys_of,
    parts_of,
)
from spark_jms.client.receiving.last_user import LastUser
from spark_jms.client.receiving.pipeline import BatchReader, Pipeline
from spark_jms.client.sending.tracing import traced_acknowledge
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import (
    ClosedError,
    ConsumerClosedException,
    IllegalStateException,
    JmsqError,
    MemberUnavailableError,
)
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.types import NO_LIMIT, whole_ms
from spark_jms.store import OutcomeUnknownError

log = logging.getLogger("spark_jms")
AcknowledgeMode = Literal["client", "individual", "auto", "dups-ok"]
AUTOMATIC: tuple[AcknowledgeMode, ...] = ("auto", "dups-ok")
Transacted = Literal["transacted"]  # the mode of a transacted session's consumers: its commit acknowledges
WRITE_TIMEOUT_S = 15.0  # wait for a record set that another session has opened, to acknowledge or release
CLOSE_TIMEOUT_S = 5.0
_TURN_S = 0.01  # that another consumer may take for a message
_MOST_TURNS = 10  # left to others: messages that come meanwhile have their own
_RECORDS_S = 0.1  # between two looks whether others have changed a record set
_REPLAN_S = 1.0  # for what no look tells: a consumer dies, a server answers again
_POLL_S = 0.01  # between two looks at the context
_LONGEST_S = 0.05  # between two looks at the log
_SESSION_S = 0.02  # between two looks at the session while prefetched messages are delivered
_LAZY_S = 1.0
_HELD_BACK_AFTER_S = 5.0  # of waiting, until units of order that a refused message blocks are named
_ASIDE_RETRY_S = 5.0  # between two attempts to set a message aside


def pause_s(idle_s: float, watched: bool) -> float:
    """The pause between two polls: short after recent traffic, 50 ms after an idle minute, and where a watch reports new
    messages, so that only the store is polled."""
    if watched:
        return _LONGEST_S
    return 0.002 if idle_s < 1 else min(_LONGEST_S, max(0.005, idle_s / 1200))


@dataclass(frozen=True, slots=True)
class _Receipt:
    receiver: Receiver
    generation: int

    def acknowledge(self, message: Message) -> None:
        self.receiver.acknowledge(message, self.generation)

    def reject(self, message: Message, delay_s: float | None) -> None:
        self.receiver.reject(message, delay_s)

    def reply(self, message: Message, arguments: Mapping[str, Any]) -> Message:
        self.receiver.check_open()
        return self.receiver.send_reply(message, arguments)


class Receiver:
    """Thread-safe. Any method may raise ConsumerClosedException: the consumer was fenced, other consumers get its
    unacknowledged messages, and it can only be closed."""

    def __init__(
        self,
        subscriber: Subscriber,
        mode: AcknowledgeMode | Transacted,
        pipeline: Pipeline,
        check_context: Callable[[], None],
        bell: threading.Event,
        send_reply: Callable[[Message, Mapping[str, Any]], Message],
    ) -> None:
        self.destination, self.name = subscriber.destination, subscriber.consumer
        self.mode, self.prefetch, self._pipeline = mode, pipeline.maximum, pipeline
        self._subscriber, self._table = subscriber, subscriber.table
        self.outlived = subscriber.settings.live is None
        self._aside_s = 0.0  # of the newest attempt to set messages aside
        self._check_context = check_context
        self.send_reply = send_reply
        self._bell = bell  # rings when the log may have news, and when we close
        self.watched = False  # the bell rings for news, and rang for those before
        # Taken in this order: `_claiming`, the writer's own lock, `_lock`. `_lock` guards `_delivery` and is never held
        # during a store call.
        self._claiming, self._lock = threading.RLock(), threading.RLock()
        self._closing = threading.Event()
        self._closed = False
        self._delivery = Delivery()
        self._writer = AcknowledgementWriter(subscriber, self._delivery, self._lock)
        self._reader = BatchReader(subscriber, pipeline)  # guarded by `_claiming`
        self.transacted = TransactedDelivery(subscriber, self._delivery, self._lock)
        self._held_back = HeldBackWarning(subscriber)
        self.failure: JmsqError | None = None
        self._untold = False  # no call of the application has raised the failure
        self._seen_version = -1
        self._session_s = self._busy_s = time.monotonic()  # `_busy_s`: of the newest message
        self.last_user = LastUser()

    # -- receiving ------------------------------------------------------------------------------------------------
    def next_message(self, timeout_s: float | None, interrupted: threading.Event | None = None) -> Message | None:
        """The next message, or None if none arrives within `timeout_s` (None waits for ever, 0 does not wait), the
        receiver is closed or `interrupted` is set meanwhile. Acknowledges, in the modes "auto" and "dups-ok", what it delivered
        before. With `interrupted` the message is held: `show` delivers it."""
        self.check_open()
        self.last_user.uses()
        started = time.monotonic()
        deadline = None if timeout_s is None else started + timeout_s
        try:
            self._acknowledge_before()
            while not self._closing.is_set():
                message = self._take(holds=interrupted is not None)
                if message is None and self._wait(deadline, interrupted):
                    if time.monotonic() - started > _HELD_BACK_AFTER_S:
                        self._held_back.look()
                    continue
                if message is None and self._subscriber.lingers and not (interrupted and interrupted.is_set()):
                    # the time is up before a full batch is there
                    message = self._take(hurries=True, holds=interrupted is not None)
                if message is None:
                    self._held_back.look()
                else:
                    self._busy_s = time.monotonic()
                self.last_user.uses()
                return message
        except ClosedError:
            if not self._closing.is_set():
                raise
        return None

    def show(self, message: Message) -> bool:
        """The application has this held message. False: it was released meanwhile, and the application must not get it."""
        with self._lock:
            return self._delivery.show(message)

    def _take(self, *, hurries: bool = False, holds: bool) -> Message | None:
        if self._delivery.prefetched and time.monotonic() - self._session_s >= _SESSION_S:
            self._check_session()  # before it takes one: others may have it by now
        message = self._prefetched(holds)
        if message is not None:
            return message
        with self._claiming:
            message = self._prefetched(holds)
            if message is not None or self._closing.is_set():
                return message
            self._claim(hurries)
            return self._prefetched(holds)

    def _prefetched(self, holds: bool) -> Message | None:
        with self._lock:
            return self._delivery.hold(now_ms()) if holds else self._delivery.take(now_ms())

    def _claim(self, hurries: bool) -> None:
        """Claim and read the next messages, if any are available and none are on their way back: later ones of their units would
        overtake them. `hurries`: without waiting for a full batch."""
        self._session_s = time.monotonic()
        self._reader.forget()
        if self._delivery.returning or self._subscriber.members is None:
            self._write(0)
        self._seen_version = self._table.snapshot.version
        if self._delivery.returning and not self._subscriber.away():  # a server may be away for long
            return
        try:
            limits = self._pipeline.limits(self._table.snapshot.destination, self._reader.first_member, hurries=hurries)
            batch = self._next_batch(limits)
            while batch is None and self._subscriber.has_more() and not self._closing.is_set():
                batch = self._next_batch(limits)
        except ConsumerClosedException as error:
            raise self._fail(error) from None
        if batch is None:
            return
        try:
            read = self._reader.read(batch, _Receipt(self, self._delivery.generation))
        except BaseException:
            with self._lock:
                self._delivery.returning += [
                    Return(batch.claim, m, pick.picks, False) for m, pick in batch.members.items()
                ]
            self._write(0)
            raise
        with self._lock:
            self._delivery.add(read.messages, batch.claim)
            self._delivery.aside += [
                Aside(batch.claim, member, reasons) for member, reasons in together(read.undecodable)
            ]
            self._delivery.finished.update(dict.fromkeys(read.missing, batch.claim))
            self._delivery.give_up(read.rest, batch.claim)
        if read.rest:
            self._write(0)
        if read.undecodable:
            self._set_aside()

    def _next_batch(self, limits: Limits) -> Batch | None:
        """What is finished is acknowledged in the write that claims, or, where that leaves some, in another one."""
        with self._lock:
            finished = dict(self._delivery.finished)
        members, automatic = self._subscriber.members, self.mode in AUTOMATIC
        if not finished or members is None:
            return self._planned(limits)
        with traced_acknowledge(self.destination, None, len(finished) if automatic else 0):
            members.finish(parts_of(finished))
            try:
                return self._planned(limits)
            finally:
                left = members.unfinished
                self._writer.wrote([key for key in finished if key[0] not in left])
                if left:
                    self._write(WRITE_TIMEOUT_S if automatic else 0)

    def _planned(self, limits: Limits) -> Batch | None:
        """A claim whose write has an unknown outcome was not delivered. The next plan gives its messages back, if the store has it."""
        try:
            return self._subscriber.next_batch(Batch(self.name), limits)
        except OutcomeUnknownError:
            return self._subscriber.next_batch(Batch(self.name), limits)

    def _set_aside(self) -> None:
        """Move undecodable messages to their queue. What fails is tried again later: it stays claimed, and no call of the
        application fails for it."""
        with self._lock:
            waiting = list(self._delivery.aside)
        self._aside_s = time.monotonic()
        for item in waiting:
            try:
                done = self._subscriber.set_aside(item.claim, item.member, item.reasons)
            except (ConsumerClosedException, ClosedError):
                return  # the claim is or will be revoked, and the next consumer meets the message
            except (JmsqError, OSError) as error:
                log.warning(
                    "%s, member %d: %s, and could not be set aside: %s", self.destination, item.member, item.told, error
                )
                return
            if done:
                log.warning(
                    "%s, member %d: it is not delivered, because it cannot be decoded: %s",
                    self.destination,
                    item.member,
                    item.told,
                )
                with self._lock:
                    self._delivery.aside.remove(item)
                    self._delivery.set_aside += len(item.reasons)

    def _wait(self, deadline: float | None, interrupted: threading.Event | None) -> bool:
        """True when new messages may be available; False when the time is up or the consumer closes."""
        begun = time.monotonic()
        looked = poll = begun
        while True:
            now = time.monotonic()
            is_due = self._subscriber.lingers or self._subscriber.is_due()
            pause = _POLL_S if is_due else pause_s(now - self._busy_s, self.watched)
            if deadline is not None:
                if now >= deadline:
                    return False
                pause = min(pause, deadline - now)
            rung = self._bell.wait(pause)
            self._bell.clear()  # before the look, so that no ring is lost
            if self._closing.is_set() or (interrupted is not None and interrupted.is_set()):
                return False
            now = time.monotonic()
            if self._table.snapshot.version != self._seen_version or self._table.has_news():
                self.watched = rung
                seen = self._table.refresh().version  # another thread may read a newer one while this one looks
                if self._finds_some():
                    return True
                self._seen_version = seen
            if now >= begun + _REPLAN_S or self._subscriber.is_due():
                return True
            if now >= looked + _RECORDS_S:
                looked = now
                if self._subscriber.has_due():
                    return True
                if self._subscriber.have_records_changed() and self._finds_some():
                    return True
            if now >= poll:
                poll = now + _POLL_S
                self.check_open()

    def _finds_some(self) -> bool:
        """Messages are available that no other consumer takes whose turn it is."""
        for _ in range(_MOST_TURNS):
            if not self._subscriber.is_turn_of_others():
                break
            seen = self._table.snapshot.version
            self._closing.wait(_TURN_S)
            if not self._subscriber.has_available():
                return False
            if self._table.snapshot.version == seen:
                break  # no other consumer has taken it
        return self._subscriber.has_available()

    # -- acknowledging --------------------------------------------------------------------------------------------
    def acknowledge(self, message: Message, generation: int) -> None:
        self.check_open()
        self.last_user.uses()
        if self.mode in AUTOMATIC or self.mode == "transacted":
            return
        keys = keys_of(message)
        with self._lock:
            if (
                self.mode == "individual"
                and generation != self._delivery.generation
                and keys[0] not in self._delivery.delivered
            ):
                raise IllegalStateException(
                    f"message {message.message_id} was released by recover() or reject() after this delivery: it will "
                    "be delivered again, and only that delivery can be acknowledged"
                )
            before = len(self._delivery.delivered)
            self._delivery.acknowledge(keys if self.mode == "individual" else None)
            count = before - len(self._delivery.delivered)
        with traced_acknowledge(self.destination, message, count):
            self._write(WRITE_TIMEOUT_S)

    def _acknowledge_before(self) -> None:
        """As `acknowledge_delivered`, before the next message: where that has to be claimed, the claim acknowledges, too."""
        if self._delivery.prefetched or self._subscriber.members is None:
            self.acknowledge_delivered()
        elif self.mode in AUTOMATIC:
            with self._lock:
                self._delivery.finish()

    def acknowledge_delivered(self) -> None:
        """In the modes "auto" and "dups-ok": the application has finished with everything delivered so far."""
        if self.mode not in AUTOMATIC:
            return
        with self._lock:
            self._delivery.finish()
            count = len(self._delivery.finished)
        few = self._pipeline.maximum == NO_LIMIT or count < self._pipeline.maximum
        lazy = self.mode == "dups-ok" and few and time.monotonic() - self._writer.written_s < _LAZY_S
        if count and not lazy:
            with traced_acknowledge(self.destination, None, count):
                self._write(WRITE_TIMEOUT_S)

    def recover(self) -> None:
        """Release everything delivered and not acknowledged: it is delivered again, flagged and counted, to this or another
        consumer."""
        self.check_open()
        self.last_user.uses()
        self.give_back()
        self._write(WRITE_TIMEOUT_S)

    def give_back(self) -> None:
        """The first half of `recover`, in memory: what was delivered is on its way back, and nothing acknowledges it any more."""
        with self._lock:
            self._delivery.give_back(delivered=True)

    def rest(self, *, orderly: bool) -> bool:
        """Release everything, as `close` does. False: that is not possible, and the receiver can only be closed."""
        if self.failure is not None:
            return False
        self._check_context()
        with self._lock:
            self._settle(acknowledges=orderly)
        try:
            self._write_settled(WRITE_TIMEOUT_S)
        except ConsumerClosedException as error:
            self._fail(error)
        except MemberUnavailableError:
            return False
        self._untold = self.failure is not None
        return self.failure is None

    def _settle(self, *, acknowledges: bool) -> None:
        """Release everything; first, in the modes "auto" and "dups-ok", acknowledge what was delivered. With the lock held."""
        if acknowledges and self.mode in AUTOMATIC:
            self._delivery.finish()
        self._delivery.give_back(delivered=True)

    def _write_settled(self, timeout_s: float) -> None:
        count = len(self._delivery.finished) if self.mode in AUTOMATIC else 0
        with traced_acknowledge(self.destination, None, count):
            self._write(timeout_s)

    @property
    def usable(self) -> bool:
        """Not closed, not in an error, and its session has not ended. Asks the store."""
        return self.failure is None and not self.closing and self._subscriber.has_session()

    def lost(self, *, asks: bool) -> Exception | None:
        """Why it can only be closed; None: as far as is known, it is well, or it is being closed. With `asks`, asks the store."""
        if self.failure is not None or self.closing or not asks:
            return None if self.closing else self.failure
        return self._subscriber.lost()

    def reject(self, message: Message, delay_s: float | None) -> None:
        """Release this one message: it is delivered again, flagged and counted, when the delay is over (None: the
        destination's). Without a delay it comes before later ones. Later messages of its unit of order wait for it."""
        self.check_open()
        self.last_user.uses()
        keys = keys_of(message)
        with self._claiming:  # no claim may take later messages of the unit meanwhile
            with self._lock:
                if keys[0] not in self._delivery.delivered:
                    raise IllegalStateException(
                        f"message {message.message_id} was acknowledged, rejected or released before: only a message "
                        "that this consumer has delivered and not acknowledged can be rejected"
                    )
                delay_ms = None if delay_s is None else whole_ms(delay_s * 1000)
                self._delivery.reject(keys, delay_ms, unit=message.group_id is not None)
            self._write(WRITE_TIMEOUT_S)

    def release(self, message: Message) -> None:
        """Release this one message, if it is delivered and not acknowledged: it is delivered again, flagged and counted."""
        with self._lock:
            self._delivery.give_back(delivered=False, keys=keys_of(message))
        self._write(WRITE_TIMEOUT_S)

    def _write(self, timeout_s: float) -> None:
        try:
            self._writer.write(timeout_s)
        except ConsumerClosedException as error:
            raise self._fail(error) from None

    # -- beside the application -----------------------------------------------------------------------------------
    def _check_session(self) -> None:
        self._session_s = time.monotonic()
        try:
            self._subscriber.check_session()
        except ConsumerClosedException as error:
            raise self._fail(error) from None

    def write_overdue(self) -> None:
        """The context's background thread calls this several times a second: write acknowledgements and releases that are
        overdue."""
        if self.failure is not None or self._closing.is_set():
            return
        self._name_ended()
        try:
            overdue = time.monotonic() - self._writer.written_s >= _LAZY_S
            if self._delivery.returning or (overdue and self._delivery.finished):
                self._write(0)
            if self._delivery.aside and time.monotonic() - self._aside_s >= _ASIDE_RETRY_S:
                self._set_aside()
        except (ConsumerClosedException, ClosedError):
            self._untold = self.failure is not None  # the next call raises it

    def _name_ended(self) -> None:
        """Warn of claims that no thread works on."""
        ended = self.last_user.ended()
        if ended is None:
            return
        with self._lock:
            claimed = self._delivery.claimed
        if claimed:
            self.last_user.named()
            log.warning(
                "consumer %s of %s has claims of %d message(s), but %s, which used it last, has ended: no other consumer gets them "
                "until they are acknowledged or recovered, the consumer is closed, or this process ends",
                self.name,
                self.destination,
                claimed,
                ended,
            )

    def flush_outbox(self) -> None:
        """The context's background thread calls this once a second: write acknowledgements to their table."""
        self._flush(self._subscriber.flush_outbox)

    def flush_life_cycle(self) -> None:
        """The same for the life-cycle log."""
        self._flush(self._subscriber.flush_life_cycle)

    def _flush(self, flush: Callable[[], None]) -> None:
        if self.failure is not None or self._closing.is_set():
            return
        try:
            flush()
        except ConsumerClosedException as error:
            self._fail(error)
            self._untold = True

    def make_room(self) -> None:
        """The context's background thread calls this once a second: apply the subscription's limit."""
        if self.failure is None and not self._closing.is_set():
            self._subscriber.make_room()

    def _fail(self, error: JmsqError) -> JmsqError:
        if self.failure is None:
            self.failure = error
        return error

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"consumer {self.name} of {self.destination} is closed: create a new one")
        if self.failure is not None:
            self._untold = False
            raise type(self.failure)(str(self.failure)) from self.failure
        self._check_context()

    # -- the end --------------------------------------------------------------------------------------------------
    def statistics(self, listener_failures: int) -> ConsumerStatistics:
        with self._lock:
            return self._delivery.statistics(listener_failures, self._pipeline.maximum)

    def reset_statistics(self) -> None:
        with self._lock:
            self._delivery.reset()

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    def wake(self) -> None:
        """For a `next_message` that was interrupted."""
        self._bell.set()

    def stop(self) -> None:
        """`next_message` returns None from now on."""
        self._closing.set()
        self._bell.set()

    def close(self, *, orderly: bool) -> None:
        """Release everything at once. An orderly end first acknowledges, in the modes "auto" and "dups-ok", what was delivered, and
        raises the error that prevents it, unless the application has had it before."""
        self.stop()
        with self._claiming, self._lock:
            if self._closed:
                return
            self._closed = True
            self._reader.forget()
            self._settle(acknowledges=orderly)
        told = self.failure is not None and not self._untold
        try:
            self._write_last()
        except (ConsumerClosedException, ClosedError, MemberUnavailableError) as error:
            # the rest becomes available when the session ends, and is delivered again, flagged
            left = len(self._delivery.finished) if orderly and self.mode in AUTOMATIC else 0
            if left and not told:
                raise type(error)(
                    f"{left} message(s) of {self.destination} that consumer {self.name} received last are not acknowledged, and "
                    f"will be delivered again, flagged: {error}"
                ) from error
        finally:
            self._subscriber.close()

    def _write_last(self) -> None:
        if self.failure is not None:
            raise self.failure
        self._write_settled(CLOSE_TIMEOUT_S)
        self._subscriber.flush_outbox()
        flush_at_close(self._subscriber.flush_life_cycle)
