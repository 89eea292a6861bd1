"""Record sets that an administrator opens, changes and releases.

For hand-over, an administrator is another consumer: it waits for the record, the holder hands it over at its next
boundary, and the holder's claims stay in it.

Features: C14, C16 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from spark_jms.claims.record_sets import opened_state, operations
from spark_jms.claims.stores import sessions_beside
from spark_jms.core.record_set import RecordSet
from spark_jms.errors import MemberUnavailableError
from spark_jms.log.storage import now_ms
from spark_jms.store import Handle, Operation, RecordHeldError, Store

_STEP_MS = 250


class OpenRecords:
    """Open records. `change` and `clear` are one atomic write."""

    def __init__(
        self,
        handles: Mapping[str, Handle],
        labels: Mapping[str, str],
        commit: Callable[[Mapping[Handle, Sequence[Operation]]], None],
        *,
        logged: bool,
    ) -> None:
        self.handles = handles
        now = now_ms()
        self.states = {n: opened_state(h, labels[n]).logging(is_on=logged, now_ms=now) for n, h in handles.items()}
        self._commit = commit

    def change(self, states: Mapping[str, RecordSet]) -> None:
        real = {name: state for name, state in states.items() if state is not self.states[name]}
        if real:
            self._commit({self.handles[name]: operations(self.states[name], state) for name, state in real.items()})
            self.states.update(real)

    def clear(self) -> None:
        """See `RecordSet.cleared`."""
        self.change({name: state.cleared() for name, state in self.states.items()})


@contextmanager
def opened_records(
    store: Store, labels: Mapping[str, str], wait_s: float, purpose: str, *, logged: bool = False
) -> Iterator[OpenRecords]:
    """Open all records of `labels`, which maps each to what people call it. `logged`: the destination has its life-cycle log
    switched on. After `wait_s`, MemberUnavailableError, and none is open."""
    deadline = time.monotonic() + wait_s
    session = store.connect(f"jmsq {purpose}")
    try:
        handles: dict[str, Handle] = {}
        for name in sorted(labels):  # sorted, so that two administrators do not wait for each other
            while True:
                left_ms = max(int((deadline - time.monotonic()) * 1000), 0)
                try:
                    handles[name] = session.open(name, timeout_ms=min(left_ms, _STEP_MS))
                    break
                except RecordHeldError as error:
                    if left_ms == 0:
                        holder = sessions_beside(store, name).get(error.holder or "")
                        raise MemberUnavailableError(
                            f"{labels[name]} is held by {holder.label if holder else 'another session'} and was not "
                            f"handed over within {wait_s:g} s: nothing was changed; try again with a longer "
                            f"--wait, or stop that consumer"
                        ) from error
        yield OpenRecords(handles, labels, session.commit, logged=logged)
    finally:
        session.close()
