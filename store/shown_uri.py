"""A store's URI as people may see it."""

from __future__ import annotations

import re

_USER_PASSWORD = re.compile(r"(//[^:/?#@]*):[^?#]*@")
_PASSWORD_OPTION = re.compile(r"([?&][^=&]*(?:password|secret)[^=&]*=)[^&#]*", re.IGNORECASE)


def shown_uri(uri: str) -> str:
    """The URI without passwords: `***` stands for one, also for one that makes the URI wrong."""
    return _PASSWORD_OPTION.sub(r"\1***", _USER_PASSWORD.sub(r"\1:***@", uri))
