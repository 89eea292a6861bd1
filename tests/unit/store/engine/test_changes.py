"""Changes that rules decide, when engines come and go: each is made once, and its answer is not lost (C9, S2)."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from spark_jms.store import (
    Delete,
    OutcomeUnknownError,
    Put,
    RecordHeldError,
    RecordView,
    RuleCall,
    RuleResult,
    StoreFullError,
)
from spark_jms.store.engine import connections
from spark_jms.store.engine.entry_log import (
    AppendOutcome,
    ChangeProposal,
    EntryLog,
    LedgerBatch,
    Loaded,
    OwnershipLostError,
    Proposal,
    Verdict,
)
from spark_jms.store.errors import StoreError
from spark_jms.store.ledger.backend import ChangeRequest
from spark_jms.store.ledger.group_commit import PlanCall
from spark_jms.store.ledger.record import Change, Connected, Written
from spark_jms.store.ledger.rules import RULES
from tests.unit.store.engine.test_engine import Pair

ADD = RuleCall("add", b"n")


def add(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    sums = {name: int(view.objects.get("n", b"0")) + 1 for name, view in records.items()}
    return RuleResult({name: [Put("n", str(n).encode())] for name, n in sums.items()}, answer=json.dumps(sums).encode())


@pytest.fixture(autouse=True)
def rules() -> Iterator[None]:
    RULES["add"] = add
    yield
    del RULES["add"]


@pytest.mark.parametrize("client", [0, 1], ids=["in the engine's process", "in another process"])
def test_an_answer_that_was_lost_comes_from_the_next_engine(client: int) -> None:
    """S2, C9: kept, then ownership lost before the answer; the next engine knows the token and what the rule said."""
    pair = Pair()
    session = pair.stores[client].connect()
    session.change(["r"], ADD)
    lost: list[LedgerBatch] = []

    def crash(batch: LedgerBatch) -> StoreError | None:
        if lost or not batch.tokens[0].endswith("=" + json.dumps({"r": 2}).encode().hex()):
            return None
        lost.append(batch)
        return OwnershipLostError("lost before the answer")

    pair.place.crash = crash
    assert json.loads(session.change(["r"], ADD)) == {"r": 2}
    assert lost
    assert json.loads(session.change(["r"], ADD)) == {"r": 3}
    assert pair.place.incarnation_count == 2
    pair.close()


@pytest.mark.parametrize("client", [0, 1], ids=["in the engine's process", "in another process"])
def test_a_change_that_was_not_kept_is_made_by_the_next_engine(client: int) -> None:
    """S2, C9: the rule runs again there, on the newest state."""
    pair = Pair()
    session, other = pair.stores[client].connect(), pair.stores[1 - client].connect()
    failed: list[LedgerBatch] = []

    def fail(batch: LedgerBatch) -> StoreError | None:
        if failed or not any(isinstance(entry, Written) for entry in batch.entries):
            return None
        failed.append(batch)
        return OwnershipLostError("lost before the write")

    other.change(["r"], ADD)
    pair.place.fail = fail
    assert json.loads(session.change(["r"], ADD)) == {"r": 2}
    assert failed
    pair.close()


def test_a_change_that_is_too_old_to_tell_is_unknown() -> None:
    """S2: the next engine has forgotten the outcomes of that time."""
    log = EntryLog("i", Loaded(9, (Connected("s", ""),), known_since=7))
    request = ChangeRequest("s", ("r",), "add", b"n")
    shared = log.begin("w")
    with pytest.raises(OutcomeUnknownError, match="forgotten"):
        log.change(ChangeProposal("t", 6, request, again=True), shared, frozenset)
    assert shared.entries == []
    for token, wanted in {
        "t": ChangeProposal("t", 7, request, again=True),
        "u": ChangeProposal("u", 6, request),
    }.items():
        shared = log.begin(token)
        assert json.loads(log.change(wanted, shared, frozenset).answer) == {"r": 1}


def test_the_same_change_twice_in_one_write_or_after_it_is_made_once() -> None:
    """S2: the client reconnected and asked again while the first was under way."""
    log = EntryLog("i", Loaded(1, (Connected("s", ""),)))
    wanted = ChangeProposal("t", 1, ChangeRequest("s", ("r",), "add", b"n"))
    shared = log.begin("w")
    answers = [log.change(wanted, shared, frozenset).answer for _ in range(2)]
    log.keep(shared.batch())
    answers.append(log.change(wanted, log.begin("w2"), frozenset).answer)
    assert {json.loads(answer)["r"] for answer in answers} == {1}
    assert log.ledger.records["r"].objects == {"n": b"1"}


def test_a_change_that_fails_leaves_nothing_in_the_write_that_others_share() -> None:
    """C9, S2: with dead sessions ended for it, too: a write without a token would have no name in a database."""
    log = EntryLog("i", Loaded(4, (Connected("s", ""), Connected("holder", ""), Connected("dead", ""))))
    shared = log.begin("w")
    assert log.propose(Proposal("p", 4, (Connected("new", ""),)), shared) is Verdict.TAKEN
    log.change(ChangeProposal("first", 4, ChangeRequest("s", ("q",), "add", b"n")), shared, lambda ids: frozenset(ids))
    before, tokens = list(shared.entries), list(shared.tokens)
    with pytest.raises(StoreError):
        log.change(
            ChangeProposal("bad", 4, ChangeRequest("s", ("q",), "nobody", b"n")), shared, lambda ids: frozenset()
        )
    assert (shared.entries, shared.tokens) == (before, tokens)
    assert shared.ledger.records["q"].objects == {"n": b"1"}


def test_a_store_that_is_full_refuses_the_change_that_fills_it_alone() -> None:
    """S9, C9: changes of several threads go to the engine together."""
    pair = Pair()
    session = pair.stores[1].connect()
    pair.place.fail = lambda batch: StoreFullError("full") if "big" in repr(batch.entries) else None
    wanted = [
        ChangeProposal(secrets.token_hex(4), 0, ChangeRequest(session.session_id, (name,), "add", b"n"))
        for name in ("small", "big", "other")
    ]
    made = pair.backends[1]._route.access().change(wanted)
    assert [one.error for one in made] == ["", "StoreFullError", ""]
    assert pair.stores[0].names() == ["other", "small"]
    pair.close()


def test_outcomes_of_older_engines_are_tokens_alone() -> None:
    """C9: an older engine takes token and answer together for a token that nobody asks for."""
    for outcome in (AppendOutcome("t"), AppendOutcome("t", b"answer"), AppendOutcome("t.1")):
        assert AppendOutcome.read(outcome.stored()) == outcome
    assert AppendOutcome("t").stored() == "t"


def test_answers_are_forgotten_with_their_outcomes() -> None:
    log = EntryLog("i", Loaded(1, (Connected("s", ""),)), outcomes=2)
    for number in range(5):
        shared = log.begin(f"w{number}")
        log.change(ChangeProposal(f"t{number}", 1, ChangeRequest("s", ("r",), "add", b"n")), shared, frozenset)
        log.keep(shared.batch())
    assert (set(log._outcomes), set(log._answers)) == ({"t3", "t4"}, {"t3", "t4"})


@pytest.mark.parametrize("held", [(), (Change("p", 3, (Put("k", b"v"), Delete("old"))),)])
def test_a_request_is_the_same_behind_the_wire(held: tuple[Change, ...]) -> None:
    request = ChangeRequest("s", ("r", "ü"), "add", b"\x00\xff", held)
    assert connections.request_of(connections.wanted_of("t", request)) == request


def test_errors_of_a_change_keep_their_names_behind_the_wire() -> None:
    for error, kind in ((RecordHeldError("r", "s"), RecordHeldError), (ValueError("odd"), StoreError)):
        call = PlanCall(lambda _: None)
        call.error = error
        with pytest.raises(kind, match="r|odd"):
            connections.answer_of(connections.made_of(call))


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines answer Hello as those of the release before did."""
    monkeypatch.setattr(connections, "GREETING", connections.Done())


