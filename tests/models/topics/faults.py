"""Stores that are away, and answers that are lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from spark_jms.store import MemoryStore, OutcomeUnknownError, StoreBusyError
from spark_jms.store.ledger.store import MemoryBackend


class Faults:
    """`away`: the servers whose stores refuse everything. The next write of `forgetful` is done, and its answer lost."""

    def __init__(self, stores: Mapping[str, MemoryStore]) -> None:
        self._servers = {id(store._memory): name for name, store in stores.items()}
        self.away: set[str] = set()
        self.forgetful = ""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("read", "attach", "alive"):
            patch.setattr(MemoryBackend, name, self._refusing(getattr(MemoryBackend, name)))
        write = self._refusing(MemoryBackend.write)

        def writing(backend: MemoryBackend, plan: Callable[[Any], Any]) -> Any:
            result = write(backend, plan)
            if self.forgetful and self.forgetful == self._servers.get(id(backend)):
                self.forgetful = ""
                raise OutcomeUnknownError("the answer was lost")
            return result

        patch.setattr(MemoryBackend, "write", writing)

    def _refusing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(backend: MemoryBackend, *args: Any) -> Any:
            if self._servers.get(id(backend)) in self.away:
                raise StoreBusyError("away")
            return real(backend, *args)

        return act
