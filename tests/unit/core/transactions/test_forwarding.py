"""Which members' messages are forwarded, where, and when (D5)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.transactions.transfer import IdleMembers, LookedAt, forwards

looked = st.lists(
    st.builds(LookedAt, st.integers(0, 6), st.integers(0, 9), st.integers(0, 2)), unique_by=lambda look: look.member
)
some = st.sets(st.integers(0, 6))


@given(st.lists(looked, min_size=1, max_size=8), st.integers(0, 5))
def test_member_is_due_after_being_idle_at_every_look(rounds: list[list[LookedAt]], delay: int) -> None:
    """D5: looks are a second apart. A member is due when it had messages and no consumers at each look of the last `delay`
    seconds; a look without an answer, or with a consumer, begins the wait again."""
    idle = IdleMembers({})
    for second, looks in enumerate(rounds):
        idle = idle.after(looks, float(second))
    last = len(rounds) - 1

    def was_idle(member: int, looks: list[LookedAt]) -> bool:
        return any(look.member == member and look.messages and not look.consumers for look in looks)

    expected = [
        member
        for member in range(7)
        if delay <= last and all(was_idle(member, looks) for looks in rounds[last - delay :])
    ]
    assert idle.due(delay, float(last)) == expected


@given(looked, some, some, some, st.integers(0, 9))
def test_messages_of_due_members_are_shared_among_members_with_consumers(
    looks: list[LookedAt], due: set[int], not_consuming: set[int], not_inserting: set[int], turn: int
) -> None:
    """D5, T14: all of them, evenly, to members that have consumers and are not paused; none when there is no such member."""
    found = forwards(looks, due, not_consuming=not_consuming, not_inserting=not_inserting, turn=turn)
    targets = {look.member for look in looks if look.consumers} - not_consuming - not_inserting
    sources = {look.member: look.messages for look in looks if look.member in due - not_consuming}
    assert {step.target for step in found} <= targets
    moved = Counter[int]()
    for step in found:
        moved[step.source] += step.messages
    assert moved == Counter({m: n for m, n in sources.items() if n and targets})
    for source in moved:
        shares = [step.messages for step in found if step.source == source]
        assert max(shares) - min(shares) <= 1
        assert len({step.target for step in found if step.source == source}) == len(shares)
