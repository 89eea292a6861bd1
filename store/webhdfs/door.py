"""The WebHDFS door: HTTP on one side, `Files` on the other.

It does what the JVM client needs: no answer carries a Content-Type (the client that Spark ships fails on one), header and
body leave in one write, and CREATE and APPEND take two steps, the first of which writes nothing. OPEN answers with the
bytes at once, as HttpFS does, unless the client asks for the address (`noredirect`).

The door serves the namespace itself, or forwards the request to the daemon that does. If neither is possible it answers
503 with an exception on which Hadoop's clients retry or try the next address. A door that other machines can reach has TLS and
bearer tokens from a file; without tokens a door admits the user that runs it (callers.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

import aiohttp
from aiohttp import ClientError, web
from yarl import URL

from spark_jms.store.errors import SecurityConfigError
from spark_jms.store.net.sockets import check_private, is_loopback
from spark_jms.store.webhdfs import wire
from spark_jms.store.webhdfs.blocks import DEFAULT_FILE_BLOCK_BYTES
from spark_jms.store.webhdfs.callers import CallerCheck, FindOwner, UserOfProcess, owner_of_socket
from spark_jms.store.webhdfs.errors import (
    AccessControlError,
    FaultError,
    IllegalArgumentError,
    RemoteError,
    RemoteIOError,
    RetriableError,
    StandbyError,
    UnauthenticatedError,
)
from spark_jms.store.webhdfs.files import ContentWriter, Files
from spark_jms.store.webhdfs.operations import SIMPLE, Caller, DoorReply, check_op, file_checksum
from spark_jms.store.webhdfs.wire import DoorRequest

DATA_MARK = "data"  # the parameter of the second step, as HttpFS names it
TOKEN_PATH = "/oauth2/token"
FORWARDED = "X-Jmsq-Forwarded"
FORWARDED_USER = "X-Jmsq-User"  # a door that does not send it is of a release that believed every caller
MAX_FORM_BYTES = 16 * 1024
TOKEN_SECONDS = 3600
KEEPALIVE_TIMEOUT_S = 75.0
CONNECT_TIMEOUT_S = 2.0
IDLE_TIMEOUT_S = 60.0
LEAST_TOKEN_CHARACTERS = 16
MAX_TOKENS = 1000
OLD_FORWARDER = (
    "The door that forwarded this request does not say for which user: its daemon is of an older release, and admits every user "
    "of its machine. Restart that daemon with this release, or use the address of a newer one"
)
OPEN_WARNING = "the WebHDFS door at %s is open: every user of this machine may read, change and delete all of its files"
Result = TypeVar("Result")
_LOG = logging.getLogger("store.replicated.webhdfs.door")
# aiohttp logs a stack trace for each request that is not HTTP: a client could fill the disk.
_HTTP_LOG = _LOG.getChild("http")
_HTTP_LOG.setLevel(logging.CRITICAL)
_HOST = re.compile(r"^[A-Za-z0-9.\-_\[\]:]{1,255}$")
_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-authorization", "expect"}
_BODY_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True)
class Tokens:
    """Users and the digests of their tokens; the tokens themselves are not kept."""

    digests: tuple[tuple[str, bytes], ...]

    @classmethod
    def from_file(cls, path: Path) -> Tokens:
        """One `user token` per line; # begins a comment. SecurityConfigError names file and line."""
        check_private(path)
        digests: list[tuple[str, bytes]] = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 2 or len(words[1]) < LEAST_TOKEN_CHARACTERS:
                reason = f"a line is `user token`, the token has at least {LEAST_TOKEN_CHARACTERS} characters"
                raise SecurityConfigError(f"{path}:{number}: {reason}")
            digests.append((words[0], _digest(words[1])))
        if not 0 < len(digests) <= MAX_TOKENS:
            raise SecurityConfigError(f"{path}: {len(digests)} tokens, allowed are 1 to {MAX_TOKENS}")
        return cls(tuple(digests))

    def user(self, token: str) -> str | None:
        """Compares every token in constant time, so that the time tells nothing about them."""
        digest, found = _digest(token), None
        for user, known in self.digests:
            if hmac.compare_digest(digest, known):
                found = user
        return found


@dataclass(frozen=True)
class DoorOptions:
    tls: ssl.SSLContext | None = None
    tokens: Tokens | None = None
    open: bool = False  # believe `user.name`: every user of this machine may do everything
    superuser: str = "hdfs"
    idle_timeout_ms: int = 60_000  # of a body that makes no progress, in either direction
    answer_at_once_bytes: int = 1024 * 1024  # a file up to this size is sent in one write
    max_streams: int = 256
    forward_tls: ssl.SSLContext | None = None  # verifies the certificate of the other daemon


