"""Serving metrics over HTTP: localhost without a token, any other address only with one.

Features: M5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from spark_jms.admin.domain_sample import check_exposure, is_allowed

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_log = logging.getLogger("spark_jms.metrics")
_REQUEST_S = 10.0  # a client that connects and asks nothing is cut off then


class MetricsServer:
    """`port` 0: any free one. Raises OptionError for an address that others reach without a token, and OSError when the port is
    taken."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int, token: str | None = None) -> None:
        check_exposure(host, token)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = type("_Server", (_Server,), {"address_family": family})
        self._server: WSGIServer = make_server(host, port, _checked(make_wsgi_app(registry), token), kind, _Handler)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._server.server_port}/metrics"

    def serve(self) -> None:
        """Until another thread calls `stop`, or an interrupt."""
        self._server.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """Ends `serve`, which has begun."""
        self._server.shutdown()

    def close(self) -> None:
        """Once `serve` has ended."""
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up, or is cut off: its own affair."""
        _log.debug("a request of %s was not answered", client_address, exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is no news."""


def _checked(application: WSGIApplication, token: str | None) -> WSGIApplication:
    def checked(environment: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if is_allowed(token, environment.get("HTTP_AUTHORIZATION", "")):
            return application(environment, start_response)
        start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
        return [b"a token is needed: Authorization: Bearer ...\n"]

    return checked
