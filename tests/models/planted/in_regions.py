"""Bugs to plant, one at a time (planting.py), and what has to catch each: each breaks a promise of the region store."""

from __future__ import annotations

from tests.models.planted.beside import BESIDE
from tests.models.planted.bug import CORE, LOSS, Edit, Planted, by_test, core, elsewhere
from tests.models.planted.in_directory import IN_DIRECTORY
from tests.models.planted.late_answers import LATE_ANSWERS
from tests.models.planted.power_losses import POWER_LOSSES

PLANTED = (
    # -- which copies a write waits for
    core(
        "acknowledged before the copy has it",
        "replication.py",
        LOSS,
        "            if follower.counts:\n                needs.append",
        "            if False:\n                needs.append",
    ),
    core(
        "a JOINING copy does not count",
        "replication.py",
        LOSS,
        "            if follower.counts:\n                needs.append",
        "            if follower.in_sync:\n                needs.append",
    ),
    core(
        "the acknowledgement of one of two copies suffices",
        "replication.py",
        LOSS,
        """        for follower, seq in self.pending[0].needs:  # noqa: SIM110 - on the way of every write, where a generator costs
            if follower.acked < seq and follower in self.followers:
                return False
        return True""",
        """        needs = self.pending[0].needs
        return not needs or any(f.acked >= seq or f not in self.followers for f, seq in needs)""",
    ),
    core(
        "a copy joins before it has acknowledged its last chunk",
        "replication.py",
        LOSS,
        "self.state is _JOINING and self.acked >= self._joining",
        "self.state is _JOINING and self.acked > 0",
    ),
    core(
        "a copy joins before the last chunk is sent",
        "replication.py",
        LOSS,
        "        if self._cursor >= copy.size:\n            self._copied()",
        "        if self._cursor > 0:\n            self._copied()",
    ),
    core(
        "a copy is dropped before the directory has dropped it",
        "primary.py",
        LOSS + "|TWO_COPIES",
        "        if not follower.in_sync:\n            self.replication.give_up(follower)",
        "        if True:\n            self.replication.give_up(follower)",
    ),
    core(
        "a copy stays after it was struck off, and is resilvered as it is",
        "replicas.py",
        LOSS,
        """        if message.name in copies:
            copies.free(message.name)
        try:""",
        """        if message.name in copies and copies[message.name].region_id == message.region_id:
            del self._beginning[message.name]
            self._follow(sender, message, copies[message.name])
            return
        if message.name in copies:
            copies.free(message.name)
        try:""",
    ),
    core(
        "a fenced write is acknowledged",
        "primary.py",
        LOSS + "|FENCED",
        'out.fail(held.client, held.request, "FencedError", f"region {name}: {reason}")',
        "out.reply(held.client, held.request)",
    ),
    # -- who may answer
    core(
        "no fence",
        "primary.py",
        "FENCED|ONE_OPENER",
        "        if self.state is not _SERVING:\n            return False\n        secondary = self",
        "        return True\n        secondary = self",
    ),
    core(
        "a lease of 1.2 times the time-out",
        "peers.py",
        "FENCED|ONE_OPENER",
        "self._settings.failure_timeout_ms * 0.5",
        "self._settings.failure_timeout_ms * 1.2",
    ),
    core(
        "a heartbeat confirms without an echo",
        "peers.py",
        "FENCED|ONE_OPENER",
        "max(peer.confirmed_ms, beat.echo_ms)",
        "self._clock.now_ms",
    ),
    core(
        "a daemon in doubt echoes heartbeats",
        "administration.py",
        "FENCED|ONE_OPENER",
        "-1.0 if shared.directory.doubts(index) else shared.peers.by_index[index].their_ms",
        "shared.peers.by_index[index].their_ms",
        test="tests/unit/store/regions/core/test_late_answers.py::test_late_take_over_is_found_by_both_daemons",
    ),
    core(
        "doubts off",
        "primary.py",
        "FENCED|ONE_OPENER",
        '        """Another daemon may have taken over."""\n        self._step(PrimaryEvent.DOUBTED)',
        '        """Another daemon may have taken over."""\n        if self.state is not _SERVING:\n'
        "            self._step(PrimaryEvent.DOUBTED)",
        test="tests/unit/store/regions/core/test_late_answers.py::test_secondary_that_hears_again_may_have_taken_over",
    ),
    core(
        "no doubt about a secondary that is confirmed again",
        "daemon.py",
        "FENCED|ONE_OPENER",
        "self.primaries.doubt_secondary(daemon)",
        "pass",
        test="tests/unit/store/regions/core/test_late_answers.py::test_secondary_that_hears_again_may_have_taken_over",
    ),
    core(
        "held requests are answered without asking the directory",
        "primary.py",
        "FENCED|ONE_OPENER",
        "if not sure and self.replication.pending[0].order > self._covered:",
        "if False:",
        test="tests/unit/store/regions/core/test_late_answers.py::test_late_take_over_is_found_by_both_daemons",
    ),
    core(
        "refuse mode refuses nothing",
        "replication.py",
        "REFUSES",
        "return self._refuses_single and not any(f.in_sync for f in self.followers)",
        "return False",
    ),
    # -- opening and closing
    core(
        "an open ignores what is not acknowledged",
        "primary.py",
        LOSS,
        """        if self.state is not _SERVING or self.replication.pending:
            return
        if any(f.in_sync and f.unacked for f in self.replication.followers):
            return  # it has to answer first: it may have lost its copy
""",
        """        if self.state is not _SERVING:
            return
""",
        test="tests/unit/store/regions/core/test_guards.py::test_region_opens_again_once_its_writes_are_on_both_copies",
    ),
    Planted(
        "a region opens for a second client",
        "ONE_OPENER|FENCED",
        (
            Edit(
                "store/regions/protocol/region_entry.py",
                "allows=lambda entry, client: entry.opener is None,",
                "allows=_always,",
            ),
            Edit(
                CORE + "opening.py",
                "elif primary.use.client is not None or (waiting.size and primary.use.epoch):",
                "elif waiting.size and primary.use.epoch:",
            ),
            Edit(
                CORE + "primary_state.py",
                '    StateTransition(_CLOSED, UseEvent.ASKED, _OPENING, "asks the directory"),',
                '    *(StateTransition(state, UseEvent.ASKED, _OPENING, "") for state in (_CLOSED, _OPEN)),',
            ),
            Edit(CORE + "opening.py", "        elif primary.entry.opener is None:\n", "        else:\n"),
        ),
    ),
    core(
        "a fenced primary closes the region",
        "primary.py",
        "LAWFUL",
        "        for held in self.replication.pending:\n",
        """        if entry is not None and entry.opener is not None and not entry.is_destroyed:
            self._shared.directory.change(entry.name, entry, rules.closed(entry), lambda outcome: None)
        for held in self.replication.pending:
""",
    ),
    core(
        "a fenced primary drops the second copy",
        "primary.py",
        "LAWFUL",
        "        for held in self.replication.pending:\n",
        """        if entry is not None and entry.secondary is not None:
            self._shared.directory.change(entry.name, entry, rules.dropped(entry), lambda outcome: None)
        for held in self.replication.pending:
""",
    ),
    core(
        "a client that left has its regions open for ever",
        "daemon.py",
        "CONTINUES",
        "            self.primaries.client_left(client)\n",
        "",
    ),
    core(
        "the timer for silent clients is dead",
        "peers.py",
        "CONTINUES",
        "        for client, heard_ms in",
        "        return\n        for client, heard_ms in",
    ),
    core(
        "the timer for opens is dead",
        "opening.py",
        "ANSWERED",
        "if self._shared.clock.now_ms >= waiting.until_ms:",
        "if False:",
    ),
    core(
        "the timer for connections that lead nowhere is dead",
        "peers.py",
        "CONTINUES|TWO_COPIES|EQUAL",
        "                self._out.add(Unlink(index))\n",
        "",
    ),
    core(
        "a lost region is told before it is certain",
        "opening.py",
        "LOST",
        "if any(peers.may_run(holder) for holder in entry.holders()):",
        "if False:",
    ),
    core(
        "a created region that another daemon has is taken for the own",
        "opening.py",
        "ONE_OPENER|FENCED|" + LOSS,
        "if waiting.size and not self._primaries.created(waiting.name, waiting.made):",
        "if False:",
        test="tests/unit/store/regions/core/test_daemon.py",
    ),
    # -- copies and the directory
    core(
        "a copy is freed without RENOUNCED",
        "replicas.py",
        "LISTED",
        "        if not may_be_listed:\n",
        "        if True:\n",
        test="tests/unit/store/regions/core/test_daemon.py::test_copy_that_was_given_up_is_not_listed",
    ),
    core(
        "the directory's own change is not doubted after a failure",
        "directory_view.py",
        "LISTED|LAWFUL|FENCED|" + LOSS,
        "if entry is not None and old is not None and entry.tag == old.tag and entry.epoch > 1:",
        "if False:",
        test="tests/unit/store/regions/core/test_directory_view.py",
    ),
    core(
        "an Adopt is not checked",
        "replicas.py",
        "LISTED|FENCED|" + LOSS,
        """            entry is None
            or copy is None
            or self._primaries.in_work(message.name)
            or entry.region_id != message.region_id
            or copy.region_id != message.region_id
            or entry.primary != self._shared.peers.holder_of(sender)
            or entry.secondary != self._shared.me
""",
        "            copy is None\n",
        test="tests/unit/store/regions/core/test_guards.py::test_primary_does_not_follow_a_daemon_that_was_primary_before",
    ),
    core(
        "a Begin replaces a listed copy",
        "replicas.py",
        "LISTED|FENCED|" + LOSS,
        "            and entry.secondary != self._shared.me\n",
        "",
        test="tests/unit/store/regions/core/test_guards.py::test_listed_copy_is_not_begun_again",
    ),
    core(
        "a Begin of a daemon that is not primary is accepted",
        "replicas.py",
        "LISTED|FENCED|" + LOSS,
        "            and entry.primary == self._shared.peers.holder_of(sender)\n",
        "",
        test="tests/unit/store/regions/core/test_guards.py::test_only_the_primary_begins_a_copy",
    ),
    core(
        "a region that a store has open is removed by force, and its store begins again",
        "primary.py",
        "LAWFUL",
        "self._change(None if self.entry.opener is None else rules.destroyed(self.entry), removed)",
        "self._change(None, removed)",
    ),
    core(
        "the same, by a daemon that has no copy, when the primary has ended",
        "administration.py",
        "LAWFUL",
        "new = None if lost or entry.opener is None else rules.destroyed(entry)",
        "new = None",
        test="tests/unit/store/regions/core/test_daemon.py::test_open_region_of_a_dead_primary_is_lost_when_it_is_removed",
    ),
    elsewhere(
        "an epoch is used again",
        "regions/protocol/region_entry.py",
        "ONE_EPOCH|LAWFUL",
        "        epoch=entry.epoch + 1,\n",
        "        epoch=entry.epoch + (event is not EntryEvent.DROPPED),\n",
    ),
    core(
        "an absent directory is taken for an empty one",
        "directory_view.py",
        "LISTED|KEPT|CONTINUES|FENCED|" + LOSS,
        "elif found is Absent.UNSEEN or name in self._known:",
        "elif False:",
    ),
    core(
        "a restarted daemon is taken for its earlier life",
        "peers.py",
        "TWO_COPIES|CONTINUES|LISTED|EQUAL",
        "if peer is None or (peer.holder is not None and peer.holder != holder):",
        "if peer is None:",
    ),
    core(
        "a copy that is not listed stays",
        "replicas.py",
        "NO_OTHERS",
        "        elif name in self._shared.copies and self._replicas.abandoned(name):\n            self._give_up(name, entry)\n",
        "",
    ),
    core(
        "a lost second copy is not replaced",
        "primary.py",
        "TWO_COPIES",
        "        if self.state is _SERVING and may_resilver and not self.replication.resilvering:\n            self._want()",
        "",
    ),
    core(
        "the second copy goes to the daemon before",
        "peers.py",
        "PLACED",
        "        index = (after + step) % count\n",
        "        index = (after - step) % count\n",
    ),
    core(
        "a daemon leaves with listed copies",
        "leaving.py",
        "SAFE_LEAVING",
        "        if self._leaves and not self._shared.copies:\n",
        "        if self._leaves:\n",
    ),
    # -- memory
    core(
        "memory counts as free before it is freed",
        "copies.py",
        "LIMIT",
        "        self.unfollow(name)\n        self._memory.free(copy.region_id)",
        "        self.unfollow(name)",
    ),
    core(
        "the memory limit is not looked at",
        "copies.py",
        "LIMIT",
        "elif size > self.free_bytes:",
        "elif False:",
    ),
    # -- bytes and objects
    Planted(
        "the checksum of a frame is ignored",
        LOSS + "|ValueError|Error",
        (Edit("store/net/frames.py", "        if zlib.crc32(body) != crc:\n", "        if False:\n"),),
    ),
    elsewhere(
        "recovery leaves an older block of an object",
        "regions/client/space.py",
        LOSS,
        "            (name, self.regions[name].free(handle, self._handle, self._order)) for name, handle in self._stale\n",
        "",
        test="tests/unit/store/regions/client/test_instance.py::test_move_is_atomic_across_a_crash",
    ),
    elsewhere(
        "recovery keeps the older block of an object",
        "regions/client/space.py",
        LOSS,
        "loser = name if theirs.order > block.order else other.region",
        "loser = name if theirs.order < block.order else other.region",
        test="tests/unit/store/regions/client/test_instance.py::test_move_is_atomic_across_a_crash",
    ),
    elsewhere(
        "a deleted object stays in its region",
        "regions/client/space.py",
        LOSS,
        "        return [(place.region, self.regions[place.region].free(handle, self._handle, self._order))]\n\n    def where",
        "        steps = self.regions[place.region].free(handle, self._handle, self._order)\n"
        "        return [(place.region, [] if handle % 8 == 0 else steps)]\n\n    def where",
    ),
    elsewhere(
        "a freed block leaves bytes that nobody gets",
        "regions/client/space.py",
        LOSS,
        "        self._add_free(offset, size)\n        return offset, self._free_block(size)",
        "        self._add_free(offset, size)\n        self.free_bytes -= 16\n        return offset, self._free_block(size)",
    ),
    elsewhere(
        "compaction copies too little",
        "regions/client/space.py",
        LOSS,
        "steps.append((gap, (block.offset, block.size)))",
        "steps.append((gap, (block.offset, block.size - 16)))",
    ),
    elsewhere(
        "handles begin again after a recovery",
        "regions/client/space.py",
        "HANDLES",
        "self._handle = max(self._handle, space.last_handle, self._order)",
        "self._handle = max(self._handle, max(space.used, default=0))",
    ),
    # -- the client: instance, attachment, batches
    elsewhere(
        "a write is acknowledged when it is sent",
        "regions/client/store_regions.py",
        LOSS,
        "        self._flush_soon()\n        return operation.future",
        "        self._flush_soon()\n        operation.future.set_result(value)\n        return operation.future",
    ),
    elsewhere(
        "the old block of an object is freed before the new one is acknowledged",
        "regions/client/store_regions.py",
        LOSS,
        "            self.push(region, steps, operation)\n        self._flush_soon()",
        """            self.push(region, steps, operation)
        if leftover is not None:
            operation.leftover = None
            for region, steps in self._forget(leftover, value):
                self.push(region, steps)
        self._flush_soon()""",
    ),
    elsewhere(
        "a proof of ownership proves nothing",
        "regions/client/instance.py",
        "READS",
        "                await self._regions.prove()\n",
        "",
    ),
    # -- the engine and its record log
    elsewhere("a read lease of 2 s", "processes.py", "READS", "LEASE_MS = 200.0", "LEASE_MS = 2000.0"),
    # -- what earlier tries did not show
    core(
        "an answer of the directory covers requests that came after the question",
        "primary.py",
        "FENCED|ONE_OPENER|READS",
        "Answer(covers, seen.known, seen.entry)",
        "Answer(self.replication.last_order, seen.known, seen.entry)",
        test="tests/unit/store/regions/core/test_primary.py::test_directory_answer_covers_no_request_that_came_after_the_question",
    ),
    core(
        "refuse mode is judged at the write only",
        "primary.py",
        "REFUSES",
        "if not self.replication.oldest_is_held() or self.state is not _SERVING or self.replication.refuses:",
        "if not self.replication.oldest_is_held() or self.state is not _SERVING:",
        test="tests/unit/store/regions/core/test_primary.py::test_waiting_write_is_not_acknowledged_with_one_copy_in_refuse_mode",
    ),
    core(
        "a store gets a region although it may have lost another",
        "opening.py",
        "READS",
        "        if not others:\n            self._answer(waiting, primary)\n            return",
        "        if True:\n            self._answer(waiting, primary)\n            return",
        test="tests/unit/store/regions/core/test_primary.py::test_store_that_lost_a_region_gets_no_other_one",
    ),
    elsewhere(
        "a store lists its regions once",
        "regions/client/store_regions.py",
        "",
        "while names := await self.regions.unopened():",
        "for names in [await self.regions.unopened()]:",
        test="tests/unit/store/regions/client/test_placed_objects.py",
    ),
    elsewhere(
        "a snapshot is written over the one before it",
        "regions/client/object_journal.py",
        LOSS,
        "                made, levels, rest = await self._fold_into_spares(data)\n",
        "                self._spares, self._chunks = self._chunks + self._spares, []\n"
        "                made, levels, rest = await self._fold_into_spares(data)\n",
        test="tests/unit/store/regions/client/test_object_journal.py::test_crash_at_every_operation",
    ),
    elsewhere(
        "batches are deleted before the snapshot that replaces them",
        "regions/client/object_journal.py",
        LOSS,
        "                root = msgspec.structs.replace(self._root, position=position, levels=levels, snapshot=rest)\n",
        "                root = msgspec.structs.replace(self._root, position=position, levels=levels, snapshot=rest)\n"
        "                await self.delete(self._batches)\n                self._batches = []\n",
        test="tests/unit/store/regions/client/test_object_journal.py::test_crash_at_every_operation",
    ),
    elsewhere(
        "a read overtakes the writes before it",
        "regions/client/store_regions.py",
        LOSS,
        "        self.writes.send_now(region)\n",
        "",
    ),
    elsewhere(
        "the client's timer for silent daemons is dead",
        "regions/client/attachment.py",
        "CONTINUES",
        "if woke_s - self._connection.heard_s > SILENCE_S:",
        "if woke_s - self._connection.heard_s > 1000 * SILENCE_S:",
    ),
    *LATE_ANSWERS,
    *POWER_LOSSES,
    *BESIDE,
    # -- damaged entries
    by_test(
        "a region is served while its damaged entry is removed",
        "core/administration.py",
        "tests/unit/store/regions/core/test_damaged_entries.py",
        "primary.doubt()",
        "pass",
    ),
    by_test(
        "a damaged entry is removed while another daemon may serve its region",
        "core/administration.py",
        "tests/unit/store/regions/core/test_damaged_entries.py",
        "        if not waits_for:",
        "        if True:",
    ),
    *IN_DIRECTORY,
    # -- what the simulator replaces
    by_test(
        "the daemon's clock stands while the machine is suspended",
        "daemon/daemon.py",
        "tests/unit/store/regions/daemon/test_clock.py",
        '"CLOCK_BOOTTIME"',
        '"CLOCK_MONOTONIC"',
    ),
)

