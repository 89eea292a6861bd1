"""Every error spark-jms raises by name.

The docstring of a class is its default message: it says what is wrong and what to do. Errors are picklable,
because Spark carries them from a worker to the driver as text and tests carry them between processes.
"""

from __future__ import annotations


class JmsqError(Exception):
    """spark-jms could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


# -- what the caller wrote ---------------------------------------------------------------------------------------------
class OptionError(JmsqError):
    """An option of format("jmsq") is unknown, missing or out of range."""


class ModuleFileError(JmsqError):
    """The module file is not valid: the message names file, line, key, value and what is allowed."""


class InvalidSelectorError(JmsqError):
    """The message selector does not follow the JMS selector grammar."""


class InvalidDestinationError(JmsqError):
    """There is no such destination: create it with `jmsq apply --root ROOT MODULE.yaml`."""


class MessageFormatError(JmsqError):
    """A column or value cannot become a message: the message names the column and what is accepted."""


class MessageSizeError(JmsqError):
    """A message is larger than the destination's maxMessageSize: raise the limit in the module file, or send a
    reference to the data instead."""


class MemberRemovalError(JmsqError):
    """Members can be removed only when they are empty: consume or purge their messages first."""


class TriggerError(JmsqError):
    """This trigger breaks the acknowledgement signal: use Trigger.AvailableNow instead of Trigger.Once."""


class DuplicateTransactionError(JmsqError):
    """txnAppId and txnVersion belong together: give both, or none."""


# -- the state of a domain ---------------------------------------------------------------------------------------------
class DomainError(JmsqError):
    """The root is not a spark-jms domain: create it with `jmsq apply --root ROOT MODULE.yaml`."""


class FormatVersionError(JmsqError):
    """This was written by a newer spark-jms: install that version or a later one to use it."""


class UnreadableTableError(JmsqError):
    """The destination's Delta table cannot be read: its log or a data file is missing or damaged."""


class ForeignWriteError(JmsqError):
    """Somebody other than spark-jms wrote to the destination's table: messages must be sent through
    format("jmsq"), the client or the command line. Restore the table to the last version before that commit."""


class DataLossError(JmsqError):
    """Messages this consumer still had to read are gone (purged or deleted). Set failOnDataLoss to false to go on
    without them, or start with a fresh checkpoint."""


class OffsetError(JmsqError):
    """The offset in the checkpoint is not one of spark-jms: the checkpoint is damaged or belongs to another source.
    Use the right checkpointLocation, or a fresh one."""


class StaleCheckpointError(OffsetError):
    """The checkpoint is older than what its query has acknowledged: it was restored from a copy, or its progress was
    not written before the next batch was asked for. Use a fresh checkpointLocation."""


class RecordSetError(JmsqError):
    """The stored state of a subscription cannot be read: restore the store from a copy, or drop the subscription."""


# -- what may happen while running -------------------------------------------------------------------------------------
class CommitConflictError(JmsqError):
    """Other writers were first too many times in a row: nothing was committed; try again."""


class ConsumerClosedException(JmsqError):
    """This consumer was fenced out: its claim was revoked or another instance of it took over. Its messages go to
    others; close it and create a new one."""


class MemberUnavailableError(JmsqError):
    """A member is in another consumer's hands and was not handed over in time: try again, or list the owners with
    `jmsq claims`."""


class ClosedError(JmsqError):
    """The object is closed: create a new one."""


class IllegalStateException(JmsqError):
    """This cannot be done in the state the object is in: the message says what it is doing instead."""
