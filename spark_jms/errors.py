"""The errors of spark-jms.

The docstring of a class is its default message: what is wrong, and what to do. Errors pickle, because tests and workers
send them between processes.
"""

from __future__ import annotations


def __dir__() -> list[str]:
    return [name for name, one in globals().items() if isinstance(one, type)]


class JmsqError(Exception):
    """spark-jms could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


class StoreError(Exception):
    """The store did not do what was asked. The text before this sentence names the reason."""

    def __init__(self, *facts: object) -> None:
        super().__init__(*facts)

    def detail(self) -> str:
        """The facts of this error."""
        return ": ".join(str(argument) for argument in self.args)

    def __str__(self) -> str:
        advice = " ".join((type(self).__doc__ or "").split())
        detail = self.detail()
        return f"{detail}. {advice}" if detail else advice


class ResourceAllocationException(StoreError):  # JMS's name
    """The message was not accepted, and nothing was written. Send it again when there is room, or make it smaller; the
    `store.replicated.*Percent` settings are the limits."""


# -- wrong arguments ----------------------------------------------------------------------------------------------------
class OptionError(JmsqError):
    """An option of format("jmsq") is unknown, missing or out of range."""


class ModuleFileError(JmsqError):
    """The module file is not valid: the error names file, line, key, value and the allowed values."""


class InvalidSelectorError(JmsqError):
    """The message selector does not follow the JMS selector grammar."""


class InvalidDestinationError(JmsqError):
    """The destination does not exist: create it with `jmsq apply --root ROOT MODULE.yaml`."""


class TemporaryDestinationError(InvalidDestinationError):
    """The temporary destination belongs to another context: only that one may consume from it, any other can only send to
    it."""


class TemporaryDestinationDeletedError(InvalidDestinationError):
    """The temporary destination does not exist any more: its context was closed, has died, or has deleted it. Nothing was
    sent."""


class MessageFormatError(JmsqError):
    """A column or value does not fit a message: the error names the column and the accepted types."""


class MessageSizeError(JmsqError):
    """A message is larger than the destination's maxMessageSize: raise the limit in the module file, or send a
    reference to the data instead."""


class MemberRemovalError(JmsqError):
    """Only empty members can be removed: consume or purge their messages first."""


class TriggerError(JmsqError):
    """Spark runs the query as a single batch, which would never be acknowledged. Use Trigger.AvailableNow instead of
    Trigger.Once. If the trigger is AvailableNow, another source of the query does not support it, such as Spark's rate
    source, and Spark falls back to a single batch: read that source in a query of its own, or use a processingTime
    trigger."""


class DuplicateTransactionError(JmsqError):
    """Only one of txnAppId and txnVersion is set: set both, or neither."""


# -- the state of a domain ---------------------------------------------------------------------------------------------
class QueryIdError(JmsqError):
    """The tasks of a micro-batch do not name one streaming query (the local property sql.streaming.queryId), so its
    transaction would be shared with other queries, and one of them would lose its batches: nothing was sent. Write the
    stream with writeStream, or with df.write and txnAppId, txnVersion inside foreachBatch."""


class DomainError(JmsqError):
    """The root is not a spark-jms domain: create it with `jmsq apply --root ROOT MODULE.yaml`."""


class BackupError(JmsqError):
    """The backup cannot be made or restored: it is incomplete or damaged, or its place is not empty."""


class FormatVersionError(JmsqError):
    """A newer spark-jms wrote this: install that version or a later one."""


class UnreadableTableError(JmsqError):
    """The destination's Delta table cannot be read: its log or a data file is missing or damaged."""


class ForeignWriteError(JmsqError):
    """Another program wrote to the destination's table: messages must be sent through
    format("jmsq"), the client or the command line. Restore the table to the last version before that commit."""


class DataLossError(JmsqError):
    """Messages that this consumer has not read were purged or deleted. Set failOnDataLoss to false to continue without
    them, or start with a fresh checkpoint."""


class OffsetError(JmsqError):
    """The checkpoint holds no offset of spark-jms: it is damaged or belongs to another source. Use the right
    checkpointLocation, or a fresh one."""


