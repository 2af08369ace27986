"""Every error Surecast raises on purpose, under one root.

Blames are kept apart. `ConfigError` and `UsageError` are the caller's to mend, `PeerError` is what
a peer (or a corrupt disk block) sent us, and the rest is what a client of a region may meet: each
message says what happened and what to do next. An `AssertionError` is our own bug.
"""

__all__ = [
    "Closed",
    "ConfigError",
    "ConnectError",
    "DataLoss",
    "EventsLost",
    "Fenced",
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
    """The root of all errors of this package."""


class ConfigError(SurecastError):
    """A configuration value is missing, unknown or out of range; the message says which and why."""


class UsageError(SurecastError):
    """The caller asked for something that cannot be done as asked."""


class NotSupported(UsageError):
    """What was asked for is part of the surface, but the stream's delivery does not offer it, or it
    is not built yet."""


class StreamConfigMismatch(UsageError):
    """The stream exists and keeps its events by another rule than the one asked for."""


class PeerError(SurecastError):
    """Bytes from outside do not make sense: truncated, oversized, corrupt, or of unknown kind."""


class UnknownMessage(PeerError):
    """An intact frame whose message is of a type that this node does not know.

    `tag` is that of the message, or that of the unknown message inside it. `size` is the frame's.
    """

    def __init__(self, tag: str, size: int) -> None:
        super().__init__(f"a message of unknown type {tag} in a frame of {size:,} bytes")
        self.tag = tag
        self.size = size


class StorageError(SurecastError):
    """The disk could not do what was asked of it."""


class ConnectError(SurecastError):
    """No server of the region could be reached; the message says what each address answered."""


class WrongToken(ConnectError):
    """A server answered and refused the token. Trying again does not help."""


class Silent(ConnectError):
    """A region that has answered before does not any more. `what`: without the advice."""

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}. {advice}" if advice else what)
        self.what = what


class JobFailed(SurecastError):
    """A job of the pipeline came to no end, or found that its input is not what it should be."""


class DataLoss(JobFailed):
    """Positions that a query had been promised are gone. `failOnDataLoss=false` goes on."""


class Closed(SurecastError):
    """The client or the subscription was closed."""


class TimedOut(SurecastError, TimeoutError):
    """A call took longer than its `timeout=`; the message says what it waited for.

    `maybe_taken`: what it was to publish may be published all the same. `acknowledged` has the
    positions, as half-open runs, of what one `publish_many` did get published before.
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
    """As much as may be is unacknowledged: `publish_soon` did not take the event."""


class EventsLost(SurecastError):
    """`batches()` or `read()` came to events that will not come. See `Event`, kind "lost".

    `stream` is its name, `range` has the positions, `why` the reason.
    """

    def __init__(self, stream: str, lo: int, hi: int, why: str) -> None:
        super().__init__(stream, lo, hi, why)  # with its arguments it can be pickled
        self.stream = stream
        self.range = range(lo, hi)
        self.why = why

    def __str__(self) -> str:
        lo, hi = self.range.start, self.range.stop
        which = f"{self.stream!r} at positions {lo} to {hi - 1}" if lo < hi else repr(self.stream)
        return (
            f"events of {which} are lost: {self.why}. Call batches() once more to read on behind "
            "them, read() the positions before and behind them, or iterate over events, where they "
            "come as kind 'lost'"
        )


class Fenced(SurecastError):
    """Another client has opened the named subscription, or it was reset or deleted; this one reads
    no more, and its acknowledgements no longer count."""


class SubscriptionInUse(SurecastError):
    """A client reads under the name: the subscription was neither reset nor deleted."""


class UnknownSubscription(UsageError):
    """The region has no subscription of that name."""


class PublishError(SurecastError):
    """Events were not published, or it is not known whether they were (`maybe_taken`).

    `acknowledged` has the positions, as half-open runs, of what one `publish_many` did get
    published before.
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
    """The stream was deleted: nothing can be published to it, and its readers are at its end.

    `stream` is its name. `client.stream(name)` creates a new stream of that name.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} was deleted. client.stream({self.stream!r}) opens the stream "
            "that has the name now, or creates it"
        )
