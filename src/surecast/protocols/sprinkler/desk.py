"""What clients may ask any replica: who serves here, which streams there are, where a time begins.

All of it is answered from what is committed here, at once, and changes nothing.
"""

from typing import TYPE_CHECKING

from surecast.core.types import Peer
from surecast.errors import StorageError
from surecast.protocols.sprinkler.messages import (
    Introduced,
    Locate,
    Located,
    StreamInfo,
    StreamsAre,
    WatchStreams,
)
from surecast.protocols.sprinkler.names import is_name, is_pattern, matches
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
        found = self._matching(message.pattern)
        for at in range(0, max(len(found), 1), INFOS_MAX):
            part, complete = found[at : at + INFOS_MAX], at + INFOS_MAX >= len(found)
            self._tell(peer, message.token, part, complete)

    def _matching(self, pattern: str) -> list[StreamInfo]:
        if is_name(pattern):  # whoever has thousands of streams asks for them one by one
            info = self.proxy.directory.by_name.get(pattern)
            return [info] if info is not None and info.stream_id in self.proxy.streams else []
        streams = self.proxy.streams.values()
        return [stream.info for stream in streams if matches(pattern, stream.info.name)]

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
        # Where it ends, though readers may not be shown all of it: before retention has seen it,
        # or because it is damaged on its way there. Who asks must not take it for shorter.
        ends = tuple(self.proxy.visible_end(streams[info.stream_id]) for info in infos)
        self.proxy.send(peer, StreamsAre(token, tuple(infos), ends, complete))

    def peer_down(self, peer: Peer) -> None:
        self.watches.pop(peer, None)

    # ------------------------------------------------------------ where a time begins

    def on_locate(self, peer: Peer, message: Locate) -> None:
        stream = self.proxy.streams.get(message.stream)
        if stream is None:
            self.proxy.send(peer, Located(message.token, 0, "unknown-stream"))
            return
        end = self.proxy.visible_end(stream)
        if message.time_ns < 0:
            self.proxy.send(peer, Located(message.token, end))
            return
        self.proxy.feed(stream)
        if not stream.quarantined and stream.index.end < end:
            # A long log, just opened: times are not known yet.
            self.proxy.send(peer, Located(message.token, 0, "recovering"))
            return
        self.proxy.send(peer, self._located(stream, message))

    def _located(self, stream: Stream, message: Locate) -> Located:
        """Of a damaged stream it is not known whether a later time begins behind the damage."""
        try:
            seq = stream.first_at(message.time_ns, self.proxy.disk)
        except StorageError as problem:
            if not stream.quarantined:
                self.proxy._damaged(stream, problem, stream.committed)
            return Located(message.token, 0, "quarantined")
        readable = min(stream.committed, stream.index.end)
        if stream.quarantined and message.time_ns > 0 and seq >= readable:
            return Located(message.token, 0, "quarantined")
        return Located(message.token, seq)
