"""A local storage whose operations a test can stop, fail or let go before and after they happen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_jms.log.tables.storage import LocalStorage, settled

Hook = Callable[[str, str], object]  # step ("before create", "after delete" ...), path


class HookedStorage(LocalStorage):
    """`hook` is called before and after each operation that changes files; what it raises, the operation raises."""

    def __init__(self, root: str, hook: Hook) -> None:
        super().__init__(Path(root))
        self.hook = hook

    def _hooked(self, name: str, path: str, operation: Callable[[], Any]) -> Any:
        self.hook(f"before {name}", path)
        result = operation()
        self.hook(f"after {name}", path)
        return result

    def create(self, path: str, data: bytes, *, durable: bool = False) -> bool:
        create = super().create
        return settled(
            self, path, data, lambda: bool(self._hooked("create", path, lambda: create(path, data, durable=durable)))
        )

    def open_output(self, path: str) -> Any:
        open_output = super().open_output
        return self._hooked("open_output", path, lambda: open_output(path))

    def delete(self, path: str) -> None:
        delete = super().delete
        self._hooked("delete", path, lambda: delete(path))
