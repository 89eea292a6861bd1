"""A session of storeadmin: one attachment, and commands that print. Errors are printed and never end the session.

At a terminal the session has a prompt, completion and history; without one it runs the lines of stdin.

Features: R6 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from spark_jms.store.errors import CommandUsageError, StoreError
from spark_jms.store.regions.admin.api import Admin
from spark_jms.store.regions.admin.commands import BY_NAME, Arguments, Known, completions, help_on, parse, split
from spark_jms.store.regions.admin.formats import (
    daemons_list,
    daemons_table,
    regions_list,
    regions_table,
    stores_list,
    stores_table,
)
from spark_jms.store.regions.admin.port import DaemonInfo, waiting_text

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output


HISTORY_FILE = ".storeadmin_history"
DETACHED_PROMPT = "storeadmin->"
ATTACHED_PROMPT = "storeadmin:[RS]->"
OK, FAILED, USAGE = 0, 1, 2


@dataclass(frozen=True)
class Surroundings:
    """The environment of a session. `zone` None is the machine's time zone. `watch` shows `top` until the user ends it."""

    out: TextIO
    err: TextIO
    clock_us: Callable[[], int]
    zone: tzinfo | None
    watch: Callable[[Admin, Arguments, Surroundings], None]
    directory: str = "."  # where no -dir is given


class AdminSession:
    def __init__(self, admin: Admin, surroundings: Surroundings) -> None:
        self._admin = admin
        self._around = surroundings
        self.ended = False

    @property
    def prompt(self) -> str:
        return ATTACHED_PROMPT if self._admin.attached else DETACHED_PROMPT

    def run(self, words: Sequence[str], one_shot: bool = False) -> int:
        """The exit code: 0, 1 when the command failed, 2 for a usage error. Prints when the attachment ends, for whatever
        reason."""
        admin = self._admin
        try:
            arguments = parse(words, one_shot, self._around.directory)
            if one_shot and BY_NAME[arguments.command].attached:
                admin.attach(arguments.directory, arguments.localindex)
        except CommandUsageError as error:
            self._error(f"{error.command}: {error.reason}")
            self._print(f"Usage: {error.usage}", self._around.err)
            return USAGE
        except (StoreError, OSError) as error:
            self._error(f"Failed to attach to a Daemon with global dir [{arguments.directory}]: {error}")
            return FAILED
        before = (admin.local_index, admin.directory) if admin.attached else None
        try:
            code = self._execute(arguments)
        except BrokenPipeError:
            raise
        except (StoreError, OSError, ValueError) as error:
            self._error(str(error))
            code = FAILED
        if before is not None and not admin.attached:
            self._info(f"Detached from Daemon {before[0]} with global dir [{before[1]}].")
        return code

    def known(self) -> Known:
        """Names for completion. Never fails."""
        if not self._admin.attached:
            return Known()
        try:
            daemons, regions = self._admin.daemons(), self._admin.regions()
        except (StoreError, OSError):
            return Known()
        return Known(tuple(daemon.index for daemon in daemons), tuple(sorted(region.name for region in regions)))

    def _execute(self, arguments: Arguments) -> int:
        if BY_NAME[arguments.command].attached and not self._admin.attached:
            self._error("Not attached to a Daemon. Use rsattach.")
            return FAILED
        commands: dict[str, Callable[[Arguments], int]] = {
            "rshelp": self._rshelp,
            "rsattach": self._rsattach,
            "rsdetach": self._rsdetach,
            "lsd": self._lsd,
            "lsr": self._lsr,
            "lsc": self._lsc,
            "rmr": self._rmr,
            "shutdown": self._shutdown,
            "top": self._top,
            "quit": self._quit,
        }
        return commands[arguments.command](arguments)

    def _rshelp(self, arguments: Arguments) -> int:
        self._around.out.write(help_on(arguments.topic))
        return OK

    def _rsattach(self, arguments: Arguments) -> int:
        admin = self._admin
        if admin.attached:
            self._error(
                f"Attached to Daemon {admin.local_index} with global dir [{admin.directory}]. Use rsdetach first."
            )
            return FAILED
        try:
            index = admin.attach(arguments.directory, arguments.localindex)
        except (StoreError, OSError) as error:
            self._error(f"Failed to attach to a Daemon with global dir [{arguments.directory}]: {error}")
            return FAILED
        self._info(f"Attached to Daemon {index} with global dir [{arguments.directory}].")
        return OK

    def _rsdetach(self, arguments: Arguments) -> int:
        self._admin.detach()
        return OK

    def _lsd(self, arguments: Arguments) -> int:
        everything = self._admin.daemons()
        wanted = self._admin.daemons(arguments.daemons, arguments.sort)
        zone = self._around.zone
        if arguments.format == "list":
            text = daemons_list(wanted, zone, len(everything))
        else:
            text = daemons_table(wanted, now_us(self._admin, everything, self._around), zone)
        self._around.out.write(text)
        return OK

    def _lsr(self, arguments: Arguments) -> int:
        regions = self._admin.regions(arguments.expression, arguments.daemons, arguments.sort)
        zone = self._around.zone
        if arguments.format == "list":
            text = regions_list(regions, zone)
        else:
            text = regions_table(regions, now_us(self._admin, self._admin.daemons(), self._around), zone)
        self._around.out.write(text)
        return OK

    def _lsc(self, arguments: Arguments) -> int:
        stores = self._admin.stores(arguments.expression)
        self._around.out.write(stores_list(stores) if arguments.format == "list" else stores_table(stores))
        return OK

    def _rmr(self, arguments: Arguments) -> int:
        removal = self._admin.remove_regions(arguments.expression, arguments.force)
        for name in removal.removed:
            self._info(f"Removed Region {name}.")
        for name in removal.lost:
            self._info(f"Region {name} was open: its store fails until Region {name} is removed again.")
        for name, error in removal.refused:
            self._error(f"Region {name} was not removed: {error}")
        if not removal.removed and not removal.refused:
            self._error(f"No Region matches [{arguments.expression}].")
            return FAILED
        return FAILED if removal.refused else OK

    def _shutdown(self, arguments: Arguments) -> int:
        if arguments.cancel:
            for index in self._admin.break_off(arguments.daemons):
                self._info(f"Daemon {index} stays.")
            return OK
        lost = self._admin.lost_with(arguments.daemons) if arguments.force else []
        for index in self._admin.shutdown(arguments.daemons, arguments.force, self._waits):
            self._info(f"Shut down Daemon {index}.")
        for name in lost:
            self._info(f"Lost Region {name}: no other Daemon had a copy.")
        return OK

    def _waits(self, index: int, reason: str) -> None:
        self._info(waiting_text(index, reason).replace("daemon", "Daemon", 1))

    def _top(self, arguments: Arguments) -> int:
        self._around.watch(self._admin, arguments, self._around)
        return OK

    def _quit(self, arguments: Arguments) -> int:
        self.ended = True
        return OK

    def _info(self, message: str) -> None:
        self._print(f"INFO:  {message}", self._around.out)

    def _error(self, message: str) -> None:
        self._print(f"ERROR: {message}", self._around.err)

    def _print(self, line: str, stream: TextIO) -> None:
        stream.write(f"{line}\n")
        stream.flush()


