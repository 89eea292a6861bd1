"""`jmsq stat`: backlog, claims, consumers, files and rates of destinations, once or repeatedly.

Features: C13, C14, R14, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from spark_jms.cli.command import (
    CommandSettings,
    DurationParameter,
    command,
    destinations_argument,
    name_silent_servers,
    names_or_all,
)
from spark_jms.errors import JmsqError

if TYPE_CHECKING:
    from spark_jms.admin.statistics import DestinationStatistics, HighMarkRow
    from spark_jms.claims.upkeep.views import SubscriptionRow
    from spark_jms.core.selector import Selector
    from spark_jms.log.destinations.domain import Domain
    from spark_jms.log.tables.storage import ClockReading
    from spark_jms.store import Store
    from spark_jms.store.contract import ConnectionInfo, StoreInfo

_DEFAULT_WATCH = "2s"
_FAILING = "Housekeeping that fails"
_PAUSED = "Paused by an administrator"


@command("stat", short_help="Show backlog, claims, consumers, files and rates.")
@destinations_argument
@click.option(
    "--watch",
    "watch_s",
    metavar="[DURATION]",
    type=DurationParameter(0.05, "; a destination goes before --watch"),
    is_flag=False,
    flag_value=_DEFAULT_WATCH,
    help=f"Repeat this often (default {_DEFAULT_WATCH}), with rates.",
)
@click.option("--times", type=click.IntRange(1), help="With --watch: stop after this many rounds.")
@click.option(
    "--selector",
    help="Also show matching messages that wait behind refused ones of their units of order.",
)
@click.option("--unserviced", is_flag=True, help="Only those with messages that no live consumer takes.")
@click.option("--reset", is_flag=True, help="Reset the high marks and the bytes received.")
def stat(
    settings: CommandSettings,
    destinations: tuple[str, ...],
    watch_s: float | None,
    times: int | None,
    selector: str | None,
    unserviced: bool,
    reset: bool,
) -> None:
    """Show backlog, claims, consumers, files and rates of all destinations, or of those named; `server@destination` is the
    member of a destination on that server. High marks and bytes received are those that `jmsq services` has seen."""
    from spark_jms.admin.servers import LOOK_S
    from spark_jms.admin.statistics import collect, high_marks
    from spark_jms.core.selector import Selector
    from spark_jms.store.kinds.administration import counts

    if times is not None and watch_s is None:
        raise click.UsageError("--times goes with --watch")
    if reset:
        if watch_s is not None:
            raise click.UsageError("--reset does not go with --watch")
        _reset(settings, destinations)
        return
    wanted = Selector.parse(selector)
    with settings.opened(LOOK_S) as (domain, store):
        if watch_s is None:
            names = names_or_all(domain, destinations, addresses=True)
            every = [collect(domain, store, name, wanted) for name in names]
            found = [one for one in every if one.unserviced] if unserviced else every
            if unserviced and not (found or settings.as_json):
                settings.out.say("live consumers take the messages of every destination")
                return
            marks = high_marks(domain, _plain_names(destinations) if destinations else None)
            _show(settings, domain.root, found, _clock(domain), counts(domain.store_uri), marks)
            name_silent_servers(domain, store, names)
        elif settings.as_json:
            for looked in _looks(domain, store, destinations, watch_s, times, wanted, unserviced):
                settings.out.record(_document(domain.root, looked))
        else:
            _watch(settings, domain, _looks(domain, store, destinations, watch_s, times, wanted, unserviced))


def _plain_names(given: Sequence[str]) -> list[str]:
    """Of destinations, where their members on a server are named."""
    from spark_jms.core.destinations.routing import DestinationAddress

    return [DestinationAddress.parse(name).destination for name in given]


def _reset(settings: CommandSettings, destinations: tuple[str, ...]) -> None:
    from spark_jms.admin.statistics import reset_high_marks

    domain = settings.domain()
    names = names_or_all(domain, destinations)
    reset_high_marks(domain, names if destinations else None)
    if settings.as_json:
        settings.out.document({"root": domain.root, "reset": names})
    else:
        settings.out.say(f"the high marks begin again: {', '.join(names) or 'none'}")


def _looks(
    domain: Domain,
    store: Store,
    given: tuple[str, ...],
    every_s: float,
    times: int | None,
    selector: Selector | None,
    unserviced: bool = False,
) -> Iterator[list[DestinationStatistics]]:
    from spark_jms.admin.statistics import collect, with_rates

    before: dict[str, DestinationStatistics] = {}
    before_s = time.monotonic()
    looked = 0
    while True:
        now_s = time.monotonic()
        now = [
            with_rates(collect(domain, store, name, selector), before.get(name), now_s - before_s)
            for name in names_or_all(domain, given, addresses=True)
        ]
        yield [one for one in now if one.unserviced] if unserviced else now
        looked += 1
        if times is not None and looked >= times:
            return
        before, before_s = {s.destination: s for s in now}, now_s
        time.sleep(every_s)


def _watch(settings: CommandSettings, domain: Domain, looks: Iterator[list[DestinationStatistics]]) -> None:
    console = settings.out.console()
    if not console.is_terminal:
        for looked in looks:
            _show(settings, domain.root, looked)
        return
    from rich.console import Group
    from rich.live import Live

    with Live(console=console, screen=True, auto_refresh=False) as live:
        for looked in looks:
            live.update(Group(*_screen(domain.root, looked, console.width)), refresh=True)


def _screen(root: str, found: Sequence[DestinationStatistics], width: int) -> list[Any]:
    """One look of --watch: a clock, and the tables cut to the terminal. Backlogs that grow are yellow, failures red."""
    from rich.text import Text

    from spark_jms.claims.upkeep.views import moment
    from spark_jms.cli.command import cell, narrow_table
    from spark_jms.log.tables.storage import now_ms

    growing = [s.destination for s in found if s.rates and s.backlog and s.rates.sent_per_s > s.rates.finished_per_s]
    clock = f"{cell(moment(now_ms()))}  {root}"
    parts: list[Any] = [Text(clock, no_wrap=True, overflow="ellipsis", style="bold")]
    if growing:
        parts.append(
            Text(f"the backlog grows: {', '.join(growing)}", no_wrap=True, overflow="ellipsis", style="yellow")
        )
    for made in _tables(found, watched=True):
        style = "bold red" if made.title == _FAILING else "bold"
        parts += [Text(), narrow_table(made.title, made.columns, made.rows, width, made.optional, style)]
    return parts


def _clock(domain: Domain) -> ClockReading | None:
    """None where this process may not write."""
    from spark_jms.log.tables.storage import read_clock

    try:
        return read_clock(domain.storage)
    except (JmsqError, OSError):
        return None


def _document(
    root: str, found: Sequence[DestinationStatistics], clock: ClockReading | None = None
) -> dict[str, object]:
    from spark_jms.claims.upkeep.views import moment
    from spark_jms.log.tables.storage import now_ms

    measured = {"clock": clock} if clock else {}
    return {"root": root, "time": moment(now_ms()), **measured, "destinations": list(found)}


def _show(
    settings: CommandSettings,
    root: str,
    found: Sequence[DestinationStatistics],
    clock: ClockReading | None = None,
    counted: StoreInfo | None = None,
    marks: Sequence[HighMarkRow] = (),
) -> None:
    """`counted`: the store's own counts, where its kind has any."""
    from spark_jms.cli.command import table

    out = settings.out
    if out.as_json:
        of_store = {"store": counted} if counted is not None else {}
        out.document({**_document(root, found, clock), **of_store, "high_marks": list(marks)})
    elif not found:
        out.say(f"{root} has no destinations: jmsq apply --root {root} MODULE.yaml")
    else:
        made = _tables(found, watched=any(s.rates for s in found))
        of_marks = [_of_marks(marks)] if marks else []
        for each in [*made, *of_marks, *([_of_store(counted)] if counted is not None else [])]:
            out.show(table(each.title, each.columns, each.rows))
        if clock is not None:
            beyond = "" if clock.is_tolerated else ": beyond what is tolerated, synchronise the clocks"
            out.say(f"the clock of this host is {clock} of the root's{beyond}")


