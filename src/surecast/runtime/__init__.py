"""The asyncio driver: runs the same machines as the simulator, over real TCP and UDP.

node.py       a node: passes, effects, start and stop
sessions.py   FIFO sessions: send queues, closing, time-outs
opening.py    how a session is established, and which one is kept when both ends open one
session.py    our end of one session; the limits of a node
tcp.py        one connection: bytes to frames, buffers to bytes
chunks.py    the memory that a connection receives into
hello.py      the handshake between two drivers
udp.py        datagrams; the kernel splits and joins them
timers.py     timers, and the detection of changes of the wall clock
addresses.py  names to addresses; TCP and UDP sockets at one port
run.py        the event loop of a process of nodes
recorder.py   records the inputs and effects of a machine, for `surecast replay`
"""

from surecast.runtime.addresses import AddressBook
from surecast.runtime.node import Node
from surecast.runtime.session import RuntimeLimits

__all__ = ["AddressBook", "Node", "RuntimeLimits"]
