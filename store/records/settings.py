"""Parses a `replicated:///` URI. `spark_jms/settings/store.py` declares its options."""

from __future__ import annotations

import os
import urllib.parse

import attrs

from spark_jms.settings.store import ReplicatedOptions, Thresholds, from_query
from spark_jms.settings.table import settings_of
from spark_jms.store.errors import StoreUriError
from spark_jms.store.regions.client.thresholds import parse_thresholds


@attrs.frozen
class ReplicatedSettings(ReplicatedOptions):
    """replicated:///global/directory?store=NAME&localindex=0&region_mb=64"""

    directory: str = attrs.field(kw_only=True)
    thresholds: Thresholds = attrs.field(factory=Thresholds, kw_only=True)


def parse_replicated(uri: str) -> ReplicatedSettings:
    try:
        parts = urllib.parse.urlsplit(uri)
    except ValueError as error:
        raise StoreUriError(f"not a replicated URI ({error}): {uri!r}") from error
    path = urllib.parse.unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/"):
        raise StoreUriError(f"replicated:///absolute/global/directory?store=NAME: {uri!r}")
    values, unknown = from_query(ReplicatedOptions, parts.query, f", in {uri!r}")
    if unknown:
        names, known = sorted(dict(unknown)), ", ".join(settings_of(ReplicatedOptions))
        raise StoreUriError(f"unknown in {uri!r}: {', '.join(names)}; there are {known}")
    values.setdefault("engine_key", values.get("engine_certificate", ""))
    settings = ReplicatedSettings(directory=path, **values)
    return attrs.evolve(settings, thresholds=parse_thresholds(dict(os.environ), settings.store))