class DestinationDroppedError(InvalidDestinationError):
    """The destination was dropped, with its messages. If its directory is still there, `jmsq drop DESTINATION` was
    interrupted: run it again to finish."""


class DestinationInUseError(JmsqError):
    """The destination has unfinished messages or consumers: finish or purge the messages and stop the consumers, or force
    the command."""


class DestinationReplacedError(JmsqError):
    """The destination was dropped and created again, and has other messages now: a consumer or checkpoint of the old
    one cannot continue. Create a new consumer, or start the query with a fresh checkpointLocation."""


class ForeignCheckpointError(OffsetError):
    """The checkpoint belongs to another destination or subscription than the query names. Name that one again, or use a fresh
    checkpointLocation."""


class StaleCheckpointError(OffsetError):
    """The checkpoint ends before the last batch that its query acknowledged: it was restored from a copy, or Spark asked
    for the next batch before it wrote its progress. Use a fresh checkpointLocation."""


class UsageRunReplacedError(JmsqError):
    """A newer run of the usage query records the history now, so this one has ended: one of both is enough. If the newer one is not
    wanted, stop it and start this one again with a fresh checkpointLocation: it continues behind what is recorded."""


class UsageDifferenceError(JmsqError):
    """What was sent to a queue at rest, less what has ended, is not what the queue holds. Keep the log files of its consumers, and
    the store, for an analysis. To count from scratch, delete the directory of the usage history."""


class StaleDomainError(OffsetError):
    """The checkpoint is newer than the domain: an older copy of the domain, or of a server's store, was restored. Use a fresh
    checkpointLocation."""


class RecordSetError(JmsqError):
    """The stored state of a subscription cannot be read: restore the store from a copy, or drop the subscription."""


# -- at run time --------------------------------------------------------------------------------------------------------
class ClockSkewError(JmsqError):
    """This host's clock differs too much from the root's: synchronise the clocks."""


class DestinationPausedError(JmsqError):
    """An administrator has paused the destination or a member of it: try again after `jmsq resume`."""


class ProductionPausedError(DestinationPausedError):
    """Production is paused: nothing was sent. Send again after `jmsq resume DESTINATION --production`."""


class InsertionPausedError(DestinationPausedError):
    """Insertion is paused and was not resumed within the send time-out: nothing was committed. Try again after `jmsq resume
    DESTINATION --insertion`."""


class QuotaExceededError(JmsqError, ResourceAllocationException):
    """Nothing was sent. Send the messages again when consumers have finished others, give the producer a longer send_timeout, or raise
    the maximum of the quota."""


class LargerThanQuotaError(QuotaExceededError):
    """Nothing was sent, and to wait would not help. Send fewer or smaller messages at once, or raise the maximum of the quota."""


class CommitConflictError(JmsqError):
    """Other writers were first too many times in a row: nothing was committed; try again."""


class PagingError(JmsqError):
    """A page of the message buffer cannot be written, or cannot be read back. The error names the paging directory: see that it
    has space and may be written, or set another one (pagingDirectory, JMSQ_PAGING_DIRECTORY)."""


class NoRoomError(JmsqError):
    """There is no room to write: nothing was changed, and everything continues when there is room again. Free some space, then try
    again. In a store this is a StoreFullError, in the files of the domain a StorageFullError."""


class StorageFullError(NoRoomError, OSError):
    """The disk or object store with the domain's files has no room: nothing was sent or changed. Free some space, then try again."""


class WriteOutcomeUnknownError(JmsqError, OSError):
    """The storage failed while a file was created, so the file may be there or appear later. Repeat the command or the call when the
    storage works again: it finds what is there."""


class CommitOutcomeUnknownError(JmsqError):
    """The storage failed while the commit was written, so it may be in the log or appear there later. To send the same
    messages at most once, repeat them with a transaction: send_many(..., transaction=(application id, version))."""


class ProducerFencedError(JmsqError):
    """The producer id was opened again, by this or another program, so this producer may not send any more: nothing was sent. Let
    one program at a time use a producer id."""


