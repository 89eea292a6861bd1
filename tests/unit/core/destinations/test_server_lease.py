"""Leases of servers (D4): core/server_lease.py, and claims/kept_server.py, which does what it decides.

The processes of a run have clocks of their own, which run at different rates; they share the files of a domain in memory. A
store answers, hangs or is killed, for all of them or for some.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.claims.servers.lease import LeasedServer
from spark_jms.core.destinations.servers import (
    ACTS,
    ANSWER_MS,
    CHALLENGE_MS,
    HELD,
    HOLD_EFFORT,
    LOOK_MS,
    READ_MS,
    RETURN_EFFORT,
    VALID_MS,
    WRITE_MS,
    Act,
    Contact,
    Evidence,
    LeaseFile,
    LeaseView,
    Phase,
    Promptness,
    Reach,
    Samples,
    decide,
    effort,
)
from spark_jms.errors import FormatVersionError
from spark_jms.log.destinations.servers import LEASES, ServerLeases, ServerTerms
from spark_jms.testing.memory_storage import MemoryStorage

LENGTH_MS = 10_000
TICK_MS = 50.0
OK, HANGS, KILLED, REFUSED_HERE = "answers", "hangs", "is killed", "is refused to this process"
SLOW = "answers in the last moment"


@dataclass
class World:
    """`state(name)` tells how the store behaves to a process now, and `effort(name)` what a delivery from it costs there."""

    state: Callable[[str], str] = lambda name: OK
    effort: Callable[[str], float] = lambda name: 0.01
    now_ms: float = 0.0
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    history: list[tuple[float, str, int | None]] = field(default_factory=list)

    @property
    def is_down(self) -> bool:
        newest = ServerTerms(self.storage).newest().get("s")
        return newest is not None and newest.term.lapsed_ms is not None

    def run(self, processes: Iterable[Process], until_ms: float) -> None:
        running = list(processes)
        while self.now_ms < until_ms:
            self.now_ms += 10.0
            for process in running:
                process.step()


class Process:
    """Its clock shows `offset_ms` more than the world's and runs `rate` times as fast."""

    def __init__(self, world: World, name: str, rate: float = 1.0, seed: int = 0) -> None:
        self.name, self.rate, self.world = name, rate, world
        self.random = random.Random(f"{name} {seed}")
        self.offset_ms = self.random.uniform(-1e9, 1e9)
        self.stands_still = False
        self._known = Contact()
        self._answer_due_ms: float | None = None
        self.samples, self.sample_count = Samples(), 0
        self._sample_due_ms: float | None = None
        terms, leases = ServerTerms(world.storage), ServerLeases(world.storage, name)
        share = self.random.uniform(0, 0.25)
        self.kept = LeasedServer("s", self, leases, terms, LENGTH_MS, share, lambda: int(world.now_ms))
        self._next_ms = 0.0

    @property
    def clock_ms(self) -> float:
        return self.offset_ms + self.world.now_ms * self.rate

    def step(self) -> None:
        if self.stands_still or self.world.now_ms < self._next_ms:
            return
        if self._sample_due_ms is not None and self.world.now_ms >= self._sample_due_ms:
            self._sample_due_ms = None
            self.samples = self.samples.end(self.world.effort(self.name), self.clock_ms)
        if self.world.effort(self.name) > HOLD_EFFORT and self.random.random() < 0.05:
            self.kept.note_late(self.clock_ms)
        before = self.kept.known.term
        self.kept.tick(self.clock_ms, HELD)
        if self.kept.known.term != before:
            self.world.history.append((self.world.now_ms, self.name, self.kept.known.term.lapsed_ms))
        self._next_ms = self.world.now_ms + TICK_MS * self.random.uniform(1, 2)

    # -- Questions
    @property
    def contact(self) -> Contact:
        state, known = self.world.state(self.name), self._known
        if known.asked_ms is not None and self._answer_due_ms is not None and self.world.now_ms >= self._answer_due_ms:
            if state in (OK, SLOW):
                self._known = known.answered()
            elif state != HANGS and self.random.random() < 0.5:  # some stores try for minutes before they fail
                self._known = known.failed()
        return self._known

    def ask(self, now_ms: float) -> None:
        self._known = self._known.asked(now_ms)
        slow = self.world.state(self.name) == SLOW
        self._answer_due_ms = self.world.now_ms + self.random.uniform(
            *((0.9 * ANSWER_MS, ANSWER_MS) if slow else (1, 60))
        )

    def sample(self, now_ms: float) -> None:
        self.samples, self.sample_count = self.samples.begin(now_ms), self.sample_count + 1
        self._sample_due_ms = self.world.now_ms + self.world.effort(self.name) * WRITE_MS

    def look(self, now_ms: float) -> None:
        self._known = self._known.looked(now_ms, absent=self.world.state(self.name) in (KILLED, REFUSED_HERE))


