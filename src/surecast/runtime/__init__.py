"""The asyncio driver: the machines that run in the simulator, over real TCP and UDP.

node.py      a node: passes, effects, its life
sessions.py  FIFO sessions: what waits, closing, silence
opening.py   how one comes about, and which one counts when two do
session.py   our end of one
tcp.py       one connection: bytes to frames, buffers to bytes
hello.py     what two drivers say to each other
udp.py       datagrams, cut up and put together by the kernel
unknown.py   messages of types that this node does not know
chunks.py    what is received into
timers.py    timers, and the watch on the wall clock
book.py      names to addresses
listen.py    TCP and UDP sockets at one port
limits.py    how long to wait, how much to hold
run.py       the event loop of a process of nodes
relay*.py    a link that can be slow, lossy or cut, for tests and demos
recorder.py  writes down what a machine is told, for `surecast replay`
"""

from surecast.runtime.addresses import AddressBook
from surecast.runtime.limits import RuntimeLimits
from surecast.runtime.node import Node

__all__ = ["AddressBook", "Node", "RuntimeLimits"]
