"""Terms of the servers' leases, in a table and in the domain (D4): core/lease_term.py, log/server_terms.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import route_of
from spark_jms.core.destinations.servers import HELD, LeaseTerm
from spark_jms.errors import DomainError, ServerDownError
from spark_jms.log.destinations.servers import TERMS, KnownTerm, ServerTerms
from spark_jms.testing.memory_storage import MemoryStorage

terms = st.builds(LeaseTerm, st.integers(1, 9), st.none() | st.integers(0, 99))


@given(st.dictionaries(st.sampled_from("abc"), terms), st.dictionaries(st.sampled_from("abc"), st.integers(0, 99)))
def test_destination_stores_both_reasons_of_a_server_that_is_down(
    known: dict[str, LeaseTerm], stopped: dict[str, int]
) -> None:
    """D4: the table keeps stops and lapses apart; the server is down while either stands, since the earlier of the two."""
    made = Destination("orders", "distributed-queue", 3, servers=("a", "b", "c"), stopped=stopped, terms=known)
    assert Destination.from_configuration(made.to_configuration(), "here") == made
    lapsed = {server: term.lapsed_ms for server, term in known.items() if term.lapsed_ms is not None}
    assert made.down == {s: min(both[s] for both in (stopped, lapsed) if s in both) for s in {*stopped, *lapsed}}
    assert route_of(made).closed == {member for member in made.member_ids if made.server_of(member) in made.down}


def test_tables_without_terms_keep_their_stops() -> None:
    """D4: a table that an earlier version wrote has no terms."""
    made = Destination("orders", "distributed-queue", 2, servers=("a", "b"), stopped={"a": 5})
    stored = {key: value for key, value in made.to_configuration().items() if key != "jmsq.leaseTerms"}
    assert stored["jmsq.down"] == '{"a": 5}'
    assert Destination.from_configuration(stored, "here") == made


@pytest.mark.parametrize(("stopped", "said"), [({"a": 1}, "jmsq server start a"), ({}, "Server a is away")])
def test_error_tells_why_a_server_is_down(stopped: dict[str, int], said: str) -> None:
    """D4: a stopped server has to be started; one that is away returns by itself."""
    made = Destination("o", "distributed-queue", 2, servers=("a", "b"), stopped=stopped, terms={"a": LeaseTerm(1, 7)})
    with pytest.raises(ServerDownError, match=said):
        made.check_up([0])
    made.check_up([1])


def test_terms_follow_each_other_and_only_one_process_begins_each() -> None:
    """D4: of two processes that begin the same term one does; a process that stood still begins none, and changes nothing."""
    storage = MemoryStorage()
    one, other = ServerTerms(storage), ServerTerms(storage)
    assert one.newest() == {}
    assert one.begin("a", HELD.next(7))
    assert not other.begin("a", HELD.next(8))
    assert other.lapsed() == {"a": LeaseTerm(1, 7)}
    other.note_done("a", LeaseTerm(1, 7))
    assert one.newest() == {"a": KnownTerm(LeaseTerm(1, 7), done=True)}
    assert one.begin("a", LeaseTerm(2))
    assert one.begin("a", LeaseTerm(3, 9))
    assert not other.begin("a", LeaseTerm(1, 4))
    assert not other.begin("a", LeaseTerm(2, 4))
    assert other.newest() == one.newest() == {"a": KnownTerm(LeaseTerm(3, 9), done=False)}
    assert one.begin("a", LeaseTerm(4))
    assert [info.path for info in storage.list(TERMS)] == [f"{TERMS}/a/0000000004"]
    assert one.lapsed() == {}


def test_damaged_term_is_named() -> None:
    """D4: the error names the file."""
    storage = MemoryStorage()
    storage.put(f"{TERMS}/a/0000000001", b"?")
    with pytest.raises(DomainError, match="lease-terms/a/0000000001 is damaged"):
        ServerTerms(storage).newest()
