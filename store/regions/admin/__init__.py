"""Administration of the replicated store: `storeadmin`, the same from Python, and clusters on this machine.

Not here: what a daemon answers to an administrator (core/administration.py), and the administration of other stores (kinds).

Features: R6 (docs/FEATURES.md)
"""

from spark_jms.store.regions.admin.api import Admin, Removal
from spark_jms.store.regions.admin.cli import main
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo

__all__ = ["Admin", "DaemonInfo", "RegionInfo", "Removal", "main"]