@dataclass(frozen=True)
class _Columns:
    """A table's content. A narrow terminal may leave out `optional` columns, the first ones first."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    optional: tuple[str, ...]


def _tables(found: Sequence[DestinationStatistics], watched: bool) -> list[_Columns]:
    return [_of_destinations(found, watched), _of_members(found), *_of_troubles(found)]


def _of_destinations(found: Sequence[DestinationStatistics], watched: bool) -> _Columns:
    from spark_jms.cli.command import human_bytes

    columns: tuple[str, ...]
    if watched:  # the columns that change, so that they fit a terminal
        columns = ("name", "sent", "sent/s", "done/s", "backlog", "most", "claimed", "stored", "files", "size")
    else:
        columns = (
            "name",
            "kind",
            "members",
            "sent",
            "backlog",
            "oldest",
            "claimed",
            "consumers",
            "stored",
            "files",
            "size",
            "headers",
            "version",
        )
    totals = []
    for s in found:
        sent, done = (s.rates.sent_per_s, s.rates.finished_per_s) if s.rates else (None, None)
        values = {
            "name": s.destination,
            "kind": s.kind,
            "members": len(s.members),
            "sent": s.sent,
            "sent/s": sent,
            "done/s": done,
            "backlog": s.backlog,
            "most": s.rates.backlog_high if s.rates else s.backlog,
            "oldest": s.oldest,
            "claimed": s.claimed,
            "consumers": s.consumers,
            "stored": s.stored_messages,
            "files": s.files,
            "size": human_bytes(s.bytes),
            "headers": human_bytes(s.header_estimate_bytes),
            "version": s.version,
        }
        totals.append(tuple(values[column] for column in columns))
    return _Columns("Destinations", columns, totals, ("stored", "size", "files", "claimed", "most"))


def _of_members(found: Sequence[DestinationStatistics]) -> _Columns:
    from spark_jms.cli.command import human_bytes

    rows: list[tuple[object, ...]] = []
    for s in found:
        for member in s.members:
            lines: list[SubscriptionRow | None] = [row for row in s.subscriptions if row.member == member.member]
            for i, row in enumerate(lines or [None]):
                here = (member.files, human_bytes(member.bytes)) if i == 0 else (None, None)
                kept = (
                    (row.subscription, row.backlog, row.claimed, row.consumers_shown)
                    if row
                    else (None, None, None, None)
                )
                rows.append((s.destination, member.member, kept[0], member.last_sequence, *kept[1:], *here))
    columns = ("destination", "member", "subscription", "last", "backlog", "claimed", "consumers", "files", "size")
    return _Columns("Members", columns, rows, ("size", "files", "last", "claimed"))


def _of_marks(marks: Sequence[HighMarkRow]) -> _Columns:
    """The sums of destinations, and of servers; --json has members and subscriptions too."""
    from spark_jms.cli.command import human_bytes

    rows: list[tuple[object, ...]] = [
        (
            mark.destination or f"server {mark.server}",
            mark.since,
            mark.messages,
            mark.pending,
            human_bytes(mark.bytes),
            None if mark.received_bytes is None else human_bytes(mark.received_bytes),
        )
        for mark in marks
        if mark.member is None and mark.subscription is None
    ]
    columns = ("name", "since", "messages", "pending", "size", "received")
    return _Columns("Most at once, as jmsq services has seen it", columns, rows, ("since",))


def _of_store(counted: StoreInfo) -> _Columns:
    """Under the text's names."""
    names = ("name", "CreateCount", "ReadCount", "UpdateCount", "DeleteCount", "ObjectCount")
    rows: list[tuple[object, ...]] = [
        (*_counts_of(counted), len(counted.connections), counted.physical_write_count),
        *((*_counts_of(connection), None, None) for connection in counted.connections),
    ]
    return _Columns("Store and connections", (*names, "Connections", "PhysicalWriteCount"), rows, ())


