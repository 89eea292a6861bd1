"""Files and directories in a store, and the WebHDFS door to them (R19)."""

from spark_jms.store.webhdfs.files import Files
from spark_jms.store.webhdfs.options import FilesOptions, FilesStatistics

__all__ = ["Files", "FilesOptions", "FilesStatistics"]
