"""Whether a store accepts new messages, for senders, which open no store.

The store publishes `daemons/STORE.overload` in the Global Directory while it and its daemon are above yellow, and removes
it when one of them is not. The file names its writer, and counts only while that client has a region of the store open:
`regions/STORE.NNN_client_meta.f` names the opener. So what a store that ended has left there refuses nothing.

A sender needs no more than the path: this module imports nothing heavy, and the directory may hang or be away.

Features: R13 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import threading
from pathlib import Path

from spark_jms.store.errors import ResourceAllocationException

log = logging.getLogger("store.replicated")

LOOK_S = 1.0  # a directory that takes longer refuses nothing


class PublishedOverload:
    """The store's side. `put` blocks; OSError."""

    def __init__(self, directory: Path, store: str, opener: str) -> None:
        self._file = _file(directory, store)
        self._opener = opener

    def put(self, reason: str) -> None:
        """`reason`: why new messages are refused; "" when they are accepted."""
        if not reason:
            self._file.unlink(missing_ok=True)
            return
        new = self._file.with_name(f".{self._file.name}.{os.getpid()}.{secrets.token_hex(4)}")
        new.write_text(json.dumps({"opener": self._opener, "reason": reason}))
        new.chmod(0o640)
        new.rename(self._file)


class SendAdmission:
    """A sender's side. Thread-safe."""

    def __init__(self, directory: str, store: str) -> None:
        self._directory = Path(os.path.realpath(directory))
        self._store = store
        self._looking: threading.Thread | None = None

    def check(self) -> None:
        """ResourceAllocationException while the store is above yellow. A directory that this process cannot read, or that
        does not answer in time, refuses nothing."""
        found: list[str] = []
        if self._looking is not None and self._looking.is_alive():
            return  # the directory hangs
        self._looking = looking = threading.Thread(target=self._look, args=(found,), name="store-overload", daemon=True)
        looking.start()
        looking.join(LOOK_S)
        if looking.is_alive():
            log.warning("%s does not answer: whether its store accepts messages is unknown", self._directory)
        if found:
            raise ResourceAllocationException(f"store {self._store}: {found[0]}")

    def _look(self, found: list[str]) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(_file(self._directory, self._store).read_bytes())
            regions = self._directory / "regions"
            if any(path.read_text() == told["opener"] for path in regions.glob(f"{self._store}.*_client_meta.f")):
                found.append(str(told["reason"]))


def _file(directory: Path, store: str) -> Path:
    return directory / "daemons" / f"{store}.overload"
