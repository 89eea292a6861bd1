"""Files and directories in a store, and the WebHDFS door to them.

Not here: the objects that keep them (regions/client), and the daemon that hosts a door (regions/daemon).

Features: R19 (docs/FEATURES.md)
"""

from spark_jms.store.webhdfs.blocks import FilesOptions, FilesStatistics
from spark_jms.store.webhdfs.files import Files

__all__ = ["Files", "FilesOptions", "FilesStatistics"]