rates = st.floats(0.7, 1.4)
seeds = st.integers(0, 10**6)


@settings(max_examples=40, deadline=None)
@given(st.lists(rates, min_size=1, max_size=3), st.sampled_from([HANGS, REFUSED_HERE, KILLED]), seeds)
def test_server_stays_up_while_one_process_reaches_it(clock_rates: list[float], fault: str, seed: int) -> None:
    """D4: one client's failed open proves nothing: while one process has answers, no other one takes the server down, however
    its own way to the store fails and however fast its clock runs."""
    world = World(lambda name: OK if name == "reaches" else fault)
    others = [Process(world, f"p{i}", rate, seed) for i, rate in enumerate(clock_rates)]
    world.run([*others, Process(world, "reaches", 1.0, seed)], 60_000)
    assert not world.is_down
    assert not world.history


@settings(max_examples=40, deadline=None)
@given(st.lists(rates, min_size=1, max_size=4), st.sampled_from([HANGS, KILLED]), seeds)
def test_server_that_no_process_reaches_goes_down_and_comes_back(
    clock_rates: list[float], fault: str, seed: int
) -> None:
    """D4: a killed store is down within 2 s, and one that hangs within its lease and 2 s, by the clock of the process that
    notices it; it is up again within 2 s of its return. Each time one process begins the term."""
    world = World()
    processes = [Process(world, f"p{i}", rate, seed) for i, rate in enumerate(clock_rates)]
    world.run(processes, 20_000)
    assert not world.history
    world.state = lambda name: fault
    within_ms = 2_000 + (LENGTH_MS if fault == HANGS else 0)
    world.run(processes, 20_000 + within_ms / min(*clock_rates, 1.0))
    assert world.is_down
    world.run(processes, 60_000)
    assert len({term for _, _, term in world.history}) == 1
    world.state = lambda name: OK
    world.run(processes, 62_000)
    assert not world.is_down
    world.run(processes, 70_000)
    assert ServerTerms(world.storage).newest()["s"].term.number == 2


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_leases_end_in_agreement_whatever_happens(seed: int) -> None:
    """D4: processes start, stand still and lose their way to the store, stores hang and are killed; afterwards all agree, and
    the server is up exactly if it answers."""
    chance = random.Random(seed)
    state: dict[str, str] = {}
    world = World(lambda name: state.get(name, OK))
    processes = [Process(world, f"p{i}", chance.uniform(0.7, 1.4), seed) for i in range(chance.randint(1, 4))]
    for _ in range(12):
        for process in processes:
            process.stands_still = chance.random() < 0.2
            state[process.name] = chance.choice([OK, OK, HANGS, KILLED])
        world.run(processes, world.now_ms + chance.choice([300, 2_000, 15_000]))
    end = chance.choice([OK, HANGS, KILLED])
    for process in processes:
        process.stands_still, state[process.name] = False, end
    world.run(processes, world.now_ms + 40_000)
    assert world.is_down is (end != OK)
    assert len({process.kept.known.term for process in processes}) == 1


def test_server_that_no_process_uses_stays_up() -> None:
    """D4: nobody asks, so nobody knows; the first process that finds the store hung gives it the whole lease, however old the
    last renewal is."""
    world = World()
    world.run([Process(world, "first")], 5_000)
    world.now_ms += 1e8
    assert not world.is_down
    world.state = lambda name: HANGS
    late = Process(world, "late")
    begun_ms = world.now_ms
    world.run([late], begun_ms + LENGTH_MS - 500)
    assert not world.is_down
    world.run([late], begun_ms + LENGTH_MS + 2_500)
    assert world.is_down


def test_process_that_stood_still_begins_to_measure_again() -> None:
    """D4: when all stood still together, the one that wakes first does not take the others' silence for the store's."""
    world = World(lambda name: HANGS if name == "hung" else OK)
    hung, reaches = Process(world, "hung"), Process(world, "reaches")
    world.run([hung, reaches], 5_000)
    hung.stands_still = reaches.stands_still = True
    world.run([hung, reaches], 65_000)
    hung.stands_still = False
    world.run([hung, reaches], 66_000)
    reaches.stands_still = False
    world.run([hung, reaches], 90_000)
    assert not world.history


