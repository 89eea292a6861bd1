"""Client identifiers: which connection a subscription belongs to. Pure.

    policy         connections with this client id   the subscription `billing` is kept as
    ------------   -------------------------------   -------------------------------------
    (no id)        –                                 billing
    restricted     one at a time in the domain       app:billing
    unrestricted   any number                        app::billing

A subscription belongs to its client id *and* policy, so the three are different ones. No name has a colon or an @ in it. On a
replicated topic a server comes before all of it: `east@app:billing` (subscription_name.py).

Features: C10 (docs/FEATURES.md)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from spark_jms.core.destination import check_name
from spark_jms.errors import ModuleFileError, OptionError

ClientIdPolicy = Literal["restricted", "unrestricted"]
POLICIES: tuple[ClientIdPolicy, ...] = get_args(ClientIdPolicy)
_SEPARATORS = {"restricted": ":", "unrestricted": "::"}
_KEPT = re.compile(r"(?:(?P<server>[^:@]+)@)?(?:(?P<client>[^:@]+)::?)?(?P<name>[^:@]+)\Z")


@dataclass(frozen=True)
class ClientIdentity:
    """Raises OptionError for a wrong id or policy."""

    client_id: str | None = None
    policy: str = "restricted"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise OptionError(f"the client id policy is {self.policy!r}, but must be one of {', '.join(POLICIES)}")
        if self.client_id is not None:
            _checked("client id", self.client_id)

    @property
    def is_restricted(self) -> bool:
        """Only one connection may have it at a time."""
        return self.client_id is not None and self.policy == "restricted"

    def kept(self, subscription: str) -> str:
        """What a subscription of this client is kept as."""
        _checked("subscription", subscription)
        return subscription if self.client_id is None else f"{self.client_id}{_SEPARATORS[self.policy]}{subscription}"


def check_kept(subscription: str) -> None:
    """Raises ModuleFileError unless `ClientIdentity.kept` could have returned it, or `on_server` of that."""
    parts = _KEPT.match(subscription)
    if parts is None:
        check_name("subscription", subscription)
        return
    for what, part in (("server", "server"), ("client id", "client"), ("subscription", "name")):
        if parts[part] is not None:
            check_name(what, parts[part])


def _checked(what: str, name: str) -> None:
    try:
        check_name(what, name)
    except ModuleFileError as error:
        raise OptionError(str(error)) from None
