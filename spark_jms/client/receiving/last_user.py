"""Which thread, or which asyncio task, has used a consumer last, and whether it has ended without closing it.

Such a consumer keeps its claims: its context renews the session for as long as the process lives, and to every other process both
are in order. So the process itself says so in a WARNING, which names the consumer and the thread.

    what uses the consumer                              its end is
    ----------------------                              ----------
    a thread that receives, acknowledges, recovers      the thread's
    a listener                                          that of the listener's thread
    a coroutine that receives                           that of its task
    a task that consists of one receive (`wait_for`,    unknown: its result may be used anywhere
    `gather`, `create_task`)
    a coroutine that acknowledges, recovers             unknown, until the next receive

What is used by others afterwards has not ended, so a consumer is named when nothing has used it for ENDED_AFTER_S since.

Features: C11 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

ENDED_AFTER_S = 5.0
CALL_THREAD = "jmsq-asyncio-call"  # the name of a thread that makes a coroutine's call


class ReceivingTask(Protocol):
    """Of asyncio, which clients without coroutines do not load."""

    def done(self) -> bool: ...

    def get_name(self) -> str: ...


User = threading.Thread | ReceivingTask


class LastUser:
    """Thread-safe. It keeps no thread and no task alive."""

    def __init__(self) -> None:
        self._user: weakref.ref[User] | None = None  # None: unknown
        self._name = ""
        self._used_s = time.monotonic()
        self._named = False

    def uses(self) -> None:
        """The calling thread does."""
        thread = threading.current_thread()
        if thread.name == CALL_THREAD:
            self.unknown()
        else:
            self._is(thread)

    def received_by(self, task: ReceivingTask) -> None:
        """A coroutine of this task receives, by a thread that makes its calls."""
        self._is(task)

    def unknown(self) -> None:
        self._user, self._used_s = None, time.monotonic()

    def _is(self, user: User) -> None:
        known = weakref.ref(user)
        if known is not self._user:
            name = f"thread {user.name}" if isinstance(user, threading.Thread) else f"task {user.get_name()}"
            self._user, self._name, self._named = known, name, False
        self._used_s = time.monotonic()

    def ended(self) -> str | None:
        """What has ended: "thread worker-1". None: it lives, is unknown, was named, or may have ended a moment ago."""
        known = self._user
        if known is None or self._named or time.monotonic() - self._used_s < ENDED_AFTER_S:
            return None
        user = known()
        lives = user is not None and (user.is_alive() if isinstance(user, threading.Thread) else not user.done())
        return None if lives else self._name

    def named(self) -> None:
        """A warning has named what has ended."""
        self._named = True
