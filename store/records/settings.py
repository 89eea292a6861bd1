"""The settings in a `replicated:///` URI."""

from __future__ import annotations

import os
import urllib.parse
from dataclasses import dataclass, field

from spark_jms.store.errors import StoreUriError
from spark_jms.store.regions.client.instance import DEFAULT_REGION_BYTES
from spark_jms.store.regions.client.thresholds import Thresholds, parse_thresholds


@dataclass(frozen=True)
class ReplicatedSettings:
    """replicated:///global/directory?store=NAME&localindex=0&region_mb=64

    `engine_host` is the address at which this machine's engine serves the other machines; `daemon` means that of its
    daemon in rs_daemons.cfg, so that one URI is right everywhere. Other than loopback needs certificate and key.
    """

    directory: str
    store: str = "jmsq"
    localindex: int = 0
    region_bytes: int = DEFAULT_REGION_BYTES
    thresholds: Thresholds = field(default_factory=Thresholds)
    engine_host: str = "127.0.0.1"
    engine_port: int = 0
    engine_certificate: str = ""
    engine_key: str = ""


OPTIONS = ("store", "localindex", "region_mb", "engine_host", "engine_port", "engine_certificate", "engine_key")


def parse_replicated(uri: str) -> ReplicatedSettings:
    parts = urllib.parse.urlsplit(uri)
    path = urllib.parse.unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/"):
        raise StoreUriError(f"replicated:///absolute/global/directory?store=NAME: {uri!r}")
    query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    unknown = query.keys() - set(OPTIONS)
    if unknown:
        raise StoreUriError(f"unknown in {uri!r}: {', '.join(sorted(unknown))}; there are {', '.join(OPTIONS)}")
    store = query.get("store", "jmsq")
    host = query.get("engine_host", "127.0.0.1")
    if host in ("", "0.0.0.0", "::"):
        raise StoreUriError(f"engine_host is one address, by which the other machines know this one, in {uri!r}")
    return ReplicatedSettings(
        path,
        store,
        _integer(uri, query, "localindex", 0, 0, 2**31 - 1),
        _integer(uri, query, "region_mb", DEFAULT_REGION_BYTES >> 20, 1, 4_000) << 20,
        parse_thresholds(dict(os.environ), store),
        host,
        _integer(uri, query, "engine_port", 0, 0, 65_535),
        query.get("engine_certificate", ""),
        query.get("engine_key", query.get("engine_certificate", "")),
    )


def _integer(uri: str, query: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    text = query.get(name, str(default))
    if not text.isdecimal() or not low <= int(text) <= high:
        raise StoreUriError(f"{name} is a number from {low} to {high}, not {text!r}, in {uri!r}")
    return int(text)