def test_challenge_that_was_answered_is_not_repeated_at_once() -> None:
    """D4: a process that a firewall keeps from the store makes the others answer once in the length of a lease."""
    world = World(lambda name: REFUSED_HERE if name == "blocked" else OK)
    processes = [Process(world, "blocked"), Process(world, "reaches")]
    challenged = 0
    challenge = processes[0].kept._leases.challenge

    def counted(server: str) -> None:
        nonlocal challenged
        challenged += 1
        challenge(server)

    processes[0].kept._leases.challenge = counted  # type: ignore[method-assign]
    world.run(processes, 60_000)
    assert 4 <= challenged <= 7
    assert not world.history


def test_first_answer_after_a_challenge_was_asked_for_after_it() -> None:
    """D4: an answer to an older question does not renew a challenged lease: the store may have been killed since."""
    view = LeaseView(LENGTH_MS).seen(LeaseFile("t"), 1_000).seen(LeaseFile("t", challenge="c"), 1_400)
    before, after = Contact().asked(1_300).answered(), Contact().asked(1_400).answered()
    assert decide(view, Evidence(before), 1_450, lapsed=False) is Act.WAIT
    assert decide(view, Evidence(after), 1_450, lapsed=False) is Act.RENEW
    assert view.phase(1_400 + CHALLENGE_MS) is Phase.OVER


@pytest.mark.parametrize("lapsed", [True, False])
@pytest.mark.parametrize("reach", list(Reach))
def test_table_has_every_case(lapsed: bool, reach: Reach) -> None:
    """D4: only a process with an answer renews or ends a lapse, and only one without takes a server down, once it is over."""
    acts = ACTS[lapsed, reach]
    assert acts.keys() == set(Phase)
    for phase, act in acts.items():
        if act in (Act.RENEW, Act.TAKE_UP):
            assert reach is Reach.ANSWERED
        if act is Act.TAKE_DOWN:
            assert phase is Phase.OVER
            assert reach in (Reach.ABSENT, Reach.SILENT, Reach.SLOW)


@given(st.floats(0, ANSWER_MS))
def test_answer_in_time_is_counted(latency_ms: float) -> None:
    """D4: whenever it comes within its limit, the next look after it still finds that the store is reached."""
    contact = Contact().asked(0.0).answered()
    assert contact.reach(latency_ms + LOOK_MS + TICK_MS, None) is Reach.ANSWERED


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_slow_store_stays_up(seed: int) -> None:
    """D4: one that needs nearly the whole time for each answer is not away."""
    world = World(lambda name: SLOW)
    world.run([Process(world, "p", seed=seed)], 60_000)
    assert not world.history


efforts = st.floats(0.0, 3.0)


@given(efforts, st.booleans())
def test_effort_in_between_changes_nothing(found: float, lapsed: bool) -> None:
    """D4: below the lower limit a sample ends a lapse, above the upper one it does not renew a lease, and in between each lease
    remains what it is."""
    samples = Samples().begin(1_000.0).end(found, 1_100.0)
    good = samples.promptness(1_200.0, 1_000.0, lapsed=lapsed) is Promptness.GOOD
    assert good is (found <= RETURN_EFFORT or (found <= HOLD_EFFORT and not lapsed))
    assert RETURN_EFFORT <= HOLD_EFFORT / 2


@given(st.floats(0, 2 * READ_MS), st.floats(0, 2 * WRITE_MS))
def test_effort_is_of_what_consumers_wait_for(read_ms: float, write_ms: float) -> None:
    """D4: a store whose sample needs as long as a consumer waits, for its questions or its writes, is too slow."""
    in_time = read_ms <= HOLD_EFFORT * READ_MS and write_ms <= HOLD_EFFORT * WRITE_MS
    assert (effort(read_ms, write_ms) <= HOLD_EFFORT) is in_time


@settings(max_examples=40, deadline=None)
@given(efforts, st.integers(1, 3), st.booleans(), seeds)
def test_constant_delay_never_flaps(found: float, count: int, was_away: bool, seed: int) -> None:
    """D4: whatever a delivery costs, its server is up or down, and stays so; and it is down if nobody can receive from it."""
    world = World()
    processes = [Process(world, f"p{i}", 1.0, seed) for i in range(count)]
    world.run(processes, 5_000)
    if was_away:
        world.state = lambda name: HANGS
        world.run(processes, 5_000 + LENGTH_MS + 4_000)
        assert world.is_down
    world.state, world.effort = (lambda name: OK), (lambda name: found)
    world.run(processes, world.now_ms + 40_000)
    assert world.is_down is (found > (RETURN_EFFORT if was_away else HOLD_EFFORT))
    settled = ServerTerms(world.storage).newest().get("s")
    world.run(processes, world.now_ms + 60_000)
    assert ServerTerms(world.storage).newest().get("s") == settled
    assert settled is None or settled.term.number <= 2
    world.effort = lambda name: 0.01
    world.run(processes, world.now_ms + 40_000)
    assert not world.is_down


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, HOLD_EFFORT), seeds)
def test_process_whose_way_is_slow_takes_no_server_down(found: float, seed: int) -> None:
    """D4: while one process can receive, the server stays up, however slow the others' ways are; and their doubts make it take few
    samples."""
    world = World(effort=lambda name: found if name == "receives" else 2.0)
    receives, slow = Process(world, "receives", 1.0, seed), Process(world, "slow", 1.0, seed)
    world.run([receives, slow], 60_000)
    assert not world.history
    assert 1 <= receives.sample_count <= 7


