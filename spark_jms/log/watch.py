"""Wakes receivers when a log of this host gets a commit.

The operating system reports new files of a local directory (inotify). It does not report what another host writes to a
network file system, and object stores report nothing. So a watch only shortens the wait: receivers poll as well, and poll
often until a watch has proved that it sees the commits of their log.

Features: C11 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_jms.log.checkpoints import LOG
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.local_storage import LocalStorage

if TYPE_CHECKING:
    from inotify_simple import INotify

log = logging.getLogger("spark_jms")
Wake = Callable[[], None]
_CREATED, _MOVED_TO = 0x100, 0x80  # of inotify(7): LocalStorage links commit files; another program may rename its own


class LogWatch:
    """Thread-safe. Its thread starts with the first `add`. Without inotify it does nothing: receivers poll."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes: dict[str, list[Wake]] = {}  # folder of a log -> whom to wake
        self.folders: dict[int, str] = {}  # inotify's number of a watch -> folder
        self._inotify: INotify | None = None
        self._thread: threading.Thread | None = None
        self._stop_read, self._stop_write = -1, -1

    def add(self, table: DeltaLog, wake: Wake) -> None:
        """Call `wake` soon after each commit to this log, from the watch's thread. It must not block."""
        if not isinstance(table.storage, LocalStorage):
            return
        folder = str(table.storage.root / LOG)
        with self._lock:
            try:
                self._start()
                if self._inotify is None:
                    return
                self.folders[self._inotify.add_watch(folder, _CREATED | _MOVED_TO)] = folder
            except OSError as error:  # too many watches or open files
                log.info("%s cannot be watched (%s): its receivers poll", folder, error)
                return
            self._wakes.setdefault(folder, []).append(wake)

    def remove(self, wake: Wake) -> None:
        with self._lock:
            for folder, wakes in list(self._wakes.items()):
                self._wakes[folder] = [one for one in wakes if one != wake]
                if not self._wakes[folder]:
                    self._forget(folder)

    def close(self) -> None:
        with self._lock:
            thread = self._thread
            if thread is not None:
                os.write(self._stop_write, b"x")
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        if self._thread is not None:
            return
        try:
            from inotify_simple import INotify
        except ImportError:  # not on this operating system
            return
        self._inotify = INotify(nonblocking=True)
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, args=(self._inotify,), name="jmsq-log-watch", daemon=True)
        self._thread.start()

    def _forget(self, folder: str) -> None:
        del self._wakes[folder]
        for watch, watched in list(self.folders.items()):
            if watched == folder:
                del self.folders[watch]
                if self._inotify is not None:
                    with suppress(OSError):  # the folder was deleted, and the watch with it
                        self._inotify.rm_watch(watch)

    def _run(self, inotify: INotify) -> None:
        ready = select.poll()
        ready.register(inotify, select.POLLIN)
        ready.register(self._stop_read, select.POLLIN)
        try:
            while self._stop_read not in {descriptor for descriptor, _ in ready.poll()}:
                news = {event.wd for event in inotify.read(timeout=0) if event.name.endswith(".json")}
                with self._lock:
                    wakes = [wake for wd in news for wake in self._wakes.get(self.folders.get(wd, ""), ())]
                for wake in wakes:
                    wake()
        finally:
            with self._lock:
                self._inotify, self._thread = None, None
                self._wakes, self.folders = {}, {}
                inotify.close()
                os.close(self._stop_read)
                os.close(self._stop_write)
