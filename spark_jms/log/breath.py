"""Pauses by which housekeeping lets the application's threads run.

One thread at a time runs Python, and it gives up its turn only after 5 ms unless it waits for something. A sender waits for
small things some thirty times a send. So beside a thread that computes for 20 ms a send would take 20 ms. Housekeeping
therefore works in steps of about a millisecond, and sleeps as long as each took: then a send beside it takes about twice its time.
A sleep of 0 s would not wake the others.

What takes minutes, as the search for a million expired messages, also rests in proportion to its work: consumers need the cores.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time

STEP_FILES = 64  # of a commit or a merge: about a millisecond of Python
_BREATH_S, _LONGEST_BREATH_S = 0.0005, 0.005
_RESTS = 2.0  # as long as the work: a third of a core is left to it


class Breath(threading.local):
    ended_s = 0.0  # of the thread's last breath, of a monotonic clock


_breath = Breath()


def breathe() -> None:
    """As long as the thread has worked since its last breath, within bounds: its work may have begun later."""
    worked_s = time.monotonic() - _breath.ended_s
    time.sleep(min(max(worked_s, _BREATH_S), _LONGEST_BREATH_S))
    _breath.ended_s = time.monotonic()


def rest(begun_s: float) -> float:
    """After work that began then, of a monotonic clock. Work that takes longer because others compute rests longer too. Returns the
    time."""
    time.sleep(max((time.monotonic() - begun_s) * _RESTS, _BREATH_S))
    return time.monotonic()
