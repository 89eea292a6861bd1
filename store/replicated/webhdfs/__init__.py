"""A namespace of files and directories in a store, and the WebHDFS door to it (R19)."""

from store.replicated.webhdfs.files import Files, FilesOptions, FilesStatistics

__all__ = ["Files", "FilesOptions", "FilesStatistics"]
