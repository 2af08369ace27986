"""How much a client holds and how long it waits. The defaults suit most programs."""

from dataclasses import dataclass

from surecast.core.config import check
from surecast.core.types import MS, SECOND
from surecast.core.wire import DEFAULT_LIMITS

__all__ = ["ClientOptions"]

_EVENT_BYTES_MAX = DEFAULT_LIMITS.batch_bytes_max - 4096  # room for a batch's own metadata


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Bounds of one client.

    surecast.connect(url, options=surecast.ClientOptions(buffer_bytes_max=64 << 20))
    """

    # Publishing, for each stream.
    linger_ns: int = 1 * MS  # publish_soon: how long the first event of a batch waits for others
    batch_rows_max: int = 4096  # events a batch
    batch_bytes_max: int = 512 << 10  # their keys and values; one larger event travels alone
    event_bytes_max: int = 8 << 20  # one event, key and value
    outbox_bytes_max: int = 32 << 20  # not acknowledged yet: publish waits, publish_soon raises
    outbox_batches_max: int = 64  # ... and handed to the network; the rest waits here

    # Reading, for each subscription.
    buffer_bytes_max: int = 8 << 20  # received and not read yet: the server is asked to stop
    turn_rows_max: int = 4096  # events read before other tasks of the program get a turn
    ack_every_ns: int = 50 * MS  # named: how long an acknowledgement waits for others
    readers_max: int = 256  # connections of this client for reading
    streams_max: int = 10_000  # matched by one pattern

    # The region.
    connect_timeout_ns: int = 3 * SECOND  # for one address to say who it is
    rediscover_ns: int = 2 * SECOND  # all servers gone for so long: ask the url's addresses again
    close_timeout_ns: int = 10 * SECOND  # what closing waits for what is not acknowledged
    owner_timeout_ns: int = 10 * SECOND  # a stream's owner out of reach: then publishing fails
    insecure: bool = False  # mesh, some deliveries: listen beyond this machine, unencrypted

    def validate(self) -> None:
        for key in ("linger_ns", "ack_every_ns"):
            check(self, key, getattr(self, key) >= 0, "0 or more")
        for key in (
            "batch_rows_max",
            "batch_bytes_max",
            "outbox_batches_max",
            "buffer_bytes_max",
            "turn_rows_max",
            "readers_max",
            "streams_max",
            "connect_timeout_ns",
            "rediscover_ns",
            "close_timeout_ns",
            "owner_timeout_ns",
        ):
            check(self, key, getattr(self, key) > 0, "above 0")
        most = DEFAULT_LIMITS.batch_rows_max
        check(self, "batch_rows_max", self.batch_rows_max <= most, f"at most {most}")
        event, most = self.event_bytes_max, _EVENT_BYTES_MAX
        check(self, "event_bytes_max", 0 < event <= most, f"1 to {most}, or no frame holds it")
        batch, most = self.batch_bytes_max, _EVENT_BYTES_MAX // 2
        check(self, "batch_bytes_max", batch <= most, f"at most {most}")
        least = event + batch
        check(
            self,
            "outbox_bytes_max",
            self.outbox_bytes_max >= least,
            f"at least {least}: a batch and the largest event",
        )

    def __post_init__(self) -> None:
        self.validate()
