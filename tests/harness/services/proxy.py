"""A TCP proxy in front of a database. It loses connections in both possible ways: it cuts them or swallows their bytes. And it
delays what it forwards."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._flows = threading.Event()
        self._flows.set()
        self._refuses = False
        self._closed = False
        self.delay_s = 0.0  # of each packet
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses or self._closed:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, 5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            for source, sink in (pair, pair[::-1]):
                threading.Thread(target=self._pump, args=(source, sink, pair), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                time.sleep(self.delay_s)
                sink.sendall(data)
        self._flows.wait()  # while bytes are swallowed, the other side does not learn of the end either
        self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            if pair not in self._pairs:
                return
            self._pairs.discard(pair)
        for side in pair:
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def cut(self) -> None:
        """Ends all connections; accepts new ones."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._end(pair)

    def refuse(self, refuses: bool = True) -> None:
        """Ends all connections and refuses new ones."""
        self._refuses = refuses
        if refuses:
            self.cut()

    def swallow(self) -> None:
        """Keeps all connections but forwards nothing: to each side the other only seems slow."""
        self._flows.clear()

    def flow(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.flow()
        self.cut()
