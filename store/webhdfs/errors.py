"""Refusals of the door, under the names that Hadoop's clients know: they rebuild the Java exception from them.

The end of `java_class` is the `exception` of the JSON body, the whole its `javaClassName`; `status` is the HTTP status of
HDFS's answer. The docstring is advice for people; the message is HDFS's own text, because programs read it.
"""

from __future__ import annotations

from spark_jms.store.errors import StoreError


class RemoteError(StoreError):
    """The namespace refused the request; the message has the reason. Correct the request."""

    java_class = "java.io.IOException"
    status = 403

    @property
    def exception(self) -> str:
        return self.java_class.rpartition(".")[2].rpartition("$")[2]

    @property
    def message(self) -> str:
        return self.detail()


class RemoteIOError(RemoteError):
    """HDFS answers an IOException here. The message has the reason."""


class NoSuchFileError(RemoteError):
    """No file or directory has this path. Check the path, and whether another program renamed or deleted it."""

    java_class = "java.io.FileNotFoundException"
    status = 404


class FileExistsAlreadyError(RemoteError):
    """The path exists already. Overwrite it, or choose another path."""

    java_class = "org.apache.hadoop.fs.FileAlreadyExistsException"


class ParentNotDirectoryError(RemoteError):
    """An element of the path is a file. Choose another path."""

    java_class = "org.apache.hadoop.fs.ParentNotDirectoryException"


class NotEmptyDirectoryError(RemoteError):
    """The directory is not empty. Delete it recursively, or empty it first."""

    java_class = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"


class PathComponentTooLongError(RemoteError):
    """A name has more than 255 bytes. Choose a shorter one."""

    java_class = "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException"


class AccessControlError(RemoteError):
    """The permission bits do not allow this access. Ask the owner."""

    java_class = "org.apache.hadoop.security.AccessControlException"


class ForeignCallerError(AccessControlError):
    """Another user of this machine sent the request. Run the program as the door's user, or give the door a token file."""


class UnknownCallerError(AccessControlError):
    """The kernel does not show which user sent the request. Give the door a token file."""


class BeingCreatedError(RemoteError):
    """Another writer has the file open. Wait until it closes, or overwrite the file."""

    java_class = "org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException"


class LeaseExpiredError(RemoteError):
    """The file was deleted, overwritten or taken by another writer in the meantime; nothing was kept. Write it again."""

    java_class = "org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException"


class NoSpaceError(RemoteError):
    """The store has no room; nothing was changed. Delete files or raise the memory limits."""

    java_class = "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException"


class IllegalArgumentError(RemoteError):
    """A parameter has a wrong value. The message names it."""

    java_class = "java.lang.IllegalArgumentException"
    status = 400


class BadOffsetError(RemoteIOError):
    """The range begins after the end of the file. Ask for the length first."""


class TruncateArgumentError(IllegalArgumentError):
    """Truncating cannot make a file longer. Append instead."""

    java_class = "org.apache.hadoop.HadoopIllegalArgumentException"


class UnsupportedError(RemoteError):
    """This store does not support the operation (snapshots, links, storage policies, erasure coding, quotas, ACLs)."""

    java_class = "java.lang.UnsupportedOperationException"
    status = 400


class InvalidTokenError(RemoteError):
    """The door issues no delegation tokens. Use a bearer token."""

    java_class = "org.apache.hadoop.security.token.SecretManager$InvalidToken"


class UnauthenticatedError(RemoteError):
    """The request has no valid bearer token. Set dfs.webhdfs.oauth2.* as in docs/WEBHDFS.md."""

    java_class = "org.apache.hadoop.security.authentication.client.AuthenticationException"
    status = 401


class RetriableError(RemoteError):
    """The namespace is being opened, or a limit is reached for now. Hadoop's clients retry by themselves."""

    java_class = "org.apache.hadoop.ipc.RetriableException"
    status = 503


class StandbyError(RemoteError):
    """Another daemon serves the namespace, or none does yet. Clients with several addresses try the next one."""

    java_class = "org.apache.hadoop.ipc.StandbyException"
    status = 503


class FaultError(RemoteError):
    """The door itself failed; its log has the stack trace. Report it."""

    java_class = "java.lang.RuntimeException"
    status = 500
