"""Whole region clusters in one thread: the cores of the daemons, driven by one seed or step by step (R7-R12, R15, R18).

python -m tests.models.regions --seeds 100 --first 1      replay one seed with --seeds 1 --first N --trace
"""

from tests.models.regions.errors import Violation
from tests.models.regions.world import SeedOutcome, World, run

__all__ = ["SeedOutcome", "Violation", "World", "run"]
