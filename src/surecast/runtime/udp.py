"""The datagrams of a node: messages that its state machine sends with `Send(reliable=False)`.

A datagram consists of a preamble, which has the sender's name, and one frame. The node collects the
datagrams of a *pass* (the inputs that it processes together, see `runtime.node`) and sends those to
one peer with as few system calls as possible. Consecutive datagrams of the same size (the last may
be shorter) are passed to the kernel in one `sendmsg`, and the kernel splits the data into datagrams
(generic segmentation offload, GSO). The kernel of the receiver may join the data again (GRO); then
one `recvmsg` returns all of it, and the size of each datagram. If the sending kernel does not
support GSO, each datagram is sent separately.

A datagram that cannot be sent is lost and counted. The state machine is not informed.
"""

import asyncio
import errno
import socket
import struct
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from surecast.core.types import Peer, Received
from surecast.core.wire import Buffer
from surecast.errors import PeerError, UnknownMessage
from surecast.runtime.addresses import Address
from surecast.runtime.chunks import Chunk

if TYPE_CHECKING:
    from surecast.runtime.node import Node

__all__ = ["Datagrams"]

# From <linux/udp.h>; Python's socket module does not have these constants.
SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104

_SEGMENTS_MAX: Final = 64  # datagrams in one sendmsg
_DATAGRAM_MAX: Final = 65_507  # the largest datagram that UDP allows
# Datagrams of this size fit into a packet of usual networks. If the kernel refuses to split data
# into datagrams of this size, it does not support GSO.
_SAFE_BYTES: Final = 1200
_RECEIVES_MAX: Final = 32  # receives in a pass, so that many datagrams do not delay other work
_PEERS_MAX: Final = 4096  # entries in each table about peers; a full table is emptied
# Magic, version, length of the name, zero, checksum. The name follows, then zero bytes up to a
# multiple of 8.
_PREAMBLE: Final = struct.Struct("<4sBBHI")
_NAME_LEN_AT: Final = 5  # the offset of the length of the name
_MAGIC: Final = b"SCD\xf1"
_VERSION: Final = 1
_SEGMENT_SIZE: Final = struct.Struct("<H")  # the value of UDP_SEGMENT
_GRO_SIZE: Final = struct.Struct("<i")  # the value of UDP_GRO
_WOULD_BLOCK: Final = (errno.EAGAIN, errno.ENOBUFS)  # the kernel's send buffer is full


