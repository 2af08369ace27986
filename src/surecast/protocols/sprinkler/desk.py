"""What clients may ask any replica: who serves here, which streams there are, where a time begins.

All of it is answered from what is committed here, at once, and changes nothing.
"""

from typing import TYPE_CHECKING

from surecast.core.types import Peer
from surecast.protocols.sprinkler.messages import (
    Introduced,
    Locate,
    Located,
    StreamInfo,
    StreamsAre,
    WatchStreams,
)
from surecast.protocols.sprinkler.names import is_pattern, matches
from surecast.protocols.sprinkler.streams import Stream

if TYPE_CHECKING:
    from surecast.protocols.sprinkler.exchange import Exchange

__all__ = ["Desk"]

INFOS_MAX = 1000  # in one message
WATCHES_MAX = 1000  # of one client


class Desk:
    """`proxy` is the machine that this is a part of."""

    def __init__(self, proxy: "Exchange") -> None:
        self.proxy = proxy
        self.watches: dict[Peer, dict[int, str]] = {}  # by token: the pattern

    def introduce(self, peer: Peer) -> None:
        config = self.proxy.config
        here = config.regions[config.region]
        addresses = {name: config.addresses.get(name, "") for name in here}
        http = {name: config.http[name] for name in here if name in config.http}
        self.proxy.send(peer, Introduced(config.region, config.name, addresses, http))

    # ------------------------------------------------------------ which streams there are

    def on_watch(self, peer: Peer, message: WatchStreams) -> None:
        watches = self.watches.setdefault(peer, {})
        full = len(watches) >= WATCHES_MAX and message.token not in watches
        if full or not is_pattern(message.pattern):
            why = "too-many" if full else "bad-name"
            self.proxy.send(peer, StreamsAre(message.token, (), (), True, why))
            return
        watches[message.token] = message.pattern
        found = [
            stream.info
            for stream in self.proxy.streams.values()
            if matches(message.pattern, stream.info.name)
        ]
        for at in range(0, max(len(found), 1), INFOS_MAX):
            part, complete = found[at : at + INFOS_MAX], at + INFOS_MAX >= len(found)
            self._tell(peer, message.token, part, complete)

    def on_unwatch(self, peer: Peer, token: int) -> None:
        self.watches.get(peer, {}).pop(token, None)

    def opened(self, info: StreamInfo) -> None:
        """A stream has come into the directory."""
        for peer, watches in self.watches.items():
            for token, pattern in watches.items():
                if matches(pattern, info.name):
                    self._tell(peer, token, [info], True)

    def _tell(self, peer: Peer, token: int, infos: list[StreamInfo], complete: bool) -> None:
        streams = self.proxy.streams
        ends = tuple(self._end(streams[info.stream_id]) for info in infos)
        self.proxy.send(peer, StreamsAre(token, tuple(infos), ends, complete))

    def peer_down(self, peer: Peer) -> None:
        self.watches.pop(peer, None)

    # ------------------------------------------------------------ where a time begins

    def on_locate(self, peer: Peer, message: Locate) -> None:
        stream = self.proxy.streams.get(message.stream)
        if stream is None:
            self.proxy.send(peer, Located(message.token, 0, "unknown-stream"))
            return
        seq = end = self._end(stream)
        if message.time_ns >= 0:
            self.proxy.feed(stream)
            if stream.index.end < end:  # a long log, just opened: times are not known yet
                self.proxy.send(peer, Located(message.token, 0, "recovering"))
                return
            seq = stream.first_at(message.time_ns, self.proxy.disk)
        self.proxy.send(peer, Located(message.token, seq))

    def _end(self, stream: Stream) -> int:
        """Where it ends, though readers may not be shown all of it before retention has seen it."""
        return stream.committed if stream.quarantined else self.proxy.visible_end(stream)