# The seed that showed each bug when it was last looked for; it is tried first.
SEEDS: dict[str, tuple[int, ...]] = {
    "acknowledged before the copy has it": (7,),
    "a JOINING copy does not count": (142,),
    "the acknowledgement of one of two copies suffices": (142,),
    "a copy joins before it has acknowledged its last chunk": (1,),
    "a copy joins before the last chunk is sent": (1,),
    "a copy is dropped before the directory has dropped it": (2,),
    "a copy stays after it was struck off, and is resilvered as it is": (9,),
    "a fenced write is acknowledged": (11,),
    "no fence": (66,),
    "a lease of 1.2 times the time-out": (42,),
    "a heartbeat confirms without an echo": (81,),
    "refuse mode refuses nothing": (11,),
    "a region opens for a second client": (4,),
    "a fenced primary closes the region": (27,),
    "a fenced primary drops the second copy": (7,),
    "a client that left has its regions open for ever": (1,),
    "the timer for silent clients is dead": (6,),
    "the timer for opens is dead": (36,),
    "the timer for connections that lead nowhere is dead": (2,),
    "a lost region is told before it is certain": (11,),
    "an epoch is used again": (2,),
    "a change does not look at the epoch of the entry": (2,),
    "a link without an answer counts as refused": (11,),
    "a folder of versions that is not seen has no versions": (1,),
    "an absent directory is taken for an empty one": (13,),
    "a restarted daemon is taken for its earlier life": (13,),
    "a copy that is not listed stays": (1,),
    "a lost second copy is not replaced": (6,),
    "the second copy goes to the daemon before": (1,),
    "a daemon leaves with listed copies": (78,),
    "memory counts as free before it is freed": (1,),
    "the memory limit is not looked at": (23,),
    "the checksum of a frame is ignored": (51,),
    "a deleted object stays in its region": (1,),
    "a freed block leaves bytes that nobody gets": (1,),
    "compaction copies too little": (2,),
    "handles begin again after a recovery": (9,),
    "a write is acknowledged when it is sent": (2,),
    "the old block of an object is freed before the new one is acknowledged": (41,),
    "a proof of ownership proves nothing": (98,),
    "a read lease of 2 s": (67,),
    "a read overtakes the writes before it": (7,),
    "the client's timer for silent daemons is dead": (6,),
    "a copy that a primary fills is freed for a new region": (910016253,),
    "an answer before a change that waits ends a doubt": (910060846,),
    "an entry that was read before its daemons ended makes a region lost": (910052859,),
}
