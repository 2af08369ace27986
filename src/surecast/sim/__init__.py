"""The deterministic simulator: runs machines and injects faults, reproducibly from a seed.

world.py      building a simulation; faults as methods
loop.py       the event loop, and the effects
session.py    one end of a session
agenda.py     the queue of scheduled events
node.py       one node: machine, timers, inbox
network.py    sessions and datagrams
links.py      delay, bandwidth and loss of links; which link joins which nodes; cuts
topology.py   regions and the links between them
disks.py      syncs and their answers, on `storage.memory`
faults.py     faults as values, to be drawn and scheduled
costs.py      the cost of computing
sizes.py      the sizes of messages
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
