"""Administration of the replicated store: from Python by `Admin`, from a shell by `storeadmin` (R6)."""

from store.replicated.admin.api import Admin, Removal
from store.replicated.admin.cli import main
from store.replicated.admin_port import DaemonInfo, RegionInfo

__all__ = ["Admin", "DaemonInfo", "RegionInfo", "Removal", "main"]
