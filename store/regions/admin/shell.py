"""The interactive session: prompt, completion, history. Without a terminal it runs the lines of stdin.

Features: R6 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from spark_jms.store.errors import CommandUsageError
from spark_jms.store.regions.admin.commands import completions, split
from spark_jms.store.regions.admin.session import OK, USAGE, AdminSession

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.input import Input
    from prompt_toolkit.output import Output

HISTORY_FILE = ".storeadmin_history"


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