@dataclass
class DoorStatistics:
    requests: Counter[str] = field(default_factory=Counter)  # by operation
    refusals: Counter[str] = field(default_factory=Counter)  # by exception
    lookups: int = 0  # of connections in the kernel
    faults: int = 0  # errors of the door itself; the log has them
    forwarded: int = 0
    open_streams: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


class Door:
    """`files` returns the open namespace or None; the door calls it for every request, so the namespace may be opened again
    behind it. `forward_to` returns the `host:port` of the daemon that serves it instead, or None. `find_owner` asks the kernel."""

    def __init__(
        self,
        files: Callable[[], Files | None],
        options: DoorOptions | None = None,
        forward_to: Callable[[], str | None] = lambda: None,
        find_owner: FindOwner = owner_of_socket,
    ) -> None:
        self._files = files
        self._forward_to = forward_to
        self._forwarder: Forwarder | None = None
        self.options = options or DoorOptions()
        believes = self.options.tokens is not None or self.options.open
        self._callers = None if believes else CallerCheck(UserOfProcess.current(), find_owner)
        self._statistics = DoorStatistics()
        self._runner: web.AppRunner | None = None
        self.host = ""
        self.port = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 chooses a free one (see `port`). SecurityConfigError on an address that needs TLS and tokens."""
        options = self.options
        check_binding(host, options.tls is not None, options.tokens is not None)
        if options.open and options.tokens is not None:
            raise SecurityConfigError("a door is open, or has a token file: it cannot be both")
        self._forwarder = Forwarder(options.forward_tls if options.tls else None, options.tls is not None)
        application = web.Application()
        application.router.add_route("*", "/{path:(?s:.*)}", self._handle)
        application.on_response_prepare.append(_no_content_type)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_HTTP_LOG,
            handle_signals=False,
            auto_decompress=False,
            max_line_size=wire.MAX_TARGET_BYTES,
            max_field_size=wire.MAX_TARGET_BYTES,
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=options.tls, backlog=512)
        await site.start()
        self.host, self.port = host, self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._forwarder is not None:
            await self._forwarder.close()
            self._forwarder = None

    def statistics(self) -> DoorStatistics:
        self._statistics.lookups = self._callers.lookups if self._callers is not None else 0
        return self._statistics

    # ---- one request

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            if request.path == TOKEN_PATH:
                return await self._token(request)
            user = self._authenticated(request)
            return await self._answer(request, user)
        except RemoteError as error:
            return self._refused(error)
        except Exception as error:  # noqa: BLE001  the outermost edge: the client gets an answer it can parse
            self._statistics.faults += 1
            _LOG.exception("webhdfs: %s %.200s", request.method, request.raw_path)
            return self._refused(FaultError(type(error).__name__))

    async def _answer(self, request: web.Request, user: str | None) -> web.StreamResponse:
        if "Origin" in request.headers:  # sent by a browser for a web page, and by no client of this door
            raise AccessControlError("Requests from web pages are refused")
        if request.method not in ("GET", "PUT", "POST", "DELETE"):
            raise IllegalArgumentError(f"Method {request.method} is not used by WebHDFS")
        parsed = wire.parse(request.method, request.raw_path)
        check_op(parsed)
        self._statistics.requests[parsed.op] += 1
        files = self._files()
        if files is None or files.failure is not None:
            return await self._elsewhere(request, files, user or parsed.user(self.options.superuser))
        caller = Caller(
            user or parsed.user(self.options.superuser),
            self.options.superuser,
            request.remote or "",
            self._host(request),
        )
        simple = SIMPLE.get((parsed.method, parsed.op))
        if simple is not None:
            return _response(await simple(files, parsed, caller))
        if self._statistics.open_streams >= self.options.max_streams:
            raise RetriableError(f"{self.options.max_streams} files are being sent or received; that is the limit")
        self._statistics.open_streams += 1
        try:
            return await self._streamed(files, request, parsed, caller)
        finally:
            self._statistics.open_streams -= 1

    async def _streamed(
        self, files: Files, request: web.Request, parsed: DoorRequest, caller: Caller
    ) -> web.StreamResponse:
        second = parsed.boolean(DATA_MARK)
        location = self._location(request)
        if parsed.boolean("noredirect") and not second:
            return _response(DoorReply(wire.json({"Location": location})))
        if parsed.op == "OPEN":
            return await self._open(files, request, parsed)
        if not second:
            await self._check_first(files, parsed)
            return _response(DoorReply(status=307, location=location))
        if parsed.op == "GETFILECHECKSUM":
            return _response(DoorReply(await file_checksum(files, parsed.path)))
        if parsed.op == "APPEND":
            await self._receive(request, await files.append(parsed.path))
            return _response(DoorReply())
        return await self._create(files, request, parsed, caller)

    async def _create(
        self, files: Files, request: web.Request, parsed: DoorRequest, caller: Caller
    ) -> web.StreamResponse:
        flags = parsed.flags()
        overwrite = parsed.boolean("overwrite") or "OVERWRITE" in flags
        replication = parsed.number("replication", 1, 1, 32767)
        block_bytes = parsed.number("blocksize", DEFAULT_FILE_BLOCK_BYTES, 1)
        permission, create_parent = parsed.permission(0o644), parsed.boolean("createparent", True)
        writer = await files.create(
            parsed.path, overwrite, create_parent, permission, caller.user, replication, block_bytes, caller.client
        )
        await self._receive(request, writer)
        scheme = "swebhdfs" if self.options.tls else "webhdfs"
        path = request.raw_path.partition("?")[0][len(wire.PREFIX) :]
        return _response(DoorReply(status=201, location=f"{scheme}://{caller.host}{path}"))

    async def _check_first(self, files: Files, parsed: DoorRequest) -> None:
        """In the first of two steps: refuse early if it is already certain that the second would be refused."""
        parsed.flags()
        parsed.permission(0)
        if parsed.op != "CREATE":
            await files.status(parsed.path)

    async def _receive(self, request: web.Request, writer: ContentWriter) -> None:
        try:
            while True:
                chunk = await self._in_time(request.content.readany())
                if not chunk:
                    break
                self._statistics.received_bytes += len(chunk)
                await writer.write(chunk)
            await writer.close()
        except (ConnectionError, ClientError, web.RequestPayloadError) as error:
            raise RemoteIOError(f"The body broke off; nothing was kept: {type(error).__name__}") from None
        except asyncio.TimeoutError:
            raise RemoteIOError(f"No data for {self.options.idle_timeout_ms} ms; nothing was kept") from None
        finally:
            await writer.abort()  # does nothing after close

    async def _open(self, files: Files, request: web.Request, parsed: DoorRequest) -> web.StreamResponse:
        offset = parsed.number("offset", 0)
        reader = await files.read(parsed.path, offset, parsed.optional_number("length"))
        try:
            self._statistics.sent_bytes += reader.length
            if reader.length <= self.options.answer_at_once_bytes:
                return _response(DoorReply(await reader.all()))
            response = web.StreamResponse()
            response.content_length = reader.length
            await response.prepare(request)
            try:
                async for chunk in reader:
                    for start in range(0, len(chunk), _BODY_CHUNK_BYTES):
                        await self._in_time(response.write(chunk[start : start + _BODY_CHUNK_BYTES]))
                await response.write_eof()
            except (RemoteError, asyncio.TimeoutError, ConnectionError):
                if request.transport is not None:  # the header was sent already: only a short body can signal the error
                    request.transport.abort()
            return response
        finally:
            reader.close()

    async def _in_time(self, work: Awaitable[Result]) -> Result:
        return await asyncio.wait_for(work, self.options.idle_timeout_ms / 1000)

    # ---- authentication and addresses

    def _authenticated(self, request: web.Request) -> str | None:
        """The token's user; without tokens, the user who owns the connection, or the one that another door of this user has
        admitted. None at an open door."""
        if self.options.tokens is None:
            return self._owner(request)
        token = bearer(request.headers.get("Authorization"))
        user = self.options.tokens.user(token) if token else None
        if user is None:
            raise UnauthenticatedError("Authentication required")
        return user

    def _owner(self, request: web.Request) -> str | None:
        if self._callers is not None:
            self._callers.admit(request.task, request.transport)
        if FORWARDED not in request.headers:
            return None if self._callers is None else self._callers.user.name
        passed = request.headers.get(FORWARDED_USER)
        if passed is None and self._callers is not None:
            raise StandbyError(f"{OLD_FORWARDER}: StandbyException")  # the client tries the next address
        return None if passed is None else unquote(passed)

    async def _token(self, request: web.Request) -> web.StreamResponse:
        """For Hadoop's OAuth2 providers: exchanges a credential or refresh token for the access token, which is the same."""
        if self.options.tokens is None or request.method != "POST":
            raise UnauthenticatedError("This door issues no tokens")
        if (request.content_length or MAX_FORM_BYTES + 1) > MAX_FORM_BYTES:
            raise IllegalArgumentError("The form is too long or has no length")
        form = wire.form(await self._in_time(request.content.read(MAX_FORM_BYTES)))
        secret = form.get("client_secret") or form.get("refresh_token") or ""
        if self.options.tokens.user(secret) is None:
            raise UnauthenticatedError("Authentication required")
        answer = {"access_token": secret, "token_type": "Bearer", "expires_in": TOKEN_SECONDS}
        return _response(DoorReply(wire.json(answer)))

    async def _elsewhere(self, request: web.Request, files: Files | None, user: str) -> web.StreamResponse:
        target = self._forward_to() if files is None else None
        if target is not None and self._forwarder is not None and FORWARDED not in request.headers:
            self._statistics.forwarded += 1
            return await self._forwarder.forward(request, target, {FORWARDED: "1", FORWARDED_USER: quote(user)})
        if files is not None:
            raise RetriableError(f"The namespace failed and is being opened again: {files.failure}")
        # Hadoop's client checks how the message ends
        raise StandbyError("This door does not serve the namespace now: StandbyException")

    def _host(self, request: web.Request) -> str:
        host = request.headers.get("Host", "")
        return host if _HOST.match(host) else f"{self.host}:{self.port}"

    def _location(self, request: web.Request) -> str:
        scheme = "https" if self.options.tls else "http"
        return f"{scheme}://{self._host(request)}{request.raw_path}&{DATA_MARK}=true"

    def _refused(self, error: RemoteError) -> web.Response:
        self._statistics.refusals[error.exception] += 1
        response = web.Response(status=error.status, body=wire.error(error))
        if isinstance(error, UnauthenticatedError):
            response.headers["WWW-Authenticate"] = "Bearer"
        return response


