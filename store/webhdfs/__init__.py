"""Files and directories in a store, and the WebHDFS door to them.

Features: R19 (docs/FEATURES.md)
"""

from spark_jms.store.webhdfs.files import Files
from spark_jms.store.webhdfs.options import FilesOptions, FilesStatistics

__all__ = ["Files", "FilesOptions", "FilesStatistics"]
