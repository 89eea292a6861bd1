"""A pool: producers and consumers that are used again instead of made again.

    pool = spark_jms.connect_pool(root)
    with pool.producer("orders") as producer: ...      # perhaps shared with other threads
    with pool.consumer("orders") as consumer: ...      # this block's alone

All of a pool are of one context, which the first use opens. What an application leaves closed, or in an error, is made again. A
consumer that comes back acknowledges and releases what it has, as at the end of its own block, and releases its members, which
other consumers take meanwhile. An idle one is closed after `idle` without use, or when more than `max_idle` are idle. That happens
when the pool is used, so it has no thread. A forked child has nothing of its parent's: its first use opens a context of its own.

Features: T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_jms.client.context.context import Context
from spark_jms.client.messages.message import Closable, end, seconds_of
from spark_jms.client.receiving.consumer import Consumer, is_usable, put_to_rest
from spark_jms.client.sending.producer import Producer
from spark_jms.errors import ClosedError, OptionError
from spark_jms.settings.types import DurationLike
from spark_jms.store.processes import abandon_in_child

DEFAULT_MAX_IDLE = 100
DEFAULT_IDLE = "1 min"
_STALLED_S = 1.0  # a session that ends takes longer: one that was idle for less has not lost it
_Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class PoolStatistics:
    """`idle` and `in_use` are current numbers of producers and consumers; the others count uses."""

    idle: int
    in_use: int
    made: int
    reused: int


@dataclass(eq=False)
class _Pooled:
    client: Producer | Consumer
    key: _Key
    reusable: bool
    users: set[object] = field(default_factory=set)  # the uses that are not over
    idle_since_s: float = 0.0


@dataclass
class _Contents:
    """Of one process. `idle` in the order of their last use."""

    context: Context | None = None
    idle: OrderedDict[_Pooled, None] = field(default_factory=OrderedDict)
    used: set[_Pooled] = field(default_factory=set)
    made: int = 0
    reused: int = 0


class ClientPool(Closable):
    """Made by `spark_jms.connect_pool`. Thread-safe."""

    def __init__(
        self,
        connect: Callable[[], Context],
        max_idle: int = DEFAULT_MAX_IDLE,
        idle: DurationLike = DEFAULT_IDLE,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises OptionError."""
        if type(max_idle) is not int or max_idle < 0:
            raise OptionError(f"max_idle is {max_idle!r}, but must be a whole number, 0 or more")
        self._connect, self._max_idle, self._clock_s = connect, max_idle, clock_s
        self._idle_s = seconds_of("idle", idle)
        self._lock, self._contents, self._closed = threading.RLock(), _Contents(), False
        abandon_in_child(self)

    def abandon(self) -> None:
        """In a forked child: what the parent has open belongs to the parent."""
        self._lock, self._contents = threading.RLock(), _Contents()

    # -- using ----------------------------------------------------------------------------------------------------
    def context(self) -> Context:
        """The pool's context in this process. Raises ClosedError when the pool is closed, and what `connect` raises."""
        with self._lock:
            if self._closed:
                raise ClosedError("this pool is closed: make another one with connect_pool")
            now = self._contents
            if now.context is None or now.context.closed:
                self._contents = now = _Contents(self._connect(), made=now.made, reused=now.reused)
            assert now.context is not None
            return now.context

    @contextlib.contextmanager
    def producer(self, destination: str, **arguments: Any) -> Iterator[Producer]:
        """With the arguments of `Context.producer`. Threads that use it at once may share one."""
        use = object()
        try:
            client = self._take(use, "producer", destination, arguments, shares=True)
            assert isinstance(client, Producer)
            yield client
        finally:
            self._give_back(use, orderly=True)

    @contextlib.contextmanager
    def consumer(self, destination: str, **arguments: Any) -> Iterator[Consumer]:
        """With the arguments of `Context.consumer`, without a listener. The end of the block acknowledges and releases as the end of
        the consumer's own does. One that is alone on its subscription, or whose subscription is not durable, is closed then: while
        it is idle, it would exclude others, or collect messages."""
        if arguments.get("listener") is not None:
            raise OptionError(
                "a consumer with a listener works all the time, so it cannot be pooled: use Context.consumer"
            )
        use, orderly = object(), False
        try:
            client = self._take(use, "consumer", destination, arguments, shares=False)
            assert isinstance(client, Consumer)
            yield client
            orderly = True
        finally:
            self._give_back(use, orderly=orderly)

    def _take(
        self, use: object, kind: str, destination: str, arguments: Mapping[str, Any], *, shares: bool
    ) -> Producer | Consumer:
        """An interrupt (Ctrl-C) here leaves nothing in use that `_give_back` does not find."""
        key: _Key = f"{kind} {destination}", tuple(sorted((name, repr(value)) for name, value in arguments.items()))
        with self._lock:
            context, now = self.context(), self._contents
            shared = [one for one in now.used if one.users] if shares else []  # one without users is being given back
            candidates = [*shared, *reversed(now.idle)]
            known = next((one for one in candidates if one.key == key and not one.client.closed), None)
            if known is not None:
                since_s = known.idle_since_s if known in now.idle else self._clock_s()
                now.used.add(known)
                known.users.add(use)
                now.idle.pop(known, None)
                now.reused += 1
        if known is not None and self._clock_s() - since_s >= _STALLED_S and not _is_usable(known.client):
            known.reusable = False
            self._give_back(use, orderly=True)  # which closes it
            return self._take(use, kind, destination, arguments, shares=shares)
        if known is None:  # without the lock: a store may take its time
            make: Callable[..., Producer | Consumer] = getattr(context, kind)
            client = make(destination, **arguments)
            try:
                known = _pooled(client, key, arguments)
                with self._lock:
                    known.users.add(use)
                    now.used.add(known)
                    now.made += 1
            except BaseException:
                client.close()
                raise
        self._close_idle()
        return known.client

    def _give_back(self, use: object, *, orderly: bool) -> None:
        with self._lock:
            contents = self._contents
            one = next((one for one in contents.used if use in one.users), None)
            if one is None:  # it is of another context, or was never taken
                return
            one.users.discard(use)
            if one.users:
                return
        keeps = False
        try:
            keeps = one.reusable and not one.client.closed and _is_at_rest(one.client, orderly=orderly)
        finally:
            with self._lock:
                contents.used.discard(one)
                if keeps:
                    one.idle_since_s = self._clock_s()
                    contents.idle[one] = None
            if not keeps:
                end(one.client, orderly=orderly)
        self._close_idle()

    def _close_idle(self) -> None:
        """Those that were idle for long, and the oldest of too many."""
        with self._lock:
            idle, now_s, closing = self._contents.idle, self._clock_s(), []
            while idle:
                oldest = next(iter(idle))
                if len(idle) <= self._max_idle and now_s - oldest.idle_since_s < self._idle_s:
                    break
                closing.append(oldest)
                del idle[oldest]
        for one in closing:
            one.client.close()

    # -- the end --------------------------------------------------------------------------------------------------
    def statistics(self) -> PoolStatistics:
        """How many producers and consumers of the pool are idle and in use now, and how many it has made and used again."""
        with self._lock:
            now = self._contents
            return PoolStatistics(len(now.idle), len(now.used), now.made, now.reused)

    def close(self) -> None:
        """Close the context, with everything of it."""
        self._end(orderly=True)

    def _end(self, *, orderly: bool) -> None:
        with self._lock:
            self._closed, context = True, self._contents.context
            self._contents = _Contents()
        if context is not None:
            end(context, orderly=orderly)

    def __repr__(self) -> str:
        now = self.statistics()
        return f"<ClientPool: {'closed, ' if self._closed else ''}{now.in_use} in use, {now.idle} idle>"


def _pooled(client: Producer | Consumer, key: _Key, arguments: Mapping[str, Any]) -> _Pooled:
    own = isinstance(client, Consumer) and (not client.outlived or arguments.get("sharing") == "exclusive")
    return _Pooled(client, key, reusable=not own)


def _is_usable(client: Producer | Consumer) -> bool:
    return isinstance(client, Producer) or is_usable(client)


def _is_at_rest(client: Producer | Consumer, *, orderly: bool) -> bool:
    return isinstance(client, Producer) or put_to_rest(client, orderly=orderly)
