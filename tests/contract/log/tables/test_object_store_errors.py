"""An object store that refuses, fails or cannot be reached: the user reads one sentence that says what to do (C17)."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner

from spark_jms.cli.__main__ import cli
from spark_jms.errors import DomainError
from spark_jms.log.tables.object_store import ObjectStorage, open_storage

CALLS: dict[str, Callable[[ObjectStorage], Any]] = {
    "read": lambda storage: storage.get("orders/a.json"),
    "read, exists": lambda storage: storage.exists("orders/a.json"),
    "read, open": lambda storage: storage.open_input("orders/a.json"),
    "write": lambda storage: storage.put("orders/a.json", b"x"),
    "write, create": lambda storage: storage.create("orders/a.json", b"x"),
    "write, open": lambda storage: storage.open_output("orders/a.json").close(),
    "delete": lambda storage: storage.delete("orders/a.json"),
    "list": lambda storage: list(storage.list("orders/a.json")),
}


class FailingServer(ThreadingHTTPServer):
    """Speaks S3 just well enough to refuse every request with `status`."""

    status, code = 403, "AccessDenied"

    def __init__(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = f"<?xml version='1.0'?><Error><Code>{server.code}</Code></Error>".encode()
                self.send_response(server.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def server() -> Iterator[FailingServer]:
    with FailingServer() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def storage_at(port: int) -> ObjectStorage:
    from obstore.store import S3Store

    store = S3Store(
        "bucket",
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=2)},
    )
    return ObjectStorage("s3://bucket/data", store=store)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("status", "answer", "advice"),
    [
        (403, "403 Forbidden", "let the credentials in the environment read, write, list and delete there"),
        (401, "401 Unauthorized", "set valid credentials in the environment"),
        (400, "400 Bad Request", "check the root's URL, its region and the credentials in the environment"),
        (503, "503 Service Unavailable", "the service fails: try again later"),
    ],
)
def test_refusal_is_one_sentence(server: FailingServer, call: str, status: int, answer: str, advice: str) -> None:
    """C17: the operation, the object, the answer, what to do; the cause hangs on it, without Rust's dump. Where a file is created, an
    attempt before the last may have arrived."""
    server.status = status
    with pytest.raises(OSError, match="^cannot ") as caught:
        CALLS[call](storage_at(server.server_port))
    text = str(caught.value)
    assert text.startswith(
        f"cannot {call.partition(',')[0]} s3://bucket/data/orders/a.json: the server answered {answer}"
    )
    unknown = ". The file may be there all the same, or appear later" if call == "write, create" else ""
    assert text.endswith(f"; {advice}{unknown}")
    assert "\n" not in text
    cause = str(caught.value.__cause__)
    assert answer in cause
    assert "Debug source" not in cause + text


@pytest.mark.parametrize("call", ["write", "write, create", "write, open", "list"])
def test_missing_bucket_is_one_sentence(server: FailingServer, call: str) -> None:
    """C17: not a FileNotFoundError, which would mean a missing object."""
    server.status, server.code = 404, "NoSuchBucket"
    with pytest.raises(OSError, match="^cannot ") as caught:
        CALLS[call](storage_at(server.server_port))
    assert not isinstance(caught.value, FileNotFoundError)
    assert "answered 404 Not Found (NoSuchBucket); create the bucket or container" in str(caught.value)


def test_missing_object_is_no_error(server: FailingServer) -> None:
    """C17"""
    server.status, server.code = 404, "NoSuchKey"
    storage = storage_at(server.server_port)
    assert (storage.get("a"), storage.exists("a")) == (None, False)
    with pytest.raises(FileNotFoundError, match="^a$"):
        storage.open_input("a")


def test_unreachable_server_is_one_sentence(server: FailingServer) -> None:
    """C17"""
    port = server.server_port
    server.server_close()
    with pytest.raises(OSError, match="^cannot read s3://bucket/data/a: the server cannot be reached; check the root"):
        storage_at(port).get("a")


@pytest.mark.parametrize(("root", "said"), [("s3://", "Unable to recognise URL"), ("az://box", "Account must be")])
def test_root_that_cannot_be_opened_is_one_line(root: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C14, C17"""
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        DomainError, match=f"^the root '{root}' cannot be opened: .*{said}.*; check the root's URL"
    ) as caught:
        open_storage(root)
    assert "Debug source" not in str(caught.value.__cause__)
    done = CliRunner().invoke(cli, ["list", "--root", root, "--json"])
    assert done.exit_code == 1
    error = json.loads(done.stderr)["error"]
    assert error["type"] == "DomainError"
    assert "\n" not in error["message"]


@pytest.mark.parametrize("root", ["amqp://localhost", "kafka://broker", "jdbc:postgresql://db/jms"])
def test_root_of_no_known_kind_recommends_no_package(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C14, C17: also where the object stores' package is not installed."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(DomainError, match="is of no known kind: give a directory, or the URL of an object store"):
        open_storage(root)
