"""What the door refuses, by the names that Hadoop's clients know: they rebuild the Java exception from them.

The class name is the `exception` of the JSON body, `java_class` its `javaClassName`, `status` the HTTP status that
HDFS answers with it. The docstring is advice for people; the message is what HDFS says, because programs read it.
"""

from __future__ import annotations

from spark_jms.store.errors import StoreError


class RemoteError(StoreError):
    """The namespace refused the request; the text says why. Correct the request."""

    java_class = "java.io.IOException"
    status = 403

    @property
    def exception(self) -> str:
        return self.java_class.rpartition(".")[2].rpartition("$")[2]

    @property
    def message(self) -> str:
        return self.detail()


class RemoteIOError(RemoteError):
    """HDFS answers an IOException here. The message says what was wrong."""


class NoSuchFileError(RemoteError):
    """No file or directory has this path. Check it, and who else renames or deletes."""

    java_class = "java.io.FileNotFoundException"
    status = 404


class FileExistsAlreadyError(RemoteError):
    """The path is taken. Ask for overwriting, or choose another path."""

    java_class = "org.apache.hadoop.fs.FileAlreadyExistsException"


class ParentNotDirectoryError(RemoteError):
    """An element of the path is a file. Choose another path."""

    java_class = "org.apache.hadoop.fs.ParentNotDirectoryException"


class NotEmptyDirectoryError(RemoteError):
    """The directory has entries. Delete recursively, or empty it first."""

    java_class = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"


class PathComponentTooLongError(RemoteError):
    """A name has more than 255 bytes. Choose a shorter one."""

    java_class = "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException"


class AccessControlError(RemoteError):
    """The permission bits do not allow it. Ask the owner."""

    java_class = "org.apache.hadoop.security.AccessControlException"


class BeingCreatedError(RemoteError):
    """Another writer has the file open. Wait until it closes, or overwrite the file."""

    java_class = "org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException"


class LeaseExpiredError(RemoteError):
    """The file was deleted, renamed over or created anew while this writer wrote; nothing was kept. Begin again."""

    java_class = "org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException"


class NoSpaceError(RemoteError):
    """The store has no room; nothing was changed. Delete files or raise the memory limits."""

    java_class = "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException"


class IllegalArgumentError(RemoteError):
    """A parameter is not what the operation takes. The message names it."""

    java_class = "java.lang.IllegalArgumentException"
    status = 400


class BadOffsetError(RemoteIOError):
    """The range begins after the end of the file. Look at its length first."""


class TruncateArgumentError(IllegalArgumentError):
    """A file can be cut, not made longer. Append instead."""

    java_class = "org.apache.hadoop.HadoopIllegalArgumentException"


class UnsupportedError(RemoteError):
    """This store has no such operation (snapshots, links, storage policies, erasure coding, quotas, ACLs)."""

    java_class = "java.lang.UnsupportedOperationException"
    status = 400


class InvalidTokenError(RemoteError):
    """This door gives no delegation tokens. Use a bearer token."""

    java_class = "org.apache.hadoop.security.token.SecretManager$InvalidToken"


class UnauthenticatedError(RemoteError):
    """The request has no valid bearer token. Set dfs.webhdfs.oauth2.* as docs/WEBHDFS.md says."""

    java_class = "org.apache.hadoop.security.authentication.client.AuthenticationException"
    status = 401


class RetriableError(RemoteError):
    """The namespace is being opened, or a limit is reached for a moment. Hadoop's clients try again by themselves."""

    java_class = "org.apache.hadoop.ipc.RetriableException"
    status = 503


class StandbyError(RemoteError):
    """Another daemon serves the namespace, or none does yet. Clients with several addresses go on to the next."""

    java_class = "org.apache.hadoop.ipc.StandbyException"
    status = 503


class FaultError(RemoteError):
    """The door itself failed; its log has the place. Report it."""

    java_class = "java.lang.RuntimeException"
    status = 500
