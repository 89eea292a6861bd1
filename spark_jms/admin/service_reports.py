"""What processes with services tell of themselves: for `jmsq services --status`.

ROOT/_jmsq/services/<host>-<pid>    its engine, its services, and the lag, every few seconds; deleted when it ends

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from spark_jms.admin.services import LagRow, ServiceStatus
from spark_jms.claims.views import moment
from spark_jms.errors import DomainError
from spark_jms.log.domain import Domain
from spark_jms.log.named_files import NamedFiles
from spark_jms.log.storage import now_ms

SERVICES_FOLDER = "_jmsq/services"
_FORGOTTEN = timedelta(days=1)
_SILENT_S, _MISSED = 60.0, 3  # reports that a live process may miss


@dataclass(frozen=True)
class ServiceReport:
    """`services` and `lag` as they were `at`; `silent`: that is a minute ago, or three intervals of the
    process, so it was killed or hangs."""

    process: str
    engine: str
    at: datetime
    silent: bool
    services: tuple[dict[str, Any], ...]
    lag: tuple[dict[str, Any], ...]


class ServiceReporter:
    """Of this process."""

    def __init__(self, domain: Domain, engine: str, every_s: float = 10.0) -> None:
        """`every_s`: how often it reports."""
        self._domain, self._files, self._engine = domain, _files(domain), engine
        self.process = f"{socket.gethostname()}-{os.getpid()}"
        self._silent_s, self._has_forgotten = max(_SILENT_S, _MISSED * every_s), False

    def report(self, services: Sequence[ServiceStatus], lag: Sequence[LagRow]) -> str:
        """What prevented it; "" when nothing did. The first report deletes those of processes that were killed a day ago."""
        try:
            if not self._has_forgotten:
                self.forget_old()
                self._has_forgotten = True
            try:
                self._write(services, lag)
            except FileNotFoundError:  # the folder was deleted, and the storage remembers that it had made it
                self._domain.check_present()
                self._files = _files(self._domain)
                self._write(services, lag)
        except (DomainError, OSError) as error:
            return f"the report for --status cannot be written: {error}"
        return ""

    def _write(self, services: Sequence[ServiceStatus], lag: Sequence[LagRow]) -> None:
        document = {
            "atMs": now_ms(),
            "silentAfterS": self._silent_s,
            "engine": self._engine,
            "services": [{**asdict(one), "state": one.state} for one in services],
            "lag": [asdict(row) for row in lag],
        }
        self._files.put(self.process, json.dumps(document, default=datetime.isoformat).encode())

    def end(self) -> None:
        with suppress(OSError):  # the report stays for a day, silent
            self._files.delete(self.process)

    def forget_old(self) -> None:
        """The files of processes that were killed more than a day ago."""
        for name in self._files.names():
            data = self._files.get(name)
            report = None if data is None else _report(name, data)
            if data is not None and (report is None or moment(now_ms()) - report.at > _FORGOTTEN):
                self._files.delete(name)


def _files(domain: Domain) -> NamedFiles:
    folder, name = SERVICES_FOLDER.rsplit("/", 1)
    return NamedFiles(domain.storage.child(folder), name)


def service_reports(domain: Domain) -> list[ServiceReport]:
    """Of the processes that run services, and of those that were killed in the last day."""
    files = _files(domain)
    reports = (_report(name, files.get(name) or b"") for name in files.names())
    return [report for report in reports if report is not None]


def _report(name: str, data: bytes) -> ServiceReport | None:
    """None: it is damaged."""
    try:
        document = json.loads(data)
        at = moment(int(document["atMs"]))
        services, lag = tuple(document["services"]), tuple(document["lag"])
        silent = moment(now_ms()) - at > timedelta(seconds=document.get("silentAfterS", _SILENT_S))
        return ServiceReport(name, document["engine"], at, silent, services, lag)
    except (ValueError, KeyError, TypeError, ArithmeticError, OSError):  # also of a time that no calendar has
        return None
