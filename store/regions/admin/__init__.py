"""Administration of the replicated store: from Python by `Admin`, from a shell by `storeadmin`.

Features: R6 (docs/FEATURES.md)
"""

from spark_jms.store.regions.admin.api import Admin, Removal
from spark_jms.store.regions.admin.cli import main
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo

__all__ = ["Admin", "DaemonInfo", "RegionInfo", "Removal", "main"]
