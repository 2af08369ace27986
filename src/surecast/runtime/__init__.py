"""The asyncio driver: runs the same state machines as the simulator, over real TCP and UDP.

A state machine does no IO itself (`core.types`). A *node* is a state machine that this driver
runs: the driver steps the machine with inputs and performs the effects that it returns.

node.py       a node: passes, effects, start and stop
sessions.py   all sessions of a node: send queues, closing, time-outs
opening.py    how a session is established, also when both nodes open one at once
session.py    this node's end of one session; the limits of a node
tcp.py        one connection: bytes to frames, buffers to bytes
chunks.py     the receive buffers
hello.py      the messages with which two nodes open and close a session
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
