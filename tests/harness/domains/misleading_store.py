"""An object store whose answer to "create this file" does not say what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError

Put = Callable[..., Any]


class Answer(Enum):
    """What happens to the first request that creates the file. In all cases but THEIRS the file is the caller's in the end."""

    THEIRS = "it exists, from another writer"
    OURS = "it exists, from this very request, whose first answer was lost"
    NOTHING = "it exists, and nothing is written (S3's 409)"
    LOST = "an error, and the file is written"
    FAILED = "an error, and nothing is written"


UNCERTAIN = [answer for answer in Answer if answer is not Answer.THEIRS]


@dataclass
class MisleadingStore:
    """All object stores of this process. `at`: how the path of the file ends. `asked`: the paths of the requests so far."""

    at: str
    answer: Answer
    theirs: bytes = b""
    is_endless: bool = False  # all requests are answered so, not only the first
    asked: list[str] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> MisleadingStore:
        put = obstore.put

        def misled(store: Any, path: str, data: bytes, **options: Any) -> Any:
            if options.get("mode") != "create" or not path.endswith(self.at):
                return put(store, path, data, **options)
            self.asked.append(path)
            if len(self.asked) == 1 or self.is_endless:
                if self.answer is Answer.THEIRS:
                    put(store, path, self.theirs)
                if self.answer in (Answer.OURS, Answer.LOST):
                    put(store, path, data, **options)
                if self.answer in (Answer.LOST, Answer.FAILED):
                    raise GenericError("the server answered with status code: 500")
                raise AlreadyExistsError(path)
            return put(store, path, data, **options)

        patch.setattr(obstore, "put", misled)
        return self
