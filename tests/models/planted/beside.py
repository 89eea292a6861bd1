"""Bugs to plant where no simulator looks: the database's engine, sizes, leases, moves between regions (in_regions.py)."""

from __future__ import annotations

from tests.models.planted.bug import Planted, by_test, elsewhere

JDBC = "tests/unit/store/jdbc/test_jdbc.py::test_a_full_disk_acknowledges_nothing"
REGAINED = "tests/unit/store/jdbc/test_lock.py::test_engine_does_not_regain_a_store_that_another_one_had"
INSTANCE = "tests/unit/store/regions/client/test_instance.py"
READS = "tests/unit/store/engine/test_reads.py::test_lease_begins_at_the_question"
CALLERS = "tests/contract/store/webhdfs/test_callers.py::"
SOCKETS = "tests/unit/store/webhdfs/test_socket_answers.py"
PRIMARY = "tests/unit/store/regions/core/test_primary.py::"


def of_callers(name: str, test: str, old: str, new: str, file: str = "callers.py") -> Planted:
    return elsewhere(name, f"webhdfs/{file}", "", old, new, test=test)


BESIDE = (
    elsewhere(
        "an engine that regains its lock does not look who had it",
        "jdbc/protocol.py",
        "",
        "if self._again is not None and found != self._again:",
        "if False:",
        test=REGAINED,
    ),
    elsewhere(
        "the rows in memory change before the commit",
        "jdbc/persistence.py",
        "",
        "            self._writer.write_rows(data, changes)\n            self._writer.write_outcome(data, batch)\n"
        "        self._rows.apply(changes)",
        "            self._rows.apply(changes)\n            self._writer.write_rows(data, changes)\n"
        "            self._writer.write_outcome(data, batch)",
        test=JDBC,
    ),
    by_test(
        "an object returns to a region that still has its old block",
        "client/space.py",
        INSTANCE,
        "        if handle in space.used:\n",
        "        if False:\n",
    ),
    by_test(
        "recovery prefers the older block of an object",
        "client/space.py",
        INSTANCE,
        "loser = name if theirs.order > block.order else other.region",
        "loser = name if theirs.order < block.order else other.region",
    ),
    by_test(
        "recovery keeps the block that it reads last",
        "client/space.py",
        INSTANCE,
        "loser = name if theirs.order > block.order else other.region",
        "loser = other.region",
    ),
    by_test(
        "the order of writes begins again after an opening",
        "client/space.py",
        INSTANCE,
        "        self._order = max(self._order, space.last_order)\n"
        "        self._handle = max(self._handle, space.last_handle, self._order)",
        "        self._handle = max(self._handle, space.last_handle, space.last_order)",
    ),
    by_test(
        "an object that moved stays on the map of its old region",
        "client/space.py",
        INSTANCE,
        "        self.places[handle] = Place(region, place.connection)\n        return [(region, steps)], old.name",
        "        return [(region, steps)], old.name",
    ),
    by_test(
        "an update that moved is acknowledged before its old block is free",
        "client/store_regions.py",
        "tests/unit/store/regions/client/test_write_batches.py",
        "operation.leftover, operation.frames = operation.leftover, None, 1",
        "operation.leftover, operation.frames = operation.leftover, None, 0",
    ),
    elsewhere(
        "the snapshot of a full store lacks the new tokens",
        "replicated/log.py",
        "",
        "[*outcomes.tokens, *new_tokens]",
        "[*outcomes.tokens]",
        test="tests/unit/store/replicated/test_log.py::test_full_store_keeps_deletions",
    ),
    elsewhere(
        "a read's lease begins at the answer",
        "engine/server.py",
        "",
        "            asked_ms = self._lease.now_ms()\n            self._persistence.prove()\n",
        "            self._persistence.prove()\n            asked_ms = self._lease.now_ms()\n",
        test=READS,
    ),
    elsewhere(
        "a write's lease begins at the answer",
        "engine/server.py",
        "",
        "            self._lease.proved(asked_ms)\n            with self._lock:",
        "            self._lease.proved(self._lease.now_ms())\n            with self._lock:",
        test=READS,
    ),
    elsewhere(
        "the lease of a read through WebHDFS begins at the answer",
        "webhdfs/blocks.py",
        "",
        "            self._lease.proved(asked_ms)",
        "            self._lease.proved(self._lease.now_ms())",
        test="tests/unit/store/webhdfs/test_read_proof.py",
    ),
    by_test(
        "a change of the entry covers requests that came after it was asked for",
        "core/primary.py",
        PRIMARY + "test_change_of_the_entry_covers_no_request_that_came_after_the_question",
        "Answer(covers, outcome is Outcome.DONE, new, then)",
        "Answer(self.replication.last_order, outcome is Outcome.DONE, new, then)",
    ),
    by_test(
        "a region opens before its second copy has answered everything",
        "core/primary.py",
        PRIMARY + "test_region_opens_once_its_second_copy_has_answered_everything",
        "        if any(f.in_sync and f.unacked for f in self.replication.followers):\n            return",
        "        if False:\n            return",
    ),
    by_test(
        "a lock file that cannot be opened counts as a daemon that has ended",
        "directory/global_directory.py",
        "tests/unit/store/regions/directory/test_files.py::test_lock_file_that_cannot_be_opened_tells_nothing",
        '        except OSError as error:\n            raise DirectoryUnavailableError(f"{path}: {error.strerror}") from error',
        "        except OSError:\n            return False",
    ),
    of_callers(
        "a WebHDFS door admits every user with a socket",
        CALLERS + "test_other_users_change_and_read_nothing",
        "        if owner != self.user.uid:\n",
        "        if owner < 0:\n",
    ),
    of_callers(
        "a WebHDFS door admits root",
        CALLERS + "test_root_is_another_user",
        "        if owner != self.user.uid:\n",
        "        if owner not in (0, self.user.uid):\n",
    ),
    of_callers(
        "a closed connection passes for one of user 0",
        CALLERS + "test_connection_that_closed_before_the_look_up_is_refused",
        "if is_this and inode and uid != _overflow_uid()",
        "if is_this and uid != _overflow_uid()",
    ),
    of_callers(
        "a client that connects from a port used before passes for the earlier one",
        SOCKETS,
        "(local_port, remote_port) and state in OWNED_STATES",
        "(local_port, remote_port)",
    ),
    of_callers(
        "a user that the namespace does not know passes for the overflow id",
        SOCKETS,
        "if is_this and inode and uid != _overflow_uid()",
        "if is_this and inode",
    ),
    of_callers(
        "a listener of the client's port passes for the client",
        SOCKETS,
        "_PORTS.unpack_from(body, _PORTS_AT) == (local_port, remote_port) and state",
        "state",
    ),
    of_callers(
        "a connection is admitted before its owner is known",
        CALLERS + "test_door_with_tls_admits_its_own_user",
        "        self.lookups += 1\n",
        "        self.lookups += 1\n        self._admitted.add(connection)\n",
    ),
    of_callers(
        "a client's port stands for its connection",
        CALLERS + "test_reused_client_port_is_another_client",
        "        if connection in self._admitted:\n",
        "        ports = self.__dict__.setdefault('ports', {})\n"
        "        connection = ports.setdefault(str(transport and transport.get_extra_info('peername')), connection)\n"
        "        if connection in self._admitted:\n",
    ),
    of_callers(
        "each request costs a look-up",
        CALLERS + "test_one_look_up_serves_a_connection",
        "        self._admitted.add(connection)\n",
        "",
    ),
    of_callers(
        "a shortage of the kernel refuses a caller for good",
        CALLERS + "test_unknown_callers_are_refused_by_name",
        "            if error.errno in BUSY:\n",
        "            if error.errno is None:\n",
    ),
    of_callers(
        "a forwarding door passes the name that the client claims",
        CALLERS + "test_forwarding_door_names_the_user_that_it_admitted",
        "        left_out = _HOP | {name.lower() for name in mark}\n",
        "        left_out = _HOP\n",
        file="door.py",
    ),
    of_callers(
        "a door believes a forwarding door of an older release",
        CALLERS + "test_door_of_an_older_release_cannot_vouch_for_its_callers",
        "        if passed is None and self._callers is not None:\n",
        "        if passed is None and self._callers is None:\n",
        file="door.py",
    ),
    of_callers(
        "a forwarded request needs no owner",
        CALLERS + "test_door_of_an_older_release_cannot_vouch_for_its_callers",
        "        if self._callers is not None:\n            self._callers.admit",
        "        if self._callers is not None and FORWARDED not in request.headers:\n            self._callers.admit",
        file="door.py",
    ),
    of_callers(
        "a door with tokens admits its own user without one",
        CALLERS + "test_token_admits_another_user",
        "        if user is None:\n            raise UnauthenticatedError",
        "        if user is None and token:\n            raise UnauthenticatedError",
        file="door.py",
    ),
    of_callers(
        "an open door may listen on any address",
        CALLERS + "test_open_door_admits_every_user",
        "    if not is_loopback(host) and not (tls and tokens):\n",
        "    if not is_loopback(host) and tls != tokens:\n",
        file="door.py",
    ),
)