# -- the interactive session, and a script's ---------------------------------------------------------------------------


def run_lines(session: AdminSession, lines: Iterable[str], out: TextIO, err: TextIO) -> int:
    """Runs all lines of a script, whatever fails, and returns the code of the last failure. Prints prompts, so that each
    output can be told from the next."""
    code = OK
    out.write(session.prompt)
    for line in lines:
        out.write(f"{line.rstrip()}\n")
        out.flush()
        code = run_line(session, line, err) or code
        if session.ended:
            return code
        out.write(session.prompt)
    out.write("\n")
    return code


def interact(session: AdminSession, home: Path, source: Input | None = None, target: Output | None = None) -> int:
    """Runs until `quit` or the end of input. Control-C cancels the line, or the running command."""
    from prompt_toolkit import PromptSession

    keyboard: PromptSession[str] = PromptSession(
        history=history_of(home),
        completer=completer_of(session),
        complete_while_typing=False,  # names of regions are asked of the daemon: at Tab, not at each key
        input=source,
        output=target,
    )
    while not session.ended:
        try:
            run_line(session, keyboard.prompt(lambda: session.prompt), sys.stdout)
        except KeyboardInterrupt:
            continue
        except EOFError:
            break
    return OK


def run_line(session: AdminSession, line: str, err: TextIO) -> int:
    """Ignores empty lines and comments (#)."""
    if not line.strip() or line.lstrip().startswith("#"):
        return OK
    try:
        words = split(line)
    except CommandUsageError as error:
        err.write(f"ERROR: {error.reason}\n")
        return USAGE
    return session.run(words) if words else OK


def completer_of(session: AdminSession) -> Completer:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class CommandCompleter(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            text = document.text_before_cursor
            words = text.split()
            word = words.pop() if words and not text[-1].isspace() else ""
            for each in completions(words, word, session.known()):
                yield Completion(each, start_position=-len(word))

    return CommandCompleter()


def history_of(home: Path) -> History:
    """The history of this user, kept between sessions unless the file cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = home / HISTORY_FILE
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def now_us(admin: Admin, daemons: Sequence[DaemonInfo], around: Surroundings) -> int:
    """The clock of the attached daemon; this machine's when that daemon is not up."""
    local = [daemon.now_us for daemon in daemons if daemon.index == admin.local_index and daemon.up]
    return local[0] if local else around.clock_us()