def _counts_of(of: StoreInfo | ConnectionInfo) -> tuple[object, ...]:
    return of.name, of.create_count, of.read_count, of.update_count, of.delete_count, of.object_count


def _of_refusals(found: Sequence[DestinationStatistics]) -> _Columns:
    refusals: list[tuple[object, ...]] = [
        (r.destination, r.subscription, r.member, r.target, r.messages, r.ranges, r.failure, r.reason, r.since)
        for s in found
        for r in s.refusals
    ]
    of_refusals = (
        "destination",
        "subscription",
        "member",
        "to",
        "messages",
        "sequences",
        "they were",
        "refused",
        "since",
    )
    return _Columns("Refused for good", of_refusals, refusals, ("since",))


def _of_troubles(found: Sequence[DestinationStatistics]) -> list[_Columns]:
    """Tables of what does not take its usual course; none without rows."""
    from spark_jms.claims.upkeep.views import moment

    failures: list[tuple[object, ...]] = [
        (s.destination, f.what, f.count, moment(f.since_ms), moment(f.retry_ms), f.error)
        for s in found
        for f in s.failures
    ]
    paused: list[tuple[object, ...]] = [(s.destination, p.scope, p.operation, p.since) for s in found for p in s.paused]
    transfers: list[tuple[object, ...]] = [
        (t.destination, t.subscription, t.member, ", ".join(t.targets), t.messages, t.reason, t.made, t.next)
        for s in found
        for t in s.transfers
    ]
    limits: list[tuple[object, ...]] = [
        (
            r.destination,
            r.subscription,
            r.member,
            r.backlog,
            r.subscription_messages_limit,
            r.subscription_limit_deleted_count,
        )
        for s in found
        for r in s.subscriptions
        if r.has_limit
    ]
    of_limits = ("destination", "subscription", "member", "backlog")
    expired: list[tuple[object, ...]] = [
        (row.destination, row.subscription, row.member, row.expired)
        for s in found
        for row in s.subscriptions
        if row.expired
    ]
    held_back: list[tuple[object, ...]] = [
        (s.destination, held.member, held.unit, held.refused, held.messages) for s in found for held in s.held_back
    ]
    of_held_back = ("destination", "member", "unit of order", "refused message", "held back")
    of_transfers = ("destination", "subscription", "member", "to", "messages", "reason", "made", "next step")
    tables = (
        _Columns(
            _FAILING,
            ("destination", "what", "failures", "since", "next try", "error"),
            failures,
            ("since", "next try"),
        ),
        _Columns(_PAUSED, ("destination", "member", "paused", "since"), paused, ("since",)),
        _Columns(
            "Limits of subscriptions",
            (*of_limits, "SubscriptionMessagesLimit", "SubscriptionLimitDeletedCount"),
            limits,
            ("member",),
        ),
        _Columns("Open transfers", of_transfers, transfers, ("made",)),
        _of_refusals(found),
        _Columns("Held back by messages of their unit that the selector refuses", of_held_back, held_back, ()),
        _Columns("Expired messages", ("destination", "subscription", "member", "expired"), expired, ()),
    )
    return [table for table in tables if table.rows]