def test_no_samples_are_taken_of_a_store_that_its_users_can_use() -> None:
    """D4: measuring costs nothing while no delivery fails and no lease has lapsed."""
    world = World()
    processes = [Process(world, f"p{i}") for i in range(3)]
    world.run(processes, 30_000)
    assert [process.sample_count for process in processes] == [0, 0, 0]


def test_sample_that_hangs_or_is_old_proves_nothing() -> None:
    """D4: a store that answers questions and hangs in a write is slow; one good sample does not speak for the store for ever, nor
    for the time before a doubt."""
    hangs = Samples().begin(0.0)
    assert hangs.promptness(100.0, 0.0, lapsed=False) is Promptness.UNKNOWN
    assert hangs.promptness(READ_MS + WRITE_MS, 0.0, lapsed=False) is Promptness.SLOW
    good = Samples().begin(1_000.0).end(0.1, 1_500.0)
    assert good.promptness(1_500.0, 1_000.0, lapsed=False) is Promptness.GOOD
    assert good.promptness(1_500.0, 1_001.0, lapsed=False) is Promptness.UNKNOWN
    assert good.promptness(1_001.0 + VALID_MS, 0.0, lapsed=False) is Promptness.UNKNOWN


@given(st.floats(1, 30_000))
def test_samples_leave_a_slow_store_time(duration_ms: float) -> None:
    """D4: a slow store spends at most a third of its time with a process's samples, and is asked again within 10 s."""
    samples = Samples().begin(0.0)
    assert not samples.is_due(duration_ms)
    samples = samples.end(9.9, duration_ms)
    assert not samples.is_due(duration_ms + min(2 * duration_ms, 10_000) - 1)
    assert samples.is_due(duration_ms + max(2 * duration_ms, 300)) or samples.is_due(duration_ms + 10_000)


def test_lease_of_a_later_version_is_left_to_its_processes() -> None:
    """D4, C16: refused by name and not replaced. A key that is not known is ignored."""
    storage = MemoryStorage()
    leases = ServerLeases(storage, "host:1")
    leases.renew("s", 2_000, 7)
    known = json.loads(storage.get(f"{LEASES}/s") or b"")
    assert known["v"] == 1
    storage.put(f"{LEASES}/s", json.dumps({**known, "more": 1}).encode())
    assert leases.read("s").token == known["token"]
    later = json.dumps({**known, "v": 2, "more": 1}).encode()
    storage.put(f"{LEASES}/s", later)
    for refused in (lambda: leases.read("s"), lambda: leases.challenge("s")):
        with pytest.raises(FormatVersionError, match="format version 2.*install a later spark-jms"):
            refused()
    assert storage.get(f"{LEASES}/s") == later


def test_damaged_lease_is_renewed() -> None:
    """D4: what the file says beside the token is for people; one that cannot be read is replaced."""
    storage = MemoryStorage()
    leases = ServerLeases(storage, "host:1")
    wrong: list[dict[str, object]] = [
        {"length_ms": "x"},
        {"length_ms": 1.5},
        {"token": [1]},
        {"doubt": 5},
        {"challenge": None},
        {"v": "1"},
    ]
    for damaged in (b"?", b"[1]", b'{"other": 1}', b"[" * 100_000, *(json.dumps(each).encode() for each in wrong)):
        storage.put(f"{LEASES}/s", damaged)
        assert leases.read("s") == LeaseFile()
    leases.renew("s", 2_000, 7)
    renewed = leases.read("s")
    assert (renewed.length_ms, renewed.by, renewed.at_ms, renewed.challenge) == (2_000, "host:1", 7, "")
    leases.challenge("s")
    marked = leases.read("s")
    leases.challenge("s")
    assert leases.read("s") == marked != renewed
    assert marked.token == renewed.token
