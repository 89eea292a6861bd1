"""What a change of a region's entry may be, and whose: written down a second time, without the product's table (R8-R10).

fields that change              event       by
none but the epoch              RENOUNCED   a daemon without a listed copy
                                RENEWED     any daemon
opener, from none               OPENED      the primary
opener, to none                 CLOSED      the primary
secondary, to none              DROPPED     the primary
secondary, to another daemon    JOINED      the primary
primary and secondary swap, or  MOVED       the primary; closed before and after
a new primary and the old one
primary, to the old secondary;  PROMOTED    the old secondary; closed afterwards
secondary, to none
primary, to a life that no    DESTROYED   the primary; any daemon once its life has ended; open before and after,
daemon had; secondary, to none             and removed by an administrator
"""

from __future__ import annotations

from spark_jms.store.regions.protocol.region_entry import Holder, RegionEntry
from tests.models.regions.errors import Promise, Violation

FIELDS = ("primary", "secondary", "opener")


def check_created(me: Holder, new: RegionEntry) -> None:
    if new.primary != me or new.epoch != 1 or new.opener is not None:
        raise Violation(Promise.LAWFUL, f"region {new.name}: daemon {me.daemon} created {new}")


def check_deleted(me: Holder, old: RegionEntry, primary_lives: bool, copy_lives: bool, wanted: bool) -> None:
    """`wanted`: an administrator or a store has asked for it. No client has opened a region at epoch 1."""
    if old.opener is not None and copy_lives:
        raise Violation(
            Promise.LAWFUL, f"region {old.name}: removed by daemon {me.daemon}, while {old.opener} has it open"
        )
    if old.epoch > 1 and not wanted:
        raise Violation(Promise.KEPT, f"region {old.name}: removed by daemon {me.daemon}, and nothing asked for it")
    if old.primary != me and primary_lives and old.epoch > 1:
        raise Violation(Promise.LAWFUL, f"region {old.name}: removed by daemon {me.daemon}, while its primary lives")


def check_changed(me: Holder, old: RegionEntry, new: RegionEntry, primary_lives: bool, wanted: bool) -> None:
    """`wanted`: an administrator or a store has asked for its removal."""
    where = f"region {old.name}"
    if new.region_id != old.region_id:
        raise Violation(Promise.LAWFUL, f"{where}: replaced without being removed")
    if (new.size, new.created_us, new.epoch) != (old.size, old.created_us, old.epoch + 1):
        raise Violation(Promise.LAWFUL, f"{where}: {old} became {new}")
    changed = tuple(field for field in FIELDS if getattr(new, field) != getattr(old, field))
    if changed and not new.primary.incarnation:
        _check_destroyed(me, old, new, primary_lives, wanted)
        return
    if changed and me not in old.holders():
        raise Violation(
            Promise.LAWFUL, f"{where}: {_words(changed)} changed by daemon {me.daemon}, which is not listed"
        )
    match changed:
        case ():
            return
        case ("opener",):
            _check_opener(me, old, new)
        case ("secondary",):
            _check_primary(me, old, f"the second copy changed from {old.secondary} to {new.secondary}")
        case ("primary", *_) if me == old.secondary and me != old.primary:
            if new.primary != me or new.secondary is not None or new.opener is not None:
                raise Violation(Promise.LAWFUL, f"{where}: daemon {me.daemon} took over, and left {new}")
        case ("primary", "secondary"):
            _check_primary(me, old, f"moved to {new.primary}")
            if new.secondary != old.primary:
                raise Violation(Promise.LAWFUL, f"{where}: moved, and the old primary is not its second copy: {new}")
            if old.opener is not None:
                raise Violation(Promise.ONE_OPENER, f"{where}: moved while {old.opener} has it open")
        case _:
            raise Violation(Promise.LAWFUL, f"{where}: {_words(changed)} changed at once, from {old} to {new}")


def _check_destroyed(me: Holder, old: RegionEntry, new: RegionEntry, primary_lives: bool, wanted: bool) -> None:
    if not wanted:
        raise Violation(Promise.KEPT, f"region {old.name}: destroyed by daemon {me.daemon}, and nothing asked for it")
    if me != old.primary and primary_lives:
        raise Violation(Promise.LAWFUL, f"region {old.name}: destroyed by daemon {me.daemon}, while its primary lives")
    if not old.primary.incarnation or old.opener is None or new.opener != old.opener or new.secondary is not None:
        raise Violation(Promise.LAWFUL, f"region {old.name}: destroyed, from {old} to {new}")


def _check_opener(me: Holder, old: RegionEntry, new: RegionEntry) -> None:
    _check_primary(me, old, f"{'opened' if new.opener else 'closed'}")
    if new.opener and old.opener:
        raise Violation(Promise.ONE_OPENER, f"region {old.name}: {new.opener} opened what {old.opener} has open")


def _check_primary(me: Holder, old: RegionEntry, what: str) -> None:
    if me != old.primary:
        raise Violation(Promise.LAWFUL, f"region {old.name}: {what} by daemon {me.daemon}, which is not its primary")


def _words(changed: tuple[str, ...]) -> str:
    return " and ".join(changed)