class Datagrams:
    """The UDP socket of a node. With `offload` False it uses neither GSO nor GRO."""

    def __init__(self, node: "Node", sock: socket.socket, offload: bool = True) -> None:
        self.node = node
        self.sock = sock
        self.out: dict[Peer, list[bytes]] = {}  # the datagrams of this pass
        # The largest datagrams that are sent by GSO; 0: GSO is not used.
        self.segment_bytes_max = _DATAGRAM_MAX if offload else 0
        # The node's token. It is taken from a Hello, of which the other fields do not matter here.
        self._credential = node.hello("", b"", 0).credential.encode()
        self._preamble = _preamble(node.name, self._credential)
        self._known: dict[bytes, Peer] = {}  # the senders of preambles that were checked before
        self._chunk = Chunk()
        # The socket address for each address of the address book, whose host may be a name.
        self._addresses: dict[tuple[str, int], Any] = {}
        # The last source address of each peer that is not in the address book.
        self._sources: dict[Peer, Any] = {}
        self._resolving: dict[tuple[str, int], asyncio.Task[None]] = {}  # lookups of host names
        if offload:
            try:
                sock.setsockopt(SOL_UDP, UDP_GRO, 1)
            except OSError:
                node.counters["udp_no_gro"] += 1
        node.loop.add_reader(sock.fileno(), self._readable)

    def close(self) -> None:
        self.node.loop.remove_reader(self.sock.fileno())
        self.sock.close()
        self.out.clear()
        for task in self._resolving.values():
            task.cancel()

    # ------------------------------------------------------------ sending

    def send(self, peer: Peer, buffers: list[Buffer], nbytes: int) -> None:
        """Queue a datagram with this frame, of `nbytes`, for the next flush."""
        size = len(self._preamble) + nbytes
        if size > self.node.limits.datagram_bytes_max:
            self.node.counters["udp_too_large"] += 1
            return
        datagram = b"".join((self._preamble, *buffers))
        waiting = self.out.get(peer)
        if waiting is None:
            self.out[peer] = [datagram]
        else:
            waiting.append(datagram)

    def flush(self) -> None:
        """Send all queued datagrams."""
        out = self.out
        if not out:
            return
        self.out = {}
        counters = self.node.counters
        for peer, datagrams in out.items():
            address = self._find(peer)
            if address is None:
                counters["udp_no_address"] += len(datagrams)
                continue
            for group in _groups(datagrams, self.segment_bytes_max):
                self._transmit(group, address)

    def _transmit(self, group: list[bytes], address: Any) -> None:
        """Send the datagrams of one group, with one system call if possible."""
        counters = self.node.counters
        size = len(group[0])
        if len(group) > 1 and size <= self.segment_bytes_max:
            segment = [(SOL_UDP, UDP_SEGMENT, _SEGMENT_SIZE.pack(size))]
            try:
                self.sock.sendmsg([b"".join(group)], segment, 0, address)
                counters["udp_out"] += len(group)
                counters["udp_offloaded"] += len(group)
                return
            except OSError as problem:
                if problem.errno in _WOULD_BLOCK:
                    counters["udp_send_full"] += len(group)
                    return
                # The kernel refuses GSO if a datagram does not fit into one packet of the network.
                # Smaller datagrams may fit.
                self.segment_bytes_max = size - 1 if size > _SAFE_BYTES else 0
                counters["udp_offload_refused"] += 1
        for datagram in group:
            try:
                self.sock.sendto(datagram, address)
                counters["udp_out"] += 1
            except OSError as problem:
                full = problem.errno in _WOULD_BLOCK
                counters["udp_send_full" if full else "udp_send_failed"] += 1

    def _find(self, peer: Peer) -> Any:
        """The socket address of `peer`. None if it is not known, or its host name is not resolved
        yet."""
        address = self.node.find(peer)
        if address is None:
            return self._sources.get(peer)
        resolved = self._addresses.get(address)
        if resolved is None and address not in self._resolving:
            if len(self._addresses) >= _PEERS_MAX:
                self._addresses.clear()
            resolved = self._resolve(address)
        return resolved

    def _resolve(self, address: Address) -> Any:
        """Return a numeric address at once. For a host name, start a lookup and return None;
        datagrams that are sent before the lookup has ended are lost."""
        try:
            socket.inet_pton(self.sock.family, address[0])
        except OSError:
            self._resolving[address] = self.node.loop.create_task(self._look_up(address))
            return None
        self._addresses[address] = address
        return address

    async def _look_up(self, address: Address) -> None:
        host, port = address
        try:
            resolved = await self.node.loop.getaddrinfo(
                host, port, family=self.sock.family, type=socket.SOCK_DGRAM
            )
            self._addresses[address] = resolved[0][4]
        except (OSError, ValueError):
            self.node.counters["udp_no_address"] += 1
        finally:
            self._resolving.pop(address, None)

    # ------------------------------------------------------------ receiving

    def _readable(self) -> None:
        """Called when datagrams have arrived: a pass with at most _RECEIVES_MAX receives."""
        node = self.node
        ancillary = socket.CMSG_SPACE(_GRO_SIZE.size)
        try:
            for _ in range(_RECEIVES_MAX):
                room = self._chunk.room(_DATAGRAM_MAX)
                try:
                    nbytes, extra, _, source = self.sock.recvmsg_into([room], ancillary)
                except OSError:  # nothing more, or an error of an earlier send
                    break
                size = nbytes  # of each datagram in `room`; the last may be shorter
                for level, kind, data in extra:
                    if level == SOL_UDP and kind == UDP_GRO:
                        size = _GRO_SIZE.unpack(data[: _GRO_SIZE.size])[0] or nbytes
                # All bytes are taken out of the chunk at once: a datagram has only whole frames.
                self._chunk.at = self._chunk.fill = self._chunk.fill + nbytes
                for at in range(0, nbytes, size or 1):
                    self.receive(room[at : min(at + size, nbytes)], source)
                del room  # a reference to the chunk, which `Chunk.room` would count
        except Exception as problem:
            node.fail(problem)
            return
        node.settle()

    def receive(self, datagram: memoryview, source: Any) -> None:
        """Check one datagram and step the machine with its message."""
        node = self.node
        try:
            peer, start = self._read_preamble(datagram)
            message, size = node.codec.decode(datagram[start:])
            if start + size != len(datagram):
                raise PeerError("bytes after the frame")
        except UnknownMessage as unknown:
            node.unknown.drop(peer, unknown)
            return
        except PeerError:
            node.counters["udp_refused"] += 1
            return
        if node.find(peer) is None and self._sources.get(peer) != source:
            if len(self._sources) >= _PEERS_MAX:
                self._sources.clear()
            self._sources[peer] = source
        node.counters["udp_in"] += 1
        node.step(Received(peer, message))
        if node.pending:
            node.run_pending()

    def _read_preamble(self, datagram: memoryview) -> tuple[Peer, int]:
        """The sender of a datagram, and where its frame begins. Raises PeerError if the preamble is
        invalid."""
        if len(datagram) < _PREAMBLE.size:
            raise PeerError("a datagram shorter than its preamble")
        name_end = _PREAMBLE.size + datagram[_NAME_LEN_AT]
        end = name_end + -name_end % 8  # rounded up to a multiple of 8
        preamble = bytes(datagram[:end])
        peer = self._known.get(preamble)
        if peer is None:
            try:
                peer = preamble[_PREAMBLE.size : name_end].decode()
            except UnicodeDecodeError:
                raise PeerError("a sender's name that is not text") from None
            if not peer or preamble != _preamble(peer, self._credential):
                raise PeerError("not a datagram of this cluster")
            if len(self._known) >= _PEERS_MAX:
                self._known.clear()
            self._known[preamble] = peer
        return peer, end


def _preamble(name: Peer, credential: bytes) -> bytes:
    """The preamble of datagrams of the sender with this name. Its checksum also covers the token,
    so datagrams of a cluster with another token are refused."""
    text = name.encode()
    check = crc32(text, crc32(credential))
    head = _PREAMBLE.pack(_MAGIC, _VERSION, len(text), 0, check) + text
    return head + bytes(-len(head) % 8)


def _groups(datagrams: list[bytes], segment_bytes_max: int) -> list[list[bytes]]:
    """Split `datagrams` into groups, each for one system call. All datagrams of a group have the
    same size, except that the last one may be shorter."""
    groups: list[list[bytes]] = []
    size = total = 0  # of the last group: the size of its datagrams, and their sum
    for datagram in datagrams:
        nbytes = len(datagram)
        fits = groups and len(groups[-1]) < _SEGMENTS_MAX and total + nbytes <= _DATAGRAM_MAX
        if fits and nbytes <= size <= segment_bytes_max:
            groups[-1].append(datagram)
            total += nbytes
            if nbytes < size:
                size = 0  # a shorter datagram ends the group: no other fits after it
        else:
            groups.append([datagram])
            size = total = nbytes
    return groups