class SequenceGapError(JmsqError):
    """A message of a producer id would leave a gap in its numbers, because one before it was not sent: nothing was sent. Send that
    one first."""


class ConsumerClosedException(JmsqError):
    """This consumer is fenced: its claim was revoked, or another instance of it took over. Its messages go to other
    consumers. Close it and create a new one."""


class ServerDownError(JmsqError):
    """The server that the messages would go to is stopped or away; nothing was committed. Send again after `jmsq server start`,
    or when its store answers; messages without a unit of order go to other servers by themselves."""


class ServerLostError(ServerDownError):
    """The server that the messages would go to is away, and its lease has lapsed; nothing was committed. Send again when its store
    answers. To one-way sends this is a hardware failure: their producer is closed."""


class SessionEndedException(ConsumerClosedException):
    """The consumer's session in the store has ended, and other consumers get its unacknowledged messages. Close the consumer
    and create a new one."""


class ConnectionLostException(JmsqError):
    """For the exception listener of a connection: a store of the domain does not answer, or a session of the connection has ended.
    The error names which. Consumers continue when the store answers; connect again when a session has ended."""


class MemberLostException(ConsumerClosedException):
    """The consumer or browser is pinned to a member of the destination that it cannot reach any more: its server is away or
    stopped, or the member was removed. Close it and create a new one, which is pinned to another member if there is one."""


class NoSuchElementException(MemberLostException, LookupError):
    """The browser has lost the member that it is pinned to in the middle of an iteration, so the messages that it has shown
    are not all. Create a new browser."""


class TransferError(JmsqError):
    """A transfer could not begin or end: the error names its target. Its messages are neither lost nor duplicated; see
    `jmsq stat`."""


class TransactionRolledBackException(JmsqError):
    """The transaction was rolled back, all of it: nothing was sent, and the received messages are delivered again, flagged."""


class TransactionUnfinishedError(JmsqError):
    """The transaction is committed, and not all of its destinations have it yet: any process completes it. Do not repeat it; see
    `jmsq transactions`."""


class LastResourceError(JmsqError):
    """The database that decides a transaction failed or is not known: the error names it. A transaction that it has not
    decided is rolled back; one whose outcome is unknown stays open until the database answers."""


class PoisonMessageError(JmsqError):
    """A poison message, with which every batch fails, cannot move to the error destination: the error names both.
    Nothing was lost; repair that destination and start the query again."""


class SparkVersionError(JmsqError):
    """The installed PySpark is older than format("jmsq") needs: upgrade it."""


class SparkStoppedError(JmsqError):
    """The Spark session of this query was stopped without query.stop(), so the query ends and gives its claims back. Nothing is
    lost: start it again in a new session."""


class QueryRunningError(JmsqError):
    """Another instance of the same query is running: a checkpoint belongs to one running query. Stop the other instance; a
    copy of a checkpoint needs a fresh checkpointLocation."""


class MemberUnavailableError(JmsqError):
    """Another consumer holds a member's record and did not hand it over in time: try again, or see who holds it with
    `jmsq claims`."""


class RequestTimeoutError(JmsqError):
    """No reply to the request arrived in time. The request stays in its destination, and a later reply is dropped."""


class ClosedError(JmsqError):
    """The object is closed: create a new one."""


class IllegalStateException(JmsqError):
    """The object's state does not allow this call: the error names that state."""


class ForkedProcessError(IllegalStateException):
    """The parent of this forked process created this context or object: connect again in this process."""


class InvalidClientIDException(JmsqError):
    """Another connection has this restricted client id: close it, take another id, or let both be unrestricted."""


class SubscriptionInUseError(IllegalStateException):
    """The subscription has other consumers, and one of them or this one is exclusive: close the others, or share it."""


def own_copy(error: Exception) -> Exception:
    """An instance of its own for each thread that raises it."""
    try:
        copy = type(error)(*error.args)
    except TypeError:
        copy = JmsqError(str(error))
    copy.__cause__ = error
    return copy
