"""Changes of the region store that no client and no administrator can notice; `by` is the proof."""

from __future__ import annotations

from tests.models.planted.bug import core

EQUIVALENT = (
    core(
        "a new region is entered before its second copy exists",
        "primaries.py",
        "The region is empty, and a client opens it only once the listed copy has acknowledged all (Primary.open). If the primary "
        "dies before that, the entry at epoch 1 is removed and the copies with it (Reconciliation, Opening). So nothing was in "
        "the region, and no client had it.",
        "if follower.may_join and self.state",
        "if self.state",
    ),
    core(
        "items of a stream may be missing",
        "replicas.py",
        "The frames of one connection are numbered, and a gap ends it (net/frames.py). A new connection begins with the first "
        "item that is not acknowledged, and the others follow in order (Follower.resend). So no item comes before the one "
        "before it, and the guard is a second line of defence.",
        "if message.seq == followed.applied + 1:",
        "if message.seq > followed.applied:",
    ),
    core(
        "an item of an older epoch is accepted",
        "replicas.py",
        "The epoch of an entry only rises, and one primary numbers the items of a stream. So an item of an older epoch has a "
        "number that was applied before, and is not applied again. It is acknowledged instead of refused, and both are true.",
        "if followed is None or message.epoch < followed.epoch:",
        "if followed is None:",
    ),
    core(
        "an opened region without a copy is removed",
        "replicas.py",
        "The directory names a daemon primary by its own creation or take-over, or by a move to its complete copy. It frees that "
        "copy only once the directory names another daemon or records the removal; and before a move has happened, only after "
        "it has renounced the copy, which makes the move fail. So an entry that names a daemon without a copy is of a creation "
        "that was given up, and no client has opened that region.",
        "        if entry.opener is None and created_late:",
        "        if entry.opener is None or not created_late:",
    ),
)
