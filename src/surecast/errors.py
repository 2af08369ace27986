"""All errors that Surecast raises on purpose. They derive from `SurecastError`.

There is a class for each kind of cause. `ConfigError` and `UsageError` mean a mistake of the
caller. `PeerError` means invalid bytes from a peer or from a damaged file. The other classes mean a
failure that can happen in a correct program. Each message says what happened and what to do next.
An `AssertionError` is a bug in Surecast.
"""

__all__ = [
    "Closed",
    "ConfigError",
    "ConnectError",
    "DataLoss",
    "EventsLost",
    "Fenced",
    "FilterError",
    "JobFailed",
    "NotSupported",
    "OwnerUnreachable",
    "PeerError",
    "PublishError",
    "QueueFull",
    "Silent",
    "StorageError",
    "StreamConfigMismatch",
    "StreamDeleted",
    "SubscriptionInUse",
    "SurecastError",
    "TimedOut",
    "UnknownMessage",
    "UnknownSubscription",
    "UsageError",
    "WrongToken",
]


class SurecastError(Exception):
    """The base class of all errors of this package."""


class ConfigError(SurecastError):
    """A configuration is invalid: a key is missing, unknown or out of range, or an address cannot
    be used. The message says which, and why."""


class UsageError(SurecastError):
    """An invalid call: a wrong argument, or a call that is not possible in this state."""


class FilterError(UsageError):
    """A filter (`where=`) is invalid: it cannot be parsed, or does not fit the columns of the
    stream. `what` is the mistake, and `at` the number of characters of the text before it."""

    def __init__(self, what: str, at: int = 0) -> None:
        super().__init__(f"{what} (at character {at + 1} of the filter)")
        self.what = what
        self.at = at


class NotSupported(UsageError):
    """The API has this feature, but the stream's delivery (how its events reach readers) does not
    support it, or it is not implemented yet."""


class StreamConfigMismatch(UsageError):
    """The stream exists with another retention rule, delivery or options than requested."""


class PeerError(SurecastError):
    """Received or stored bytes are invalid: truncated, too long, corrupt, or of unknown kind."""


class UnknownMessage(PeerError):
    """An intact frame whose message is of a type that this node does not know.

    `tag` is the tag of the unknown message, which may be inside another message. `size` is the size
    of the frame.
    """

    def __init__(self, tag: str, size: int) -> None:
        super().__init__(f"a message of unknown type {tag} in a frame of {size:,} bytes")
        self.tag = tag
        self.size = size


class StorageError(SurecastError):
    """A disk operation failed, or a data folder cannot be used."""


class ConnectError(SurecastError):
    """No server of the region could be reached. The message says for each address what happened."""


class WrongToken(ConnectError):
    """A server refused the token. Trying again does not help."""


class Silent(ConnectError):
    """A region that answered before does not answer any more. The message consists of `what`, which
    says what happened, and advice."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}. {advice}" if advice else what)
        self.what = what


class JobFailed(SurecastError):
    """A job of the pipeline failed, or its input is invalid."""


class DataLoss(JobFailed):
    """Positions that a Spark query was to read are lost. With the option `failOnDataLoss=false` the
    query continues without them."""


class Closed(SurecastError):
    """The client or the subscription was closed."""


class TimedOut(SurecastError, TimeoutError):
    """A call took longer than its `timeout=`; the message says what it waited for.

    `maybe_taken` says whether events of the call may be published nevertheless (False if the call
    publishes nothing). After a `publish_many`, `acknowledged` has the positions of the events that
    were acknowledged in time, as half-open ranges.
    """

    def __init__(
        self,
        message: str,
        *,
        maybe_taken: bool = False,
        acknowledged: tuple[tuple[int, int], ...] = (),
    ) -> None:
        super().__init__(message)
        self.maybe_taken = maybe_taken
        self.acknowledged = acknowledged


class QueueFull(SurecastError):
    """`publish_soon` did not accept the event, because too many bytes are not acknowledged yet."""


class EventsLost(SurecastError):
    """`batches()` or `read()` has reached lost events (see `Event`, kind "lost").

    `stream` is the name of the stream, `range` has the lost positions, `why` is the reason.
    """

    def __init__(self, stream: str, lo: int, hi: int, why: str) -> None:
        super().__init__(stream, lo, hi, why)  # all arguments, so that it can be pickled
        self.stream = stream
        self.range = range(lo, hi)
        self.why = why

    def __str__(self) -> str:
        lo, hi = self.range.start, self.range.stop
        which = f"{self.stream!r} at positions {lo} to {hi - 1}" if lo < hi else repr(self.stream)
        return (
            f"events of {which} are lost: {self.why}. Call batches() again to continue after them, "
            "or read() the positions before and after them, or iterate over single events: then "
            "one event of kind 'lost' stands for them"
        )


class Fenced(SurecastError):
    """Another client has opened the named subscription, or it was reset or deleted. This client
    gets no more events, and its acknowledgements are ignored."""


class SubscriptionInUse(SurecastError):
    """A named subscription was not reset or deleted, because a client is reading under its name."""


class UnknownSubscription(UsageError):
    """The region has no subscription of that name."""


class PublishError(SurecastError):
    """Events were not published, or it is not known whether they were (`maybe_taken`).

    After a `publish_many`, `acknowledged` has the positions of the events that were acknowledged,
    as half-open ranges.
    """

    def __init__(
        self,
        message: str,
        *,
        maybe_taken: bool = False,
        acknowledged: tuple[tuple[int, int], ...] = (),
    ) -> None:
        super().__init__(message)
        self.maybe_taken = maybe_taken
        self.acknowledged = acknowledged


class OwnerUnreachable(PublishError):
    """The region that owns the stream cannot be reached from this one."""


class StreamDeleted(PublishError):
    """The stream was deleted. A publisher gets this error because nothing can be published to the
    stream any more; a subscription gets it when it has read the rest of the stream.

    `stream` is the name of the stream. `client.stream(name)` creates a new stream of that name.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} was deleted. client.stream({self.stream!r}) opens the stream "
            "that has this name now, or creates one"
        )