@pytest.mark.usefixtures("older")
def test_at_an_older_engine_the_rule_runs_in_the_client() -> None:
    """C9: programs of the release before work beside new ones. Compare and append: the rule runs again when others were faster."""
    pair = Pair()
    session, other = (store.connect() for store in reversed(pair.stores))
    ran: list[int] = []

    def slow(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
        ran.append(int(records["r"].objects.get("n", b"0")))
        if len(ran) == 1:
            _elsewhere(lambda: other.change(["r"], ADD))
        return add(argument, records, sessions)

    RULES["slow"] = slow
    try:
        assert json.loads(session.change(["r"], RuleCall("slow", b""))) == {"r": 2}
    finally:
        del RULES["slow"]
    assert ran == [0, 1]
    pair.close()


def _elsewhere(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_a_change_that_an_older_engine_has_to_tell_of_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: it was sent to an engine that was lost, and an older release serves the store then."""
    pair = Pair()
    session = pair.stores[1].connect()

    def fail(batch: LedgerBatch) -> StoreError | None:
        monkeypatch.setattr(connections, "GREETING", connections.Done())
        return OwnershipLostError("lost before the write")

    pair.place.fail = fail
    with pytest.raises(OutcomeUnknownError, match="older release"):
        session.change(["r"], ADD)
    pair.place.fail = lambda batch: None
    assert json.loads(session.change(["r"], ADD)) == {"r": 1}
    pair.close()
