"""The register of a domain: which destinations there are, and where their tables lie.

One small file for each destination. It names the paths, so a destination that is renamed moves no data, and one that is
created while its name's path is occupied gets a path of its own.

Features: C3, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import PurePosixPath

from spark_jms.errors import DomainError
from spark_jms.log.named_files import NamedFiles
from spark_jms.log.storage import Storage

REGISTER = "_jmsq/destinations"
ACKNOWLEDGEMENTS = "_jmsq/acknowledgements"
LIFE_CYCLES = "_jmsq/life-cycles"


@dataclass(frozen=True)
class RegisterEntry:
    """Where the two tables of a destination lie, below the root. `dropping` is the id of its table while `jmsq drop`
    deletes everything that belongs to it."""

    path: str
    acknowledgements: str
    dropping: str | None = None

    @property
    def life_cycle(self) -> str:
        """Where its life-cycle table lies, if it has one: named as the acknowledgement table is."""
        return f"{LIFE_CYCLES}/{PurePosixPath(self.acknowledgements).name}"

    @staticmethod
    def by_name(name: str) -> RegisterEntry:
        """Of a destination whose tables have its name: an empty file says the same."""
        return RegisterEntry(name, f"{ACKNOWLEDGEMENTS}/{name}")


class Register:
    """Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._files = NamedFiles(storage, REGISTER)

    def names(self) -> list[str]:
        """Those that are being dropped too."""
        return self._files.names()

    def entry(self, name: str) -> RegisterEntry | None:
        """None when there is no such destination. Raises DomainError when its entry is damaged."""
        data = self._files.get(name)
        if data is None:
            return None
        if not data.strip():
            return RegisterEntry.by_name(name)
        try:
            return _from_bytes(data)
        except (ValueError, TypeError) as error:
            raise DomainError(
                f"{self._files.shown(name)} is damaged ({error}): restore it from a copy, or write into it "
                f"{json.dumps(asdict(RegisterEntry.by_name(name)))} with the paths of the two tables below the root"
            ) from error

    def add(self, name: str, entry: RegisterEntry) -> bool:
        """False when there is such a destination already. Of two processes that enter the same tables both may get True.
        Durable on return."""
        return self._files.create(name, _to_bytes(entry))

    def replace(self, name: str, entry: RegisterEntry) -> None:
        """Durable on return."""
        self._files.put(name, _to_bytes(entry))

    def remove(self, name: str) -> None:
        self._files.delete(name)

    def paths(self) -> set[str]:
        """The paths of all tables that have a name."""
        entries = [entry for name in self.names() if (entry := self.entry(name)) is not None]
        return {path for entry in entries for path in (entry.path, entry.acknowledgements, entry.life_cycle)}


def _to_bytes(entry: RegisterEntry) -> bytes:
    return json.dumps({key: value for key, value in asdict(entry).items() if value is not None}, indent=1).encode()


@lru_cache
def _from_bytes(data: bytes) -> RegisterEntry:
    """An entry is read with every use of its destination, and hardly ever changes."""
    entry = RegisterEntry(**json.loads(data))
    if not all(map(_is_below_the_root, (entry.path, entry.acknowledgements))):
        raise ValueError("a path leads out of the root")
    return entry


def _is_below_the_root(path: str) -> bool:
    return bool(path) and not path.startswith("/") and ".." not in PurePosixPath(path).parts
