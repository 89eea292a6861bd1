"""Whole clusters in one thread: the very core of the daemons, driven by one seed (issue of R7-R12, R15, R17, R18).

python -m tests.simulator --seeds 100 --first 1      replay one with --seeds 1 --first N --trace
"""

from tests.simulator.faults import Fault
from tests.simulator.parts import Violation
from tests.simulator.world import Outcome, World, run

__all__ = ["Fault", "Outcome", "Violation", "World", "run"]
