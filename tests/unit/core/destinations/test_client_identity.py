"""Client ids and what subscriptions are kept as (C10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.subscriptions import ClientIdentity, check_kept
from spark_jms.errors import ModuleFileError, OptionError

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,9}", fullmatch=True)
IDENTITIES = st.builds(ClientIdentity, st.none() | NAMES, st.sampled_from(["restricted", "unrestricted"]))


@given(IDENTITIES, NAMES, IDENTITIES, NAMES)
def test_subscriptions_of_different_clients_are_different(
    one: ClientIdentity, name: str, other: ClientIdentity, other_name: str
) -> None:
    """C10: by id, policy and name."""
    same = name == other_name and (one == other or one.client_id is other.client_id is None)
    assert (one.kept(name) == other.kept(other_name)) == same
    check_kept(one.kept(name))


def test_wrong_names_are_refused() -> None:
    """C10"""
    for client_id in ("", "a b", "a:b", "~a", "x" * 200):
        with pytest.raises(OptionError, match="client id"):
            ClientIdentity(client_id)
    with pytest.raises(OptionError, match="must be one of restricted, unrestricted"):
        ClientIdentity("a", "free")
    for name in ("a:b", "~a", "", "a/b"):
        with pytest.raises(OptionError, match="subscription"):
            ClientIdentity("a").kept(name)
    for kept in ("a:b:c", "a:::b", ":b", "a:", "~a", "a: b", "::"):
        with pytest.raises(ModuleFileError):
            check_kept(kept)
    assert ClientIdentity("a").is_restricted
    assert not ClientIdentity("a", "unrestricted").is_restricted
    assert not ClientIdentity().is_restricted
