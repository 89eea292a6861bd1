"""Whole region clusters in one thread: the cores of the daemons, driven by one seed or step by step (R7-R12, R15, R18).

python -m tests.simulator --seeds 100 --first 1      replay one seed with --seeds 1 --first N --trace
"""

from tests.simulator.errors import Violation
from tests.simulator.world import SeedOutcome, World, run

__all__ = ["SeedOutcome", "Violation", "World", "run"]
