"""The deterministic simulator: runs machines and injects faults, reproducibly from a seed.

A *machine* is the state machine of a node: it gets inputs and returns effects, such as messages to
send (ARCHITECTURE.md). The simulator is one of the two drivers that run machines; the other one
uses real sockets.

world.py      building a simulation; faults as methods
loop.py       the event loop: steps machines, performs their effects
agenda.py     the queue of scheduled events
node.py       one node: machine, timers, inbox
network.py    sessions (simulated connections) and datagrams between nodes
session.py    the state of one end of a session
links.py      delay, bandwidth, loss and cuts of the links between nodes
topology.py   sites (regions) and the links between them
disks.py      storage effects: delays of syncs, and answers
faults.py     faults as values, which can be drawn at random and scheduled
costs.py      the optional cost model: computing takes simulated time
sizes.py      the sizes of messages, for simulated bandwidth
trace.py      the record of a run, its digest and its table
playback.py   replays recordings of real nodes
"""

from surecast.core.machine import NodeContext
from surecast.sim.costs import Costs
from surecast.sim.links import Link
from surecast.sim.topology import Topology
from surecast.sim.trace import Trace
from surecast.sim.world import World

__all__ = ["Costs", "Link", "NodeContext", "Topology", "Trace", "World"]