class Forwarder:
    """Forwards a request to the daemon that serves the namespace, a chunk at a time in both directions; the caller's Host
    header too, so that the second step of a request comes back through this door."""

    def __init__(self, tls: ssl.SSLContext | None, secure: bool) -> None:
        self._scheme = "https" if secure else "http"
        connector = aiohttp.TCPConnector(ssl=tls if tls is not None else True, limit=256)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=IDLE_TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, skip_auto_headers=("Content-Type",)
        )

    async def close(self) -> None:
        await self._session.close()

    async def forward(self, request: web.Request, target: str, mark: dict[str, str]) -> web.StreamResponse:
        """RetriableError when the other daemon cannot be reached, or closes the connection before it answered."""
        left_out = _HOP | {name.lower() for name in mark}
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in left_out]
        headers += list(mark.items())
        url = URL(f"{self._scheme}://{target}{request.raw_path}", encoded=True)
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method,
                url,
                headers=headers,
                data=request.content.iter_any() if request.body_exists else None,
                allow_redirects=False,
            ) as answer:
                response = web.StreamResponse(status=answer.status)
                for name in ("Location", "WWW-Authenticate"):
                    if name in answer.headers:
                        response.headers[name] = answer.headers[name]
                if answer.content_length is not None and answer.content_length <= 1024 * 1024:
                    return web.Response(status=answer.status, headers=response.headers, body=await answer.read())
                response.content_length = answer.content_length
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
                return response
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            if response is not None and response.prepared:
                if request.transport is not None:
                    request.transport.abort()
                return response
            raise RetriableError(f"The daemon at {target} that serves the namespace did not answer: {error}") from error


def bearer(header: str | None) -> str | None:
    """The token of an Authorization header."""
    scheme, _, token = (header or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def check_binding(host: str, tls: bool, tokens: bool) -> None:
    """SecurityConfigError when other machines could reach the door without TLS and tokens."""
    if not is_loopback(host) and not (tls and tokens):
        missing = " and ".join(name for name, there in (("TLS", tls), ("a token file", tokens)) if not there)
        raise SecurityConfigError(f"{host or 'every address'} is not loopback and there is no {missing}")


def _response(answer: DoorReply) -> web.Response:
    response = web.Response(status=answer.status, body=answer.body)
    if answer.location:
        response.headers["Location"] = answer.location
    return response


async def _no_content_type(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.popall("Content-Type", None)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
