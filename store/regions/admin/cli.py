"""storeadmin: without a command it starts a session; with one it runs it and returns its exit code.

    storeadmin
    storeadmin lsd -dir /shared/rs_global_dir -format list

Exit codes: 0 done, 1 the command failed, 2 it was no command.

Features: R6 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_jms.store.errors import DaemonUnavailableError
from spark_jms.store.regions.admin.api import Admin, Attach, default_attach
from spark_jms.store.regions.admin.commands import help_on
from spark_jms.store.regions.admin.session import FAILED, OK, AdminSession, Surroundings
from spark_jms.store.regions.admin.shell import interact, run_lines
from spark_jms.store.regions.admin.top import watch
from spark_jms.store.regions.command_line import HELP
from spark_jms.store.regions.global_directory import CONFIG

DIRECTORY_VARIABLE, USUAL_DIRECTORY = "RS_DIRECTORY", "replicated-store"

USAGE = """\
Usage: storeadmin                      a session; rshelp in it lists the commands
       storeadmin command [options]    one command, with -dir and -localindex for where to attach

"""


def main(argv: Sequence[str] | None = None, attach: Attach = default_attach) -> int:
    """`argv` does not contain the program's name; by default it is taken from sys.argv."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in HELP:
        sys.stdout.write(USAGE + help_on(""))
        return OK
    one_shot = bool(words)
    err = sys.stderr if one_shot else sys.stdout  # a session's output is one conversation
    directory = usual_directory(os.environ, Path.cwd())
    around = Surroundings(sys.stdout, err, lambda: time.time_ns() // 1000, None, watch, directory)
    admin = Admin(attach=attach)
    try:
        session = AdminSession(admin, around)
        if one_shot:
            code = session.run(words, one_shot=True)
        elif sys.stdin.isatty():
            code = interact(session, Path.home())
        else:
            code = run_lines(session, sys.stdin, sys.stdout, err)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `storeadmin lsr | head`: what is left of the output goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    finally:
        _close(admin)


def usual_directory(environment: Mapping[str, str], here: Path) -> str:
    """The Global Directory where no -dir is given: RS_DIRECTORY; else "."; else, when only that one has an rs_daemons.cfg,
    the directory that `jmsq store up` creates."""
    if DIRECTORY_VARIABLE in environment:
        return environment[DIRECTORY_VARIABLE]
    if not (here / CONFIG).exists() and (here / USUAL_DIRECTORY / CONFIG).exists():
        return USUAL_DIRECTORY
    return "."


def _close(admin: Admin) -> None:
    try:
        admin.close()
    except DaemonUnavailableError:
        return  # gone is closed
